"""From a kind and a name to a folder with pyproject, README, module, options and tests."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import NamedTuple

from coral.core.plugins import KINDS
from coral.errors import UsageError


class Recipe(NamedTuple):
    """What the files of a kind need to be told; `usage` is the section of the config that picks one."""

    summary: str
    usage: str
    dependencies: tuple[str, ...] = ("coral-llm[config]",)
    component: str = "Component"
    extra: str = ""


RECIPES = {
    "solver": Recipe("scipy's milp", "solver: {use: $name}", ("coral-llm[config]", "scipy>=1.13")),
    "engine": Recipe(
        "a toy model in numpy",
        "engine: {use: $name}",
        component="EngineComponent",
        extra='\n            load="$package.stage:load",',
    ),
    "cloud": Recipe("machines that are processes of this machine", "clouds: [{use: $name}]"),
    "router": Recipe("least work under way for what an instance can do", "router: {use: $name}"),
    "profiler": Recipe("step costs from peak figures", "profiler: {use: $name}"),
    "planner": Recipe("greedy by price per throughput", "plan: {planner: {use: $name}}"),
    "workload": Recipe("independent arrivals", ""),
    "executor": Recipe("threads of this process", "executor: {use: $name}"),
}
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def write_plugin(kind: str, name: str, into: Path | None = None) -> Path:
    """Write the package and return its folder. Raises UsageError where kind or name will not do, or where
    the folder has files already."""
    if kind not in KINDS:
        raise UsageError(f"there is no kind of plugin {kind!r}", mend=f"kinds: {', '.join(KINDS)}")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} will not do as a name", mend="use lower-case words with hyphens: my-policy"
        )
    folder = into or Path(f"coral-{kind}-{name}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not empty", mend="name another folder with --into")
    for path, text in package_files(kind, name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def package_files(kind: str, name: str) -> dict[str, str]:
    """The package's files by path."""
    recipe = RECIPES[kind]
    snake = name.replace("-", "_")
    package = f"coral_{kind}_{snake}"
    words = {
        "kind": kind,
        "Kind": kind.capitalize(),
        "name": name,
        "package": package,
        "distribution": f"coral-{kind}-{name}".replace("_", "-"),
        "Class": "".join(part.capitalize() for part in snake.split("_")),
        "hook": f"coral_{kind}s",
        "Component": recipe.component,
        "summary": recipe.summary,
        "dependencies": ", ".join(f'"{one}"' for one in recipe.dependencies),
    }
    section = Template(recipe.usage).substitute(words)
    words["usage"] = (
        f"picked in the config by\n\n```yaml\n{section}\n```"
        if section
        else "for benchmarks and simulation from Python."
    )
    words["extra"] = Template(recipe.extra).substitute(words)
    sources = files(__package__) / "files"
    own = {
        "component": f"{package}/{kind}.py",
        "options": f"{package}/options.py",
        "test": f"tests/test_{kind}_{snake}.py",
    }
    written = {
        "pyproject.toml": _filled(sources / "pyproject.toml.txt", words),
        "README.md": _filled(sources / "README.md.txt", words),
        f"{package}/__init__.py": _filled(sources / "init.py.txt", words),
        f"{package}/py.typed": "",
    }
    for part in sorted((sources / kind).iterdir(), key=lambda one: one.name):
        stem = part.name.removesuffix(".py.txt")
        written[own.get(stem, f"{package}/{stem}.py")] = _filled(part, words)
    return written


def _filled(source: Traversable, words: dict[str, str]) -> str:
    text = source.read_text(encoding="utf-8")
    return Template(text).substitute(words)
