"""`coral plugins`: list what is installed and what is broken; write a new plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coral.cli.output import print_json, print_table
from coral.cli.session import JsonOption


def register(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True)
    group.callback()(show)
    group.command("new")(new)
    app.add_typer(group, name="plugins")


def show(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Also load the one-file plugins of this config.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List every component that plugins offer, and every plugin that cannot be used with its error.

    Example: coral plugins --json
    """
    if context.invoked_subcommand is not None:
        return
    from coral.core.plugins import load_plugins
    from coral.core.plugins.listing import listing

    paths: list[Path] = []
    if config is not None:
        from coral.core.config.load import plugin_paths

        paths = plugin_paths(config)
    rows = listing(load_plugins(paths))
    if json:
        print_json(rows)
        return
    print_table(
        ("kind", "name", "distribution", "version", "summary", "state"),
        [(row.kind, row.name, row.distribution, row.version, row.summary, row.error or "ok") for row in rows],
    )


def new(
    kind: Annotated[
        str, typer.Argument(help="solver, engine, cloud, router, profiler, planner, workload or executor.")
    ],
    name: Annotated[str, typer.Argument(help="Name by which a config picks it, for example my-policy.")],
    into: Annotated[
        Path | None, typer.Option("--into", help="Folder to write; coral-KIND-NAME where not given.")
    ] = None,
) -> None:
    """Write a plugin package that works and passes its contract suite as written.

    Example: coral plugins new router my-policy
    """
    from coral.cli.scaffold import write_plugin

    folder = write_plugin(kind, name, into)
    typer.echo(f"wrote {folder}")
    typer.echo(f"next: pip install -e {folder} pytest && python -m pytest {folder}")
