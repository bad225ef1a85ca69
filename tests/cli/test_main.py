from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from coral.cli.main import COMMANDS, build_app, main
from coral.core.plugins import Registry
from coral.errors import CoralError, InfeasibleError, UsageError
from coral.hookspecs import hookimpl
from coral.testing.stand_ins import PluginObject, record


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))
    if path and (not getattr(command, "commands", {}) or getattr(command, "invoke_without_command", False)):
        yield path, command


def test_every_command_has_an_example() -> None:
    found = dict(leaves(typer.main.get_command(build_app())))
    assert ("config", "show") in found
    assert ("plugins",) in found
    without = [
        " ".join(path)
        for path, command in found.items()
        if f"coral {' '.join(path)}" not in (command.help or "").partition("Example")[2]
    ]
    assert without == []


def test_every_command_of_the_list_is_there() -> None:
    names = {path[0] for path, _ in leaves(typer.main.get_command(build_app()))}
    assert {entry.name for entry in COMMANDS} <= names


def test_help_lists_the_commands_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for entry in COMMANDS:
        assert entry.name in shown
        assert entry.summary in shown
    code = (
        "import sys; from coral.cli.main import main; main(['--help'])\n"
        "print([m for m in sys.modules if m.startswith('coral.core.serve') or m == 'coral.core.config'"
        " or m in ('pydantic', 'torch')], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("coral 0.")


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["plugins", "--no-such-option"], ["config", "show", "x", "y"]]
)
def test_usage_errors_are_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """A command `try-me` of a plugin, which raises what is put into the list."""
    raised: list[Exception] = []

    def add(app: typer.Typer) -> None:
        @app.command("try-me", help="Example: coral try-me")
        def try_me() -> None:
            typer.echo("tried")
            for error in raised:
                raise error

    registry = Registry()
    registry.add(PluginObject(coral_add_commands=hookimpl(add)), record())
    monkeypatch.setattr("coral.core.plugins.load_plugins", lambda: registry)
    return raised


def test_plugins_add_commands(command: list[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try-me"]) == 0
    assert capsys.readouterr().out == "tried\n"
    assert main(["--help"]) == 0
    assert "try-me" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CoralError("it broke", mend="try again"), 1),
        (UsageError("not so"), 2),
        (InfeasibleError("cannot be had"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_give_the_exit_code(
    command: list[Any], error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command.append(error)
    assert main(["try-me"]) == code
    shown = capsys.readouterr().err
    if isinstance(error, CoralError):
        assert shown == f"coral: {error}\n"
    assert "Traceback" not in shown


def test_what_is_a_fault_of_ours_shows_where(command: list[Exception]) -> None:
    command.append(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        main(["try-me"])


def test_hooks_are_traced_on_request(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from coral.cli.main import run; run()", "--trace-hooks", "plugins"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "hook coral_routers() -> coral_router_weighted_round_robin" in ran.stderr
    assert "weighted-round-robin" in ran.stdout
