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


if __name__ == "__main__":
    sys.exit(main())
