"""`coral keys`: the server's public key, join tokens, who has joined."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coral.cli.output import print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from coral.core.config import Config
    from coral.core.serve.joining.members import Members


def register(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True)
    group.callback()(show)
    group.command("token")(token)
    group.command("list")(list_)
    group.command("revoke")(revoke)
    app.add_typer(group, name="keys")


def show(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the public key by which machines know this server, and where they reach it.

    Example: coral keys -c coral.yaml
    """
    if context.invoked_subcommand is not None:
        return
    opened = open_session(config, sets).config
    key, address = _members(opened).server_key(), opened.serve.machines_address
    if as_json:
        print_json({"public_key": key, "address": address})
        return
    typer.echo(f"public key  {key}")
    typer.echo(f"machines    {f'join at {address}' if address else 'cannot join: serve.listen is not given'}")


def token(
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    machine: Annotated[
        str,
        typer.Option("--machine", help="Name of the machine that may use it; any that is free otherwise."),
    ] = "",
    expires: Annotated[str, typer.Option("--expires", help="How long it can be used.")] = "1h",
    as_json: JsonOption = False,
) -> None:
    """Print a token that lets one machine join, once: give it to `coral node` there, by a way you trust.

    Example: coral keys token -c coral.yaml --machine gpu-1 --expires 1h
    """
    from pydantic import TypeAdapter, ValidationError

    from coral.errors import UsageError
    from coral.hookspecs.options import Duration

    opened = open_session(config, sets).config
    address = opened.serve.machines_address
    if address is None:
        raise UsageError(
            "no machine can join: serve.listen is not given", mend="for example serve.listen: 10.0.0.1:7000"
        )
    try:
        valid_s: float = TypeAdapter(Duration).validate_python(expires)
    except ValidationError:
        valid_s = 0.0
    if valid_s <= 0:
        raise UsageError(f"--expires {expires} is no length of time", mend="for example --expires 1h")
    made = _members(opened).invite(address, machine, now_s=time.time(), valid_s=valid_s)
    if as_json:
        print_json({"token": made.text(), "machine": machine, "expires_s": made.expires_s})
    else:
        typer.echo(made.text())


def list_(config: ConfigOption = DEFAULT_CONFIG, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """List machines that have joined, and tokens that were not used yet.

    Example: coral keys list -c coral.yaml
    """
    from coral.core.serve.net.keys import fingerprint

    members, now_s = _members(open_session(config, sets).config), time.time()
    machines, tokens = members.machines(), members.tokens(now_s=now_s)
    if as_json:
        print_json({"machines": machines, "tokens": tokens})
        return
    print_table(
        ("machine", "joined", "key"),
        [(one.name, _when(one.since_s), fingerprint(one.public_key)) for one in machines],
    )
    print_table(
        ("token for", "expires", "key"),
        [(one.name or "any machine", _when(one.expires_s), fingerprint(one.public_key)) for one in tokens],
    )


def revoke(
    named: Annotated[str, typer.Argument(metavar="NAME", help="A machine's name, or a key of the list.")],
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
) -> None:
    """Shut a machine out, or make a token worthless. A running server follows within seconds.

    Example: coral keys revoke gpu-1 -c coral.yaml
    """
    for what in _members(open_session(config, sets).config).revoke(named, now_s=time.time()):
        typer.echo(f"revoked: {what}")


def _members(config: Config) -> Members:
    from coral.core.serve.joining.members import Members

    return Members(Path(config.state.folder))


def _when(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
