"""A process for tests of the agent: what it finds of itself when it was forked, and ways to end."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path


def main() -> int:
    match sys.argv[1]:
        case "say":
            threads = len(list(Path("/proc/self/task").iterdir()))
            empty = "empty" if not sys.stdin.read() else "full"
            print(f"argv {' '.join(sys.argv[1:])}, stdin {empty}, threads {threads}")
            names = ("CUDA_VISIBLE_DEVICES", "CORAL_SECRET", "OTHER")
            print(*(f"{name}={os.environ.get(name)}" for name in names))
            print(random.random())
            return 3
        case "grow":
            held = bytearray(os.urandom(1)) * (400 << 20)
            time.sleep(60)
            return len(held)
        case "touch":
            Path(sys.argv[2]).touch()
            return 0
        case "compute":
            return compute(sys.argv[2])
        case "orphan":
            pid = os.fork()
            if pid == 0:
                os.setsid()  # not of the group that ends with its parent
                os.close(1)
                os.close(2)
                time.sleep(0.5)
                os._exit(0)
            print(f"left {pid}")
            return 0
        case _:
            time.sleep(120)
            return 0


def compute(module: str) -> int:
    """Multiply matrices in two threads, and say so where the result is right."""
    if module == "torch":
        import torch  # after the fork of a process that has imported it

        ones = torch.ones(600, 600)
        right = torch.equal(ones @ ones, torch.full((600, 600), 600.0))
        threads = torch.get_num_threads()
    else:
        import numpy as np

        square = np.ones((600, 600))
        right = bool(np.all(square @ square == 600.0))
        threads = len(list(Path("/proc/self/task").iterdir()))
    print(f"computed in {threads} threads" if right else "wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
