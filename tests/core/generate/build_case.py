"""A build in a process of its own, for tests that kill it or run it beside another.

    python build_case.py FOLDER [stop at solving | writing]

Prints `stopped` and waits to be killed where it was told to stop: at the second model's first progress, or
between writing its rows and giving them their name.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.core.generate import library_case as case

MODELS = (case.model("a"), case.model("b", decode_s=0.3))


def wait_to_be_killed() -> None:
    print("stopped", flush=True)
    time.sleep(60)


def main(folder: Path, stop: str) -> None:
    def progress(done: float, total: float, what: str) -> None:
        if stop == "solving" and what == "b/mixed":
            wait_to_be_killed()

    replace = Path.replace

    def stopping(path: Path, target: Path) -> Path:
        wrote_a = any(entry.suffix == ".json" for entry in folder.glob("*.json"))
        if stop == "writing" and wrote_a and str(target).endswith(".parquet"):
            wait_to_be_killed()
        return replace(path, target)

    Path.replace = stopping  # type: ignore[method-assign, assignment]
    case.build(folder, *MODELS, progress=progress)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
