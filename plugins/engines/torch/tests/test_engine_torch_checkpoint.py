from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from coral_engine_torch.checkpoint import Checkpoint
from safetensors.torch import save_file

from coral.errors import EngineError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards: fp32 `a [3, 4]`, bf16 `b [5]`; and integers that nobody asks for."""
    save_file({"a": torch.arange(12.0).view(3, 4)}, tmp_path / "one.safetensors")
    second = {"b": torch.arange(5).bfloat16(), "ids": torch.arange(3)}
    save_file(second, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "ids": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_come_from_their_shards_in_the_dtype_asked_for(folder: Path, dtype: torch.dtype) -> None:
    a, b = torch.empty(3, 4, dtype=dtype), torch.empty(5, dtype=dtype)
    with Checkpoint(folder) as checkpoint:
        checkpoint.read("a", a)
        checkpoint.read("b", b)
    assert torch.equal(a, torch.arange(12.0).view(3, 4).to(dtype))
    assert torch.equal(b, torch.arange(5).to(dtype))
    assert checkpoint.bytes_read == 12 * 4 + 5 * 2
    assert "a" in checkpoint
    assert "ids" not in checkpoint


def test_large_tensors_are_converted_in_parts(tmp_path: Path) -> None:
    big = torch.randn(3, 3_000_000)
    save_file({"big": big}, tmp_path / "model.safetensors")
    into = torch.empty(3, 3_000_000, dtype=torch.bfloat16)
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.read("big", into)
    assert torch.equal(into, big.bfloat16())


def test_reads_into_a_part_of_a_fused_tensor(folder: Path) -> None:
    fused = torch.full((5, 4), -1.0)
    with Checkpoint(folder) as checkpoint:
        checkpoint.read("a", fused[1:4])
    assert torch.equal(fused[1:4], torch.arange(12.0).view(3, 4))
    assert (fused[0] == -1).all()
    assert (fused[4] == -1).all()


def test_faults_name_the_file_and_the_tensor(folder: Path) -> None:
    with Checkpoint(folder) as checkpoint:
        with pytest.raises(EngineError, match="no float tensor nothing"):
            checkpoint.read("nothing", torch.empty(1))
        with pytest.raises(EngineError, match=r"one\.safetensors: a has shape \(3, 4\)"):
            checkpoint.read("a", torch.empty(4, 3))


@pytest.mark.parametrize("damage", ["cut", "header", "length", "offsets", "empty"])
def test_a_damaged_file_is_refused(folder: Path, damage: str) -> None:
    path = folder / "one.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    if damage == "offsets":
        header["a"]["data_offsets"] = [48, 96]
    text = json.dumps(header).encode()
    path.write_bytes(
        {
            "cut": whole[:-4],
            "header": whole[:8] + b"x" * length + whole[8 + length :],
            "length": (1 << 60).to_bytes(8, "little") + whole[8:],
            "offsets": len(text).to_bytes(8, "little") + text + whole[8 + length :],
            "empty": b"",
        }[damage]
    )
    with pytest.raises(EngineError, match="damaged"):
        Checkpoint(folder)


def test_files_outside_the_folder_and_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(EngineError, match="holds no safetensors"):
        Checkpoint(tmp_path)
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineError, match="outside its folder"):
        Checkpoint(tmp_path)
