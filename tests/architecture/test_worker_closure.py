"""A worker runs beside an engine's own pins: what it imports of ours needs four small packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coral.testing.instance import InstanceUnderTest, stages
from coral.types.request import GenerateRequest, Sampling

ROOT = Path(__file__).resolve().parents[2]
WORKER_SET = {"coral-llm", "coral-engine-mock", "msgspec", "pyzmq", "pluggy", "numpy"}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the bare install and the mock engine, and nothing else."""
    folder = tmp_path_factory.mktemp("worker") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run(
        [*pip, "install", "-q", "-c", str(ROOT / "constraints.txt"), "msgspec", "pyzmq", "pluggy", "numpy"],
        check=True,
    )
    local = [str(ROOT), str(ROOT / "plugins" / "engines" / "mock")]
    subprocess.run([*pip, "install", "-q", "--no-deps", *local], check=True)
    return python


def test_the_bare_install_is_the_worker_set(bare_python: Path) -> None:
    code = (
        "from importlib.metadata import distributions as d; print(*sorted({x.metadata['Name'] for x in d()}))"
    )
    out = subprocess.run([bare_python, "-c", code], check=True, capture_output=True, text=True).stdout
    assert set(out.split()) == WORKER_SET


def test_the_core_declares_no_more_than_the_worker_set(bare_python: Path) -> None:
    code = (
        "from importlib.metadata import requires as r;"
        "print(*[x.split('>')[0] for x in r('coral-llm') if 'extra ==' not in x])"
    )
    out = subprocess.run([bare_python, "-c", code], check=True, capture_output=True, text=True).stdout
    assert set(out.split()) == WORKER_SET - {"coral-llm", "coral-engine-mock"}


def test_a_channel_that_needs_torch_is_refused_where_there_is_none(bare_python: Path) -> None:
    placement = stages(cuts=(2, 6), nodes=(1, 1), engine="mock")
    with InstanceUnderTest(placement, worker_python=str(bare_python), channel="gloo") as instance:
        instance.wait(lambda: instance.failed is not None, 60, "failed")
        assert instance.failed is not None
        assert "the channel gloo needs torch" in instance.failed.reason
        assert "serve: {channel: zmq}" in instance.failed.reason
        for process in instance.processes:
            assert process.wait(20) is not None


def test_workers_of_the_bare_install_serve(bare_python: Path) -> None:
    placement = stages(cuts=(2, 6), nodes=(1, 2), engine="mock")
    request = GenerateRequest(
        id="r", model="model", prompt_ids=(1, 2, 3), sampling=Sampling(temperature=0.0, max_tokens=8)
    )
    with InstanceUnderTest(placement, worker_python=str(bare_python)) as instance:
        instance.wait_ready()
        answer = instance.generate([request])["r"]
        assert answer.finish == "length"
        assert len(answer.tokens) == 8
