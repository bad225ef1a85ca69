"""`coral profile`: time an engine's steps, fit them, show what planning believes, and check it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coral.cli.output import figure, print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from coral.core.generate.profiles import Pair
    from coral.core.profile.comparison import Comparison
    from coral.core.profile.profiling import Fitted
    from coral.core.profile.records import Record
    from coral.types.step import Measurement

ModelOption = Annotated[
    str | None, typer.Option("--model", help="Only this model of the config; all where not given.")
]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", help="Only this GPU or device of the offers; all where not given.")
]
CHECK_LIMIT = 0.25


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Time an engine's steps, fit, show and check step costs.")
    group.command("run")(run)
    group.command("fit")(fit)
    group.command("show")(show)
    group.command("check")(check)
    app.add_typer(group, name="profile")


def run(
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the runs to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time real steps of the engine on the devices at hand, for each model of a config.

    The results are kept and used by the next plan. Carry them to where plans are made with --out and
    `profiler: {use: engine, files: [FILE]}`.

    Example: coral profile run --config examples/demo.yaml --out smollm2.json
    """
    from coral.core.profile.records import write_records

    pairs = _pairs(config, sets, model, gpu)
    runs = [pair.record(fresh=fresh) for pair in pairs]
    _none_measured(pairs, runs)
    found = [one for one in runs if one is not None]
    if out is not None:
        write_records(out, found)
    if as_json:
        print_json(found)
        return
    for one in found:
        about = one.measurements
        typer.echo(f"{one.model} on {one.device}: {about.engine} {about.engine_version}, {one.dtype}")
        print_table(
            ("layers", "ends", "prompt tokens", "decode rows", "attended", "ms"),
            [_point(point) for point in about.points],
        )
    if out is not None:
        typer.echo(f"wrote {out}")


def fit(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of `coral profile run --out`; else --config says what.")
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    form: Annotated[
        Literal["knee", "affine"],
        typer.Option("--form", help="knee: weights or arithmetic, whichever is longer; affine: both add up."),
    ] = "knee",
    solver: Annotated[
        str | None,
        typer.Option("--solver", help="A solver for non-linear programs, for example ipopt; else scipy."),
    ] = None,
    shortfall: Annotated[
        float | None,
        typer.Option(
            "--shortfall",
            min=0.0,
            max=1.0,
            help="Most that a step may be predicted below its time, 0.05 is 5 %; needs --solver.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a step cost to timed steps, and say how well it fits.

    Example: coral profile fit smollm2.json --solver ipopt --shortfall 0.05
    """
    from coral.core.plugins import load_plugins
    from coral.core.profile.comparison import compare
    from coral.core.profile.profiling import fitted, nonlinear_solver
    from coral.core.profile.records import read_records
    from coral.errors import UsageError

    if form == "affine" and (solver or shortfall is not None):
        raise UsageError("the affine form is fitted by linear least squares alone", mend="use --form knee")
    if files:
        runs = [
            one for one in read_records(files) if model in (None, one.model) and gpu in (None, one.device)
        ]
        if not runs:
            raise UsageError(
                "the files hold no run of that model and device", mend="leave --model, --gpu out"
            )
    else:
        pairs = _pairs(config, sets, model, gpu)
        kept = [pair.record(fresh=False) for pair in pairs]
        _none_measured(pairs, kept)
        runs = [one for one in kept if one is not None]
    chosen = nonlinear_solver(load_plugins(), solver) if solver else None
    found = [(one, fitted(one, form=form, solver=chosen, shortfall=shortfall)) for one in runs]
    if as_json:
        print_json(
            [{"model": one.model, "device": one.device, "form": form, "cost": cost} for one, cost in found]
        )
        return
    for one, cost in found:
        told = compare(cost, one.measurements)
        worst = f"worst {told.worst.error:+.1%} ({told.worst.kind})"
        typer.echo(f"{one.model} on {one.device}: root mean square error {cost.error:.1%}, {worst}")
        print_table(("coefficient", "seconds, but for sharpness"), _coefficients(cost))


def show(
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what planning believes of each model on each GPU, where it comes from, and typical steps.

    Example: coral profile show --config examples/paper-core.yaml --model qwen3-32b
    """
    from coral.core.profile.profiling import believed

    pairs = _pairs(config, sets, model, gpu)
    found = [believed(pair.model, pair.gpu, pair.cost(), pair.max_tp) for pair in pairs if not pair.refusal]
    refused = [one for one in pairs if one.refusal]
    if as_json:
        print_json(
            {
                "believed": found,
                "refused": [
                    {"model": one.model.name, "gpu": one.gpu.name, "reason": one.refusal} for one in refused
                ],
            }
        )
        return
    print_table(
        (
            "model",
            "GPU",
            "profiler",
            "provenance",
            "engine",
            "error",
            "layer",
            "KV a token",
            "fixed",
        ),
        [
            (
                one.model,
                one.gpu,
                one.profiler,
                one.provenance,
                f"{one.engine} {one.engine_version}".strip(),
                f"{one.error:.0%}",
                f"{one.layer_bytes / 2**20:,.1f} MiB",
                f"{one.kv_token_bytes / 2**10:,.2f} KiB a layer",
                f"{one.fixed_bytes / 2**20:,.0f} MiB",
            )
            for one in found
        ],
    )
    for one in found:
        for note in one.notes:
            typer.echo(f"{one.model} on {one.gpu}: {note}")
    print_table(
        (
            "model",
            "GPU",
            "TP",
            "step",
            "a layer",
            "compute",
            "attention",
            "all-reduce",
            "embedding",
            "logits",
            "overhead",
        ),
        [
            (one.model, one.gpu, step.tp, step.what, *(figure(value * 1e3) for value in step.seconds))
            for one in found
            for step in one.steps
        ],
        title="typical steps through all layers, in ms: a layer, and the parts of the whole",
    )
    for apart in refused:
        typer.echo(f"{apart.model.name} on {apart.gpu.name}: {apart.refusal}")


def check(
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    model: ModelOption = None,
    gpu: GpuOption = None,
    limit: Annotated[
        float, typer.Option("--limit", min=0.0, help="Warn above this median error; 0.25 is 25 %.")
    ] = CHECK_LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Run the engine now and report how far the profile is from it: times, bytes, versions.

    Exit code 1 where it warns: a median error above the limit or half again as large as the profile states,
    another version of the engine, KV or weights of another size.

    Example: coral profile check --config examples/demo.yaml --limit 0.3
    """
    from coral.core.profile.profiling import warnings_of

    pairs = _pairs(config, sets, model, gpu)
    found = [pair.checked() for pair in pairs]
    _none_measured(pairs, found)
    told = [(pair, one) for pair, one in zip(pairs, found, strict=True) if one is not None]
    warned = {id(one): warnings_of(one, limit) for _, one in told}
    if as_json:
        print_json(
            [
                {
                    "model": pair.model.name,
                    "gpu": pair.gpu.name,
                    "errors": {kind: one.error(kind) for kind in one.kinds},
                    "warnings": warned[id(one)],
                    "comparison": one,
                }
                for pair, one in told
            ]
        )
    else:
        print_table(
            ("model", "GPU", "profiler", "provenance", "stated", "prefill", "decode", "mixed", "worst"),
            [_errors(pair, one) for pair, one in told],
            title="median absolute error of step times",
        )
        for pair, one in told:
            for line in warned[id(one)]:
                typer.echo(f"warning: {pair.model.name} on {pair.gpu.name}: {line}", err=True)
    if any(warned.values()):
        raise typer.Exit(1)


def _pairs(config: Path, sets: list[str] | None, model: str | None, gpu: str | None) -> list[Pair]:
    """Every model of the config with every GPU on offer, or those asked for."""
    from rich.console import Console

    from coral.cli.market import ask_clouds
    from coral.core.generate.profiles import pairs

    session = open_session(config, sets)
    console = Console(stderr=True)
    offers, _, gpus = ask_clouds(session)
    with console.status("profiling") as status:
        return pairs(
            session.config,
            session.registry,
            offers,
            gpus,
            model=model,
            gpu=gpu,
            say=lambda text: status.update(text),
        )


def _none_measured(pairs: list[Pair], found: list[Record | None] | list[Comparison | None]) -> None:
    from coral.errors import ProfileError

    if any(one is not None for one in found):
        return
    names = ", ".join(sorted({pair.gpu.name for pair in pairs}))
    raise ProfileError(
        f"no engine of this config can be measured here on {names}",
        mend="run this where the device is; `coral profile show` shows what is believed without measuring",
    )


def _point(point: Measurement) -> tuple[object, ...]:
    ends = "+".join(name for name, has in (("first", point.first), ("last", point.last)) if has)
    work = point.work
    attended = work.prefill_context + work.decode_context
    return (
        point.layers,
        ends,
        f"{work.prefill_tokens:g}",
        f"{work.decode_rows:g}",
        f"{attended:,.0f}",
        f"{point.seconds * 1e3:,.3f}",
    )


def _coefficients(cost: Fitted) -> list[tuple[str, str]]:
    from coral.core.profile.profiling import coefficients

    return [(name, f"{value:,.4g}") for name, value in coefficients(cost).items()]


def _errors(pair: Pair, one: Comparison) -> tuple[object, ...]:
    return (
        pair.model.name,
        pair.gpu.name,
        one.profiler,
        one.provenance,
        f"{one.stated:.0%}",
        *(f"{one.error(kind):.1%}" if kind in one.kinds else "" for kind in ("prefill", "decode", "mixed")),
        f"{one.worst.error:+.0%} ({one.worst.kind})",
    )
