"""Importing a plugin costs nothing, and a worker's part of core needs four small packages."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = (
    "torch",
    "pyomo",
    "mip",
    "vllm",
    "sglang",
    "boto3",
    "highspy",
    "transformers",
    "scipy",
    "numba",
    "pydantic",
    "cffi",
    "cyipopt",
    "ray",
    "matplotlib",
    "pandas",
    "aiconfigurator_core",
)

GUARD = """
import sys
ALLOWED = set(sys.stdlib_module_names) | {"coral", "msgspec", "zmq", "pluggy", "numpy", "coral_engine_mock"}
ALLOWED |= {"_cython_3_0_11", "cython_runtime"}

class Guard:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and not top.startswith(("_cython", "__editable__")):
            raise ImportError(f"{name} is not in the worker's set")

sys.meta_path.insert(0, Guard())
"""


def run(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_loading_all_plugins_imports_nothing_heavy() -> None:
    code = (
        "import json, sys; from coral.core.plugins import load_plugins; r = load_plugins()\n"
        "print(json.dumps([sorted({m.partition('.')[0] for m in sys.modules}), [x.name for x in r.records]]))"
    )
    modules, plugins = json.loads(run(code))
    assert len(plugins) >= 5, "no plugins were loaded: this test would hold nothing"
    assert sorted(set(modules) & set(HEAVY)) == []


def test_core_of_a_worker_needs_the_worker_set_only() -> None:
    """Its modules, the plugins' top modules, the mock engine's worker half."""
    code = (
        GUARD + "import coral.core.serve.worker.process, coral.core.serve.agent, coral.core.serve.instance\n"
        "from coral.core.plugins import load_plugins\n"
        "registry = load_plugins()\n"
        "from coral.core.plugins.lazy import resolve\n"
        "print(resolve(registry.component('engine', 'mock').load, 'mock').__name__)\n"
    )
    assert run(code).strip() == "load"


def test_the_guard_guards() -> None:
    ran = subprocess.run([sys.executable, "-c", GUARD + "import pydantic"], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "pydantic is not in the worker's set" in ran.stderr
