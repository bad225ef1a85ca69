"""`coral config`: show the effective config, check it, print its JSON schema."""

from __future__ import annotations

import typer

from coral.cli.output import print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Show, check and describe the config.")
    group.command("show")(show)
    group.command("check")(check)
    group.command("schema")(schema)
    group.command("reference")(reference)
    app.add_typer(group, name="config")


def show(config: ConfigOption = DEFAULT_CONFIG, sets: SetOption = None, json: JsonOption = False) -> None:
    """Show the effective config: every key, its value, and where the value comes from.

    Secrets are shown as references, never as values.

    Example: coral config show --config coral.yaml --set models.0.slo.prefill=2s
    """
    from coral.core.config.effective import effective, masked

    loaded = open_session(config, sets)
    values = effective(loaded)
    if json:
        tree = masked(loaded.config.model_dump(mode="json"))
        print_json({"config": tree, "origins": {value.path: value.origin for value in values}})
        return
    print_table(("key", "value", "from"), [(value.path, value.text, value.origin) for value in values])


def check(config: ConfigOption = DEFAULT_CONFIG, sets: SetOption = None, json: JsonOption = False) -> None:
    """Check the config and list all its faults, each with its path and what mends it. Exit code 2 if any.

    Example: coral config check --config coral.yaml
    """
    from coral.errors import ConfigError

    try:
        loaded = open_session(config, sets)
    except ConfigError as error:
        if not json:
            raise
        faults = [{"path": one.path, "message": one.message, "mend": one.mend} for one in error.faults]
        print_json({"ok": False, "faults": faults})
        raise typer.Exit(error.exit_code) from error
    models = [model.name for model in loaded.config.models]
    if json:
        print_json({"ok": True, "models": models, "faults": []})
    else:
        typer.echo(f"{config}: no faults ({len(models)} model(s): {', '.join(models)})")


def schema() -> None:
    """Print the JSON schema of the config, with the options of all installed plugins.

    Example: coral config schema > coral.schema.json
    """
    from coral.core.config.jsonschema import config_schema
    from coral.core.plugins import load_plugins

    print_json(config_schema(load_plugins()))


def reference() -> None:
    """Print the reference page of the config, in Markdown, with the options of all installed plugins.

    Example: coral config reference > docs/config.md
    """
    from coral.core.config.reference import reference as page
    from coral.core.plugins import load_plugins

    typer.echo(page(load_plugins()), nl=False)
