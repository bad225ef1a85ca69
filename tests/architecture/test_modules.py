"""The shape of the code: small modules, each one idea, nothing that knows everything."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "misc"}


def sources() -> list[Path]:
    """Every module of the product: core and plugins, tests left out."""
    found = [*ROOT.glob("coral/**/*.py"), *ROOT.glob("plugins/*/*/coral_*/**/*.py")]
    return sorted(path for path in found if "tests" not in path.parts)


def test_no_module_is_over_400_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > 400}
    assert not long, f"split these by noun: {long}"


def test_the_median_module_is_about_100_lines() -> None:
    counts = [n for p in sources() if (n := len(p.read_text().splitlines())) > 5]
    assert statistics.median(counts) <= 150, statistics.median(counts)


def test_no_module_is_named_for_nothing() -> None:
    bad = [str(p.relative_to(ROOT)) for p in sources() if p.stem in FORBIDDEN_NAMES]
    assert not bad, bad


def imports(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.lineno, node.module))
    return found


def offences(paths: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in imports(path)
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden)
    ]


def plugin_sources() -> list[Path]:
    return sorted(ROOT.glob("plugins/*/*/coral_*/**/*.py"))


def test_plugins_import_only_the_public_contract() -> None:
    assert plugin_sources(), "no plugins found: this test would hold nothing"
    assert offences(plugin_sources(), ("coral.core", "coral.cli")) == []


def test_plugins_do_not_import_each_other() -> None:
    wrong = []
    for path in plugin_sources():
        own = next(part for part in path.parts if part.startswith("coral_"))
        wrong += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for line, name in imports(path)
            if name.startswith("coral_") and name.split(".")[0] != own
        ]
    assert wrong == []


def test_only_engines_touch_vllm_and_sglang() -> None:
    others = [p for p in sources() if "engines" not in p.relative_to(ROOT).parts[:2]]
    assert offences(others, ("vllm", "sglang")) == []


def test_what_decides_imports_no_driver() -> None:
    folders = ("operate", "plan", "generate")
    paths = [p for f in folders for p in (ROOT / "coral" / "core" / f).rglob("*.py")]
    assert paths
    assert offences(paths, ("zmq", "torch", "asyncio", "time", "datetime", "boto3", "uvicorn")) == []


@pytest.mark.parametrize("word", ["pickle", "cloudpickle", "dill", "marshal", "shelve"])
def test_nothing_is_pickled(word: str) -> None:
    assert offences(sources(), (word,)) == []


def test_no_pickled_object_crosses_a_socket_or_file() -> None:
    calls = ("send_pyobj", "recv_pyobj", "torch.load(", "np.load(", "allow_pickle=True", "yaml.load(")
    found = [f"{p.relative_to(ROOT)}: {call}" for p in sources() for call in calls if call in p.read_text()]
    assert found == []


def test_no_unfinished_places() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "raise NotImplementedError", "X" + "XX")
    found = [f"{p.relative_to(ROOT)}: {mark}" for p in sources() for mark in marks if mark in p.read_text()]
    assert found == []
