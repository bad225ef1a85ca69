"""How torch's threads compute in this process."""

from __future__ import annotations

import torch


def use_threads(count: int) -> None:
    """Call before the first operation: threads that torch starts later inherit the settings.

    Numbers too small to be normal count as zero: on a CPU they are computed in microcode, and the
    exponentials in SiLU and softmax make so many that a step takes a tenth longer.
    """
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
