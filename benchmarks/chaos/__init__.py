"""Whole systems under faults: instances come and go, processes are killed, clients leave.

    python -m benchmarks.chaos --json --engine mock
    python -m benchmarks.chaos --json --engine torch
    python -m benchmarks.chaos --json --scenario harsh | stage | aborts | starts

Each runs the real `coral serve` and speaks to its front door over HTTP. The last line is one JSON object.
"""
