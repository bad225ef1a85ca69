"""The `measured` profiler: files of milliseconds per layer become step costs; bad ones are told by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.data import DataMissing, data_file
from coral.core.plugins import load_plugins
from coral.core.profile import catalogue
from coral.core.profile.curve import curve, isotonic
from coral.core.profile.layer_times import read_layer_times
from coral.core.profile.measured import MeasuredProfiler, MeasuredStepCost
from coral.core.profile.options import MeasuredModel, MeasuredOptions
from coral.errors import ProfileError
from coral.hookspecs.profiler import Profiler
from coral.testing.profiler import ProfilerContract
from coral.types.model import ModelShape
from coral.types.step import StepWork

HEAD = "model,gpu,phase,batch_tokens,latency_ms_per_layer"
ROWS = """\
tiny,L40S,prompt,0,0.0
tiny,L40S,prompt,256,0.9
tiny,L40S,prompt,1024,3.0
tiny,L40S,prompt,4096,12.0
tiny,L40S,decode,1,0.40
tiny,L40S,decode,8,0.42
tiny,L40S,decode,16,0.41
tiny,L40S,decode,64,0.60
tiny,L40Sx2,prompt,256,0.6
tiny,L40Sx2,prompt,1024,2.0
tiny,L40Sx2,decode,1,0.25
tiny,L40Sx2,decode,64,0.40
"""
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=16,
    hidden=2048,
    heads=32,
    kv_heads=8,
    head_dim=64,
    intermediate=8192,
    vocab=128256,
    max_positions=131072,
)


def file(folder: Path, rows: str = ROWS, head: str = HEAD) -> Path:
    path = folder / "layers.csv"
    path.write_text(f"{head}\n{rows}")
    return path


def options(path: Path, **given: object) -> MeasuredOptions:
    models = {"tiny": MeasuredModel(layers=16, hidden=2048)}
    return MeasuredOptions.model_validate({"files": [path], "models": models, **given})


def cost(path: Path, **given: object) -> MeasuredStepCost:
    found = MeasuredProfiler(options(path, **given)).step_cost(
        SHAPE, catalogue.gpu("L40S"), "torch", dtype="bfloat16", measure=None
    )
    assert isinstance(found, MeasuredStepCost)
    return found


class TestContract(ProfilerContract):
    @pytest.fixture
    def profiler(self, tmp_path: Path) -> Profiler:
        return MeasuredProfiler(options(file(tmp_path)))


class TestContractOfOnePhase(ProfilerContract):
    """Only decode was measured."""

    @pytest.fixture
    def profiler(self, tmp_path: Path) -> Profiler:
        rows = "".join(f"{line}\n" for line in ROWS.splitlines() if "decode" in line)
        return MeasuredProfiler(options(file(tmp_path, rows)))


def test_a_measured_step_is_what_was_measured(tmp_path: Path) -> None:
    """At the context it was measured at, also where one degree's points are not those of another."""
    found = cost(file(tmp_path), prompt_tokens=1024, decode_context=500)

    def layer_ms(work: StepWork, tp: int = 1) -> float:
        two = found.step_s(work, 2, first=False, last=False, tp=tp)
        return 1e3 * (two - found.step_s(work, 1, first=False, last=False, tp=tp))

    for tokens, ms in ((256, 0.9), (1024, 3.0), (4096, 12.0)):
        context = tokens * min(tokens, 1024) / 2
        assert layer_ms(StepWork(prefill_tokens=tokens, prefill_context=context)) == pytest.approx(ms)
    assert layer_ms(StepWork(decode_rows=64, decode_context=64 * 500)) == pytest.approx(0.60)
    for rows, ms in ((1, 0.40), (8, 0.42), (16, 0.41)):  # noise: without attention they fall
        assert layer_ms(StepWork(decode_rows=rows, decode_context=rows * 500)) == pytest.approx(ms, rel=0.05)
    assert layer_ms(StepWork(decode_rows=64, decode_context=64 * 500), tp=2) == pytest.approx(0.40)
    longer = StepWork(decode_rows=64, decode_context=64 * 4000)
    read = 64 * 3500 * 2 * 8 * 64 * 2 / (864e9 * 0.80)
    assert layer_ms(longer) == pytest.approx(0.60 + 1e3 * read)


def test_times_that_fall_are_pooled(tmp_path: Path) -> None:
    assert isotonic(np.array([1.0, 3.0, 2.0, 5.0]), np.ones(4)).tolist() == [1.0, 2.5, 2.5, 5.0]
    assert isotonic(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0])).tolist() == [1.75] * 3
    flat = curve([(1, 1.0), (2, 4.0), (2, 2.0), (3, 2.0)])
    assert flat(np.array([0.5, 1.0, 2.0, 3.0])).tolist() == pytest.approx([1.0, 1.0, 8 / 3, 8 / 3])
    assert flat.noise == pytest.approx(1 / 3)
    rng = np.random.default_rng(0)
    for _ in range(50):
        values, weights = rng.uniform(0, 1, 9), rng.uniform(0.1, 1, 9)
        fitted = isotonic(values, weights)
        assert (np.diff(fitted) >= 0).all()
        for _ in range(20):  # no other non-decreasing sequence is nearer
            other = np.sort(rng.uniform(0, 1, 9))
            assert (weights * (fitted - values) ** 2).sum() <= (weights * (other - values) ** 2).sum() + 1e-12


def test_beyond_what_was_measured_it_says_so_and_goes_on(tmp_path: Path) -> None:
    found = cost(file(tmp_path))
    assert found.provenance == "measured"
    assert "prompt tokens 256 to 4096 at TP 1; beyond by the last slope or the analytic one" in found.notes
    assert "decode rows 1 to 64 at TP 2; beyond by the last slope or the analytic one" in found.notes
    prompts = found.curves[1].prefill
    assert prompts(8192.0) == pytest.approx(prompts(4096.0) + 4096 * prompts.slope)
    assert prompts.slope > 0
    assert cost(file(tmp_path, "tiny,L40S,decode,4,0.5\n")).provenance == "interpolated"
    assert cost(file(tmp_path, "tiny,L40S,decode,4,0.5\n")).notes[0].startswith("no prompt tokens at TP 1")


def test_a_degree_that_was_not_measured_is_the_nearest_by_the_analytic_ratio(tmp_path: Path) -> None:
    found = cost(file(tmp_path))
    work = StepWork(decode_rows=8, decode_context=8 * 100)
    two, four = (found.step_parts(work, 16, first=False, last=False, tp=tp).compute_s for tp in (2, 4))
    alone = found.analytic
    layer = {
        t: alone.linear_s(8.0, t) + alone.efficiency.launch_s + alone.all_reduce_s(8.0, t) for t in (2, 4)
    }
    assert four / two == pytest.approx(layer[4] / layer[2], rel=0.1)


def test_what_is_given_stands_in_place_of_the_analytic(tmp_path: Path) -> None:
    work = StepWork(prefill_tokens=256, prefill_context=256 * 128, logit_rows=1)
    given = cost(file(tmp_path), overhead="2ms", embedding="1ms", logits="3ms", engine_version="1.2")
    parts = given.step_parts(work, 4, first=True, last=True)
    assert (parts.overhead_s, parts.embedding_s, parts.logits_s) == (2e-3, 1e-3, 3e-3)
    assert given.engine_version == "1.2"
    middle = given.step_parts(work, 4, first=False, last=False)
    assert (middle.embedding_s, middle.logits_s) == (0, 0)
    plain = cost(file(tmp_path))
    analytic = plain.analytic.step_parts(work, 4, first=True, last=True)
    parts = plain.step_parts(work, 4, first=True, last=True)
    assert (parts.overhead_s, parts.embedding_s) == (analytic.overhead_s, analytic.embedding_s)
    assert plain.engine_version.startswith("file ")


def test_parquet_and_csv_are_one(tmp_path: Path) -> None:
    from pyarrow import csv
    from pyarrow import parquet as pq

    path = file(tmp_path)
    pq.write_table(csv.read_csv(path), tmp_path / "layers.parquet")
    assert read_layer_times(tmp_path / "layers.parquet") == read_layer_times(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("tiny,L40S,prompt,256,nan", r"row 3: latency_ms_per_layer must be a number from 0, found 'nan'"),
        ("tiny,L40S,prompt,256,", r"row 3: latency_ms_per_layer must be a number from 0, found ''"),
        ("tiny,L40S,prompt,256,-1", r"row 3: latency_ms_per_layer must be a number from 0, found '-1'"),
        ("tiny,L40S,prompt,-256,1", r"row 3: batch_tokens must be a number from 0, found '-256'"),
        ("tiny,L40S,prompt,inf,1", r"row 3: batch_tokens must be a number"),
        ("tiny,L40S,prompt,256", r"row 3: latency_ms_per_layer must be a number from 0, found None"),
        ("tiny,L40S,prompt,256,0", r"row 3: latency_ms_per_layer is 0 for a batch of 256"),
        ("tiny,L40S,train,256,1", r"row 3: phase must be prompt, prefill or decode, found 'train'"),
    ],
)
def test_a_row_that_makes_no_sense_is_told_by_its_number(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        read_layer_times(file(tmp_path, f"tiny,L40S,decode,1,0.4\n{row}\n"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read"):
        read_layer_times(tmp_path / "none.csv")
    with pytest.raises(ProfileError, match="cannot read"):
        read_layer_times(tmp_path / "none.parquet")
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(ProfileError, match="cannot read"):
        read_layer_times(tmp_path / "bad.parquet")
    with pytest.raises(ProfileError, match="has no column phase, latency_ms_per_layer"):
        read_layer_times(file(tmp_path, "tiny,L40S,1\n", "model,gpu,batch_tokens"))
    with pytest.raises(ProfileError, match="holds no measured time"):
        read_layer_times(file(tmp_path, ""))


def test_what_the_files_do_not_hold_is_refused_with_what_they_do(tmp_path: Path) -> None:
    profiler = MeasuredProfiler(options(file(tmp_path)))
    with pytest.raises(ProfileError, match="no measured layers of 16 layers of width 2048 on 'T4'") as caught:
        profiler.step_cost(SHAPE, catalogue.gpu("T4"), "torch", dtype="float16", measure=None)
    assert "the files hold tiny on L40S" in (caught.value.mend or "")
    unnamed = MeasuredProfiler(MeasuredOptions.model_validate({"files": [file(tmp_path)]}))
    with pytest.raises(ProfileError) as caught:
        unnamed.step_cost(SHAPE, catalogue.gpu("L40S"), "torch", dtype="float16", measure=None)
    assert "say the layers and hidden size of tiny under `models`" in (caught.value.mend or "")


def test_files_are_read_when_it_is_built(tmp_path: Path) -> None:
    """Not when a step cost is asked for, where another profiler would be asked in its place."""
    with pytest.raises(ProfileError, match="cannot read"):
        MeasuredProfiler(options(tmp_path / "none.csv"))
    strange = {"models": {"tyni": {"layers": 16, "hidden": 2048}}}
    with pytest.raises(ProfileError, match="no file of measured layers names tyni") as caught:
        MeasuredProfiler(options(file(tmp_path), **strange))
    assert "of tiny" in (caught.value.mend or "")


def test_a_degree_is_told_from_the_name_of_a_gpu(tmp_path: Path) -> None:
    rows = "".join(f"tiny,{name},decode,1,0.4\n" for name in ("l4", "l4x2", "rtx3090", "rtx3090x16", "x4"))
    found = [(one.gpu, one.tp) for one in read_layer_times(file(tmp_path, rows))]
    assert found == [("l4", 1), ("l4", 2), ("rtx3090", 1), ("rtx3090", 16), ("x4", 1)]


def test_the_profiler_is_built_in() -> None:
    registry = load_plugins()
    assert registry.options_model("profiler", "measured") is MeasuredOptions


def test_helix_layers_come_back_as_they_were_measured() -> None:
    """Published layers of four GPUs and tensor parallel nodes: every time within its rounding and noise."""
    try:
        path = data_file("helix_profiles/helix_bs2time.csv")
    except DataMissing as missing:
        pytest.skip(str(missing))
    told = MeasuredOptions.model_validate(
        {
            "files": [path],
            "models": {
                "llama2_70b": {"layers": 80, "hidden": 8192},
                "llama1_30b": {"layers": 60, "hidden": 6656},
            },
            "gpus": {"a100": "A100-40GB", "v100": "V100", "l4": "L4", "t4": "T4"},
        }
    )
    shape = ModelShape(
        architecture="LlamaForCausalLM",
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        head_dim=128,
        intermediate=28672,
        vocab=32000,
        max_positions=4096,
        weight_dtype="float16",
    )
    profiler = MeasuredProfiler(told)
    errors = []
    for name, gpu in told.gpus.items():
        found = profiler.step_cost(shape, catalogue.gpu(gpu), "vllm", dtype="float16", measure=None)
        for one in read_layer_times(path):
            if one.model != "llama2_70b" or one.gpu != name:
                continue
            if one.phase == "decode":
                work = StepWork(decode_rows=one.tokens, decode_context=one.tokens * 1024)
            else:
                each = min(one.tokens, 1024)
                work = StepWork(prefill_tokens=one.tokens, prefill_context=one.tokens * each / 2)
            two, alone = (found.step_s(work, n, first=False, last=False, tp=one.tp) for n in (2, 1))
            errors.append(abs((two - alone) / one.seconds - 1))
    assert len(errors) > 500
    assert np.median(errors) < 0.005
    assert np.quantile(errors, 0.95) < 0.15
    assert found.error >= 0.05


def test_a_file_that_is_no_csv_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("model,gpu,phase,batch_tokens,latency_ms_per_layer\n" + "m" * 200_000 + ",g,decode,1,1\n")
    with pytest.raises(ProfileError, match=r"wide\.csv"):
        read_layer_times(path)


def test_a_file_as_spreadsheets_write_it(tmp_path: Path) -> None:
    path = tmp_path / "marked.csv"
    path.write_bytes(b"\xef\xbb\xbfmodel,gpu,phase,batch_tokens,latency_ms_per_layer\r\nm,g,decode,1,2\r\n")
    (one,) = read_layer_times(path)
    assert (one.model, one.seconds) == ("m", 2e-3)
