"""Public traces, prices and measurements that benchmarks read; none of it is in the repository."""

from __future__ import annotations

import os
from pathlib import Path


class DataMissing(Exception):
    """A data set that is not on this machine; the message says where it was looked for."""


def data_folder() -> Path:
    """`$CORAL_DATA`, else `shared/data` beside the repository's folder."""
    given = os.environ.get("CORAL_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


def data_file(name: str) -> Path:
    """Path of a file, for example `azure_llm_2023/AzureLLMInferenceTrace_conv.csv`. Raises DataMissing."""
    path = data_folder() / name
    if not path.is_file():
        raise DataMissing(f"{path} is not on this machine; set CORAL_DATA to the folder that holds it")
    return path
