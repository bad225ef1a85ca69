"""Machine code on disk is never older than what it was compiled from."""

from __future__ import annotations

import ast
from pathlib import Path

from coral.core.generate import kernel

FOLDER = Path(kernel.__file__).parent


def kernels(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "kernel" for d in node.decorator_list)
    }


def test_kernels_call_kernels_of_their_own_module_only() -> None:
    found = {path.stem: kernels(ast.parse(path.read_text())) for path in FOLDER.glob("*.py")}
    assert sum(map(len, found.values())) > 10
    for module, own in found.items():
        others = {name for other, functions in found.items() if other != module for name in functions}
        for name, function in own.items():
            called = {
                node.func.id
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not called & (others - set(own)), f"{module}.{name} calls kernels of other modules"
