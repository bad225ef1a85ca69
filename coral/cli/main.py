"""The `coral` program: finds the command, prints errors, gives the exit code (0 ok, 1 failed, 2 usage, 3
infeasible). Only the module of the command that runs is imported."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from coral.errors import CoralError


class Entry(NamedTuple):
    """A command: its name, the module whose `register(app)` adds it, what it is for."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Entry("serve", "coral.cli.serve", "Serve the models of a config."),
    Entry("plan", "coral.cli.plan", "Decide what to rent and run, and show why."),
    Entry("profile", "coral.cli.profile", "Time an engine's steps, fit, show and check step costs."),
    Entry("templates", "coral.cli.templates", "Build and show the library of serving templates."),
    Entry("status", "coral.cli.status", "Show what a running system does."),
    Entry("plugins", "coral.cli.plugins", "List plugins; write a new one."),
    Entry("config", "coral.cli.config", "Show, check and describe the config."),
)


def run() -> None:
    """Entry point of the `coral` script."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if "--trace-hooks" in arguments:
        os.environ["CORAL_TRACE_HOOKS"] = "1"  # before plugins are loaded, and for all processes below
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    try:
        build_app(wanted, only=True)(args=list(arguments), prog_name="coral", standalone_mode=True)
    except CoralError as error:
        typer.echo(f"coral: {error}", err=True)
        return error.exit_code
    except OSError as error:
        if error.filename is None:  # of no file that a person could mend
            raise
        typer.echo(f"coral: {error.filename}: {error.strerror}", err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    return 0


def build_app(wanted: str | None = None, *, only: bool = False) -> typer.Typer:
    """The program with all its commands. With `only`, the commands but the wanted one are mere names."""
    app = typer.Typer(
        name="coral",
        help="Serve several LLMs on rented GPUs of mixed kinds for the least money.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    for entry in COMMANDS:
        if only and entry.name != wanted:
            app.command(entry.name, help=entry.summary)(_named_only)
        else:
            importlib.import_module(entry.module).register(app)
    if not only or wanted not in {entry.name for entry in COMMANDS}:
        from coral.core.plugins import load_plugins

        load_plugins().events.add_commands(app)
    return app


def _named_only() -> None:
    """Stands for a command in the list of commands."""


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"coral {version('coral-llm')}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    trace_hooks: Annotated[
        bool, typer.Option("--trace-hooks", help="Show every call of a plugin's hook on standard error.")
    ] = False,
) -> None:
    pass
