"""What GPUs reach of their data sheets, by class of GPU; the figures that `roofline` works with.

Shares of peak are fitted to measured kernels and steps, with the forms of `roofline`:

* `hopper`, `blackwell`, `a100`, `ada` (L40S): least squares of log errors over the measured GEMM, attention
  and fused-expert kernels of vLLM that aiconfigurator-core 0.12 ships (H100, H200, B200, A100 SXM, L40S;
  matrices of 1 M to 600 M weights and 1 to 16 k rows). Median error of one 16-bit GEMM 6 to 8 %, of one
  8-bit GEMM 15 to 20 %, of one attention kernel 13 to 18 %. TensorRT-LLM's kernels, not fitted, give the same
  shares within 0.05.
* `efficient` (L4, T4: 70 W boards that clock down under load) and `volta` (V100): Helix's ms per layer of
  Llama-2 70B; its Llama-1 30B, not fitted, is what the error is taken on. Attention is too small a part of
  those prompts to be told apart: half of `ada`'s share is assumed.
* `ampere` (GDDR6 boards: A10, A10G, A6000, RTX 3090) has no measurement of its own: shares of `ada`.
* `cdna3` and what is `unknown`: shares between the measured ones.

`launch_s` is kernels' own time in a layer that no traffic explains: four GEMMs of 4 to 6 µs (8 to 14 µs
where rows are quantised), attention 10 µs, norms; with `overhead_s`, what an engine spends per step outside
of kernels, fitted to the time per output token of up to 8 rows on H100 (vLLM, TensorRT-LLM).

`error` is measured: the median of |predicted / measured - 1| over public whole steps and layers of the
class that nothing was fitted to (`python -m benchmarks.tables`, lines `class`). `hopper`, `blackwell`:
NVIDIA's end-to-end times of vLLM, SGLang and TensorRT-LLM; `a100` and `hopper` also Splitwise's (an engine
of 2023 that is bound by its host on wide tensor parallelism); `efficient`, `volta`: layers alone. Nobody
measured whole steps of `ada` in public: the largest of the classes that were fitted to kernels as it was.
`ampere`: the worst class where the shares of `ada` are put in place of its own; `unknown`, `cdna3`: the
same with the shares of `unknown`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Efficiency(Struct, frozen=True, kw_only=True):
    """Shares of the peak figures that an engine reaches, and its fixed costs."""

    compute: float = 0.60
    """Share of peak FLOP/s of 16-bit and 32-bit matrix products with many rows."""
    compute_low: float = 0.45
    """The same where weights and rows have 8 bits or fewer."""
    attention: float = 0.36
    """Share of 16-bit peak FLOP/s of attention over prompts."""
    bandwidth: float = 0.76
    """Share of memory bandwidth that reading weights, and KV in decode, reaches."""
    launch_s: float = 45e-6
    """Per layer."""
    overhead_s: float = 0.5e-3
    """Per step: scheduling, input preparation, sampling."""
    memory: float = 0.90
    """Share of a device's memory that may be used."""
    workspace_bytes: int = 1 << 30
    error: float = 0.30


CLASSES: Mapping[str, Efficiency] = {
    "hopper": Efficiency(
        compute=0.82, compute_low=0.55, attention=0.50, bandwidth=0.86, launch_s=45e-6, error=0.18
    ),
    "blackwell": Efficiency(
        compute=0.72, compute_low=0.45, attention=0.36, bandwidth=0.82, launch_s=45e-6, error=0.16
    ),
    "a100": Efficiency(
        compute=0.80, compute_low=0.80, attention=0.50, bandwidth=0.76, launch_s=45e-6, error=0.18
    ),
    "ada": Efficiency(
        compute=0.62, compute_low=0.46, attention=0.45, bandwidth=0.80, launch_s=45e-6, error=0.18
    ),
    "ampere": Efficiency(
        compute=0.62, compute_low=0.46, attention=0.45, bandwidth=0.80, launch_s=45e-6, error=0.26
    ),
    "efficient": Efficiency(
        compute=0.41, compute_low=0.30, attention=0.25, bandwidth=0.80, launch_s=45e-6, error=0.08
    ),
    "volta": Efficiency(
        compute=0.76, compute_low=0.76, attention=0.25, bandwidth=0.83, launch_s=45e-6, error=0.09
    ),
    "cdna3": Efficiency(error=0.30),
    "unknown": Efficiency(error=0.30),
}
"""By the class that `hardware.json` gives a GPU."""
