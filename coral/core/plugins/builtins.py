"""The plugin of what core itself offers, registered by an entry point like anyone's. Nothing here
imports what it names."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component


@hookimpl
def coral_planners() -> list[Component]:
    return [
        Component(
            name="coral",
            summary="exact joint allocation over serving templates, with a certificate",
            options="coral.core.plan.planners.options:CoralOptions",
            build="coral.core.plan.planners.coral:build",
        ),
        Component(
            name="homo",
            summary="baseline: every replica on one node type, the most cost-efficient first",
            options="coral.core.plan.planners.homo_options:HomoOptions",
            build="coral.core.plan.planners.homo:build",
        ),
        Component(
            name="cauchy",
            summary="baseline: prefill and decode each on one node type, paired to combos by cost efficiency",
            options="coral.core.plan.planners.cauchy_options:CauchyOptions",
            build="coral.core.plan.planners.cauchy:build",
        ),
        Component(
            name="melange",
            summary="baseline: one GPU type per replica, an integer program over request-size buckets",
            options="coral.core.plan.planners.melange_options:MelangeOptions",
            build="coral.core.plan.planners.melange:build",
        ),
        Component(
            name="helix",
            summary="baseline: one placement of a model over many unlike nodes, for the greatest flow",
            options="coral.core.plan.planners.helix_options:HelixOptions",
            build="coral.core.plan.planners.helix:build",
        ),
    ]


@hookimpl
def coral_profilers() -> list[Component]:
    return [
        Component(
            name="analytic",
            summary="step costs from the hardware catalogue, calibrated by a short run of the engine",
            options="coral.core.profile.options:AnalyticOptions",
            build="coral.core.profile.analytic:build",
        ),
        Component(
            name="engine",
            summary="step costs from timed steps of the real engine on the devices at hand",
            options="coral.core.profile.options:EngineProfilerOptions",
            build="coral.core.profile.engine:build",
        ),
        Component(
            name="measured",
            summary="step costs from files of measured milliseconds per layer (CSV, Parquet)",
            options="coral.core.profile.options:MeasuredOptions",
            build="coral.core.profile.measured:build",
        ),
    ]


@hookimpl
def coral_executors() -> list[Component]:
    return [
        Component(
            name="processes",
            summary="worker processes on this machine",
            options="coral.core.generate.executors.options:ProcessesOptions",
            build="coral.core.generate.executors.processes:build",
        )
    ]
