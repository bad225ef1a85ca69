"""The library on disk: what it answers, when it is built anew, and what damage and interruption do to it."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coral.core.generate import build as building
from coral.core.generate import job as jobs
from coral.core.generate.library import open_library
from coral.core.generate.search import Search, search
from coral.core.generate.templates import Found
from coral.core.profile.throughput import RULES_VERSION
from coral.errors import CoralError, LibraryError
from tests.core.generate import library_case as case


def contents(folder: Path) -> dict[str, int]:
    """A file that is written again is another one."""
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.name != "manifest.json"}


def test_templates_are_whole_placements(tmp_path: Path) -> None:
    library = case.build(tmp_path, case.model(phases=("prefill", "decode")))
    for phase in ("prefill", "decode"):
        table = library.table("m", phase)
        assert len(table.throughput) > 3
        assert table.usage.shape == (len(table.throughput), len(table.node_types))
        ids = set()
        for row in range(len(table.throughput)):
            template = library.template("m", phase, row)
            ids.add(template.id)
            stages = template.placement.stages
            assert [stage.first_layer for stage in stages] == [0, *(s.end_layer for s in stages[:-1])]
            assert stages[-1].end_layer == 12
            assert template.throughput == pytest.approx(template.placement.throughput, rel=1e-12)
            assert [template.nodes.get(kind, 0) for kind in table.node_types] == table.usage[row].tolist()
            assert template.max_concurrency > 0
        assert len(ids) == len(table.throughput)


def test_a_model_far_smaller_than_every_node_is_served_on_the_smallest(tmp_path: Path) -> None:
    table = case.build(tmp_path, small_mib=100, memory_ratio=1e-3).table("m", "mixed")
    (small,) = [column for column, kind in enumerate(table.node_types) if kind.gpu == "small"]
    assert table.usage.sum(axis=1).tolist() == [1]
    assert table.usage[0, small] == 1


def test_every_stage_fits_its_nodes_memory(tmp_path: Path) -> None:
    """Weights (tied embedding once where first and last meet), KV in flight and fixed bytes."""
    library = case.build(tmp_path)
    devices = case.gpus()
    table = library.table("m", "mixed")
    uneven = shorter = 0
    for row in range(len(table.throughput)):
        template = library.template("m", "mixed", row)
        stages = template.placement.stages
        uneven += len({stage.layers for stage in stages}) > 1
        residence_s = template.max_concurrency / template.throughput
        shorter += residence_s < 2.0 + 40 * 0.2 - 1e-9
        assert residence_s <= 2.0 + 40 * 0.2 + 1e-9
        for number, stage in enumerate(stages):
            first, last = number == 0, number == len(stages) - 1
            for node in stage.nodes:
                gpu = devices[node.node_type.gpu]
                cost = case.cost(case.model(), gpu)
                weights = cost.weight_bytes(stage.layers, first=first, last=last, tied=True)
                # 60 + 40 tokens in blocks of 16; a request stays at most prefill SLO + 40 tokens' decode SLO,
                # and less where the template aims at a shorter latency.
                in_flight = node.throughput * residence_s
                kv = in_flight * 112 * stage.layers * cost.kv_token_bytes
                assert weights + kv + cost.fixed_bytes <= gpu.memory_bytes * (1 + 1e-9)
    assert uneven > 0
    assert shorter > 0


def test_nothing_is_rebuilt_where_nothing_changed(tmp_path: Path) -> None:
    case.build(tmp_path)
    before = contents(tmp_path)
    case.build(tmp_path)
    case.build(tmp_path, case.model(requests_per_s=9.0))  # demand is the planner's, not the library's
    assert contents(tmp_path) == before


def test_only_what_changed_is_rebuilt(tmp_path: Path) -> None:
    first = case.build(tmp_path, case.model("a"), case.model("b"))
    second = case.build(tmp_path, case.model("a"), case.model("b", decode_s=0.3))
    a, b = "a/mixed", "b/mixed"
    assert first.manifest.entries[a] == second.manifest.entries[a]
    assert first.manifest.entries[b].hash != second.manifest.entries[b].hash
    assert second.entry("b", "mixed").inputs["model"]["slo"]["decode_s"] == 0.3


@pytest.mark.parametrize("change", [{"small_mib": 61}, {"max_nodes": 2}])
def test_hardware_and_options_are_part_of_the_hash(tmp_path: Path, change: dict[str, int]) -> None:
    before = case.build(tmp_path).entry("m", "mixed").hash
    assert case.build(tmp_path, **change).entry("m", "mixed").hash != before  # type: ignore[arg-type]


def test_rules_version_is_part_of_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = case.build(tmp_path).entry("m", "mixed").hash
    monkeypatch.setattr(jobs, "RULES_VERSION", RULES_VERSION + 1)
    assert case.build(tmp_path).entry("m", "mixed").hash != before


def test_a_build_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []

    def breaks(task: Search, progress: object = None) -> Found:
        solved.append(1)
        if len(solved) == 2:
            raise KeyboardInterrupt
        return search(task)

    monkeypatch.setattr(building, "search", breaks)
    models = (case.model("a"), case.model("b", decode_s=0.3))
    with pytest.raises(KeyboardInterrupt):
        case.build(tmp_path, *models)
    with pytest.raises(LibraryError, match="no template library"):
        open_library(tmp_path)
    case.build(tmp_path, *models)
    assert len(solved) == 3  # a, b broken off, b


def test_an_interrupted_rebuild_leaves_the_old_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = case.build(tmp_path)

    def breaks(task: Search, progress: object = None) -> Found:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "search", breaks)
    with pytest.raises(KeyboardInterrupt):
        case.build(tmp_path, case.model(decode_s=0.3))
    again = open_library(tmp_path)
    assert again.manifest == old.manifest
    assert again.template("m", "mixed", 0) == old.template("m", "mixed", 0)


def test_damage_is_named_and_mended(tmp_path: Path) -> None:
    whole = case.build(tmp_path)
    throughput = whole.table("m", "mixed").throughput
    rows = next(tmp_path.glob("*.parquet"))
    rows.write_bytes(rows.read_bytes()[:-4] + b"xxxx")
    with pytest.raises(LibraryError, match=rows.name):
        open_library(tmp_path).table("m", "mixed")
    mended = case.build(tmp_path)
    assert np.array_equal(mended.table("m", "mixed").throughput, throughput)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="no template library"):
        open_library(tmp_path)
    library = case.build(tmp_path)
    with pytest.raises(LibraryError, match=r"no decode templates of model 'm'.*holds m/mixed"):
        library.table("m", "decode")
    with pytest.raises(LibraryError, match="no row 1000000"):
        library.template("m", "mixed", 1_000_000)


def test_progress_counts_every_combination(tmp_path: Path) -> None:
    told: list[tuple[float, float, str]] = []
    library = case.build(tmp_path, progress=lambda *report: told.append(report))
    combinations = library.entry("m", "mixed").combinations
    assert told[-1][:2] == (combinations, combinations)
    done = [report[0] for report in told]
    assert done == sorted(done)


def test_an_executor_gives_the_same_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "WORTH_SHARING", 0)
    models = (case.model("a"), case.model("b", decode_s=0.3))
    here = case.build(tmp_path / "here", *models)
    with ThreadPoolExecutor(2) as executor:
        there = building.build_library(
            models,
            case.KINDS,
            case.gpus(),
            case.cost,
            case.capabilities,
            building.GenerateOptions(max_nodes=3, memory_ratio=1e6),
            building.Hop(latency_s=1e-3, bytes_per_s=1e9),
            tmp_path / "there",
            executor=executor,
        )
    for name in ("a", "b"):
        assert np.array_equal(here.table(name, "mixed").usage, there.table(name, "mixed").usage)
        assert here.template(name, "mixed", 3) == there.template(name, "mixed", 3)


def test_a_worker_that_dies_is_an_error_with_a_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel kills it where memory runs out."""

    class Dying(ThreadPoolExecutor):
        def submit(self, *_: object, **__: object) -> Future[Found]:  # type: ignore[override]
            future: Future[Found] = Future()
            future.set_exception(BrokenExecutor("a process was terminated abruptly"))
            return future

    monkeypatch.setattr(building, "WORTH_SHARING", 0)
    with Dying(1) as pool, pytest.raises(LibraryError, match="a worker process died") as caught:
        case.build(tmp_path, case.model(phases=("prefill", "decode")), executor=pool)
    assert "generate.max_nodes" in str(caught.value.mend)


@pytest.mark.parametrize("damage", ["cut", "empty", "no sums", "folder"])
def test_a_damaged_store_is_built_anew(tmp_path: Path, damage: str) -> None:
    before = case.build(tmp_path).table("m", "mixed")
    (entry,) = (path for path in tmp_path.glob("*.json") if path.name != "manifest.json")
    if damage == "folder":
        entry.unlink()
        entry.mkdir()
        with pytest.raises(CoralError, match="cannot write"):
            case.build(tmp_path)
        return
    content = entry.read_bytes()
    whole = msgspec.json.decode(content)
    changed = {"cut": content[:50], "empty": b"", "no sums": msgspec.json.encode(whole | {"sha256": {}})}
    entry.write_bytes(changed[damage])
    after = case.build(tmp_path).table("m", "mixed")
    assert np.array_equal(before.throughput, after.throughput)
    assert entry.read_bytes() == content


@pytest.mark.parametrize("part", ["manifest.json", "*.parquet"])
def test_what_cannot_be_read_is_named(tmp_path: Path, part: str) -> None:
    case.build(tmp_path)
    (path,) = tmp_path.glob(part)
    path.unlink()
    path.mkdir()
    with pytest.raises(LibraryError, match=r"cannot read .*: Is a directory"):
        open_library(tmp_path).table("m", "mixed")


def test_a_state_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoralError, match="cannot write") as caught:
        case.build(tmp_path / "file" / "libraries")
    assert "state.folder" in str(caught.value.mend)
