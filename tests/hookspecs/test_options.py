from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from coral.errors import UsageError
from coral.hookspecs.options import Bytes, Duration, LocalPath, Options, Rate, Secret, near_miss


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("1800ms", 1.8),
        ("100ms", 0.1),
        ("6m", 360.0),
        ("1h", 3600.0),
        ("30s", 30.0),
        ("250us", 0.00025),
        ("1h30m", 5400.0),
        ("2d", 172800.0),
        ("1.5 h", 5400.0),
        ("30", 30.0),
        (12, 12.0),
        (0.5, 0.5),
        (0, 0.0),
    ],
)
def test_durations(given: Any, seconds: float) -> None:
    assert TypeAdapter(Duration).validate_python(given) == seconds


@pytest.mark.parametrize(
    "given", ["", "soon", "3 weeks", "-1s", -1, "ms", True, None, [], float("nan"), float("inf")]
)
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(given)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("300MB", 300_000_000),
        ("1.5GiB", 3 * 2**29),
        ("10kB", 10_000),
        ("512", 512),
        (7, 7),
    ],
)
def test_sizes(given: Any, size: int) -> None:
    assert TypeAdapter(Bytes).validate_python(given) == size


@pytest.mark.parametrize("given", ["24 gigs", "1GIB", -1, "-1GB", True, 1.5, None])
def test_what_is_no_size(given: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Bytes).validate_python(given)


@pytest.mark.parametrize(
    ("given", "rate"), [("12.5GB/s", 12.5e9), ("100Gbit/s", 12.5e9), ("1MiB/s", 2**20), (5, 5.0)]
)
def test_rates(given: Any, rate: float) -> None:
    assert TypeAdapter(Rate).validate_python(given) == rate


@pytest.mark.parametrize("given", ["12.5GB", "fast", "1GB/h", True, -1])
def test_what_is_no_rate(given: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Rate).validate_python(given)


def test_paths_count_from_the_config(tmp_path: Path) -> None:
    adapter: TypeAdapter[Path] = TypeAdapter(LocalPath)
    assert adapter.validate_python("a/../b", context={"folder": tmp_path}) == tmp_path / "b"
    assert adapter.validate_python("/x/y", context={"folder": tmp_path}) == Path("/x/y")
    assert adapter.validate_python("~/y", context={"folder": tmp_path}) == Path.home() / "y"


class Holder(Options):
    token: Secret | None = None
    regions: tuple[str, ...] = ()


def test_a_secret_is_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_TEST_SECRET", "hush")
    (tmp_path / "key").write_text("hush too\n")
    by_name = Holder.model_validate({"token": {"env": "CORAL_TEST_SECRET"}})
    by_file = Holder.model_validate({"token": {"file": "key"}}, context={"folder": tmp_path})
    assert by_name.token is not None
    assert by_file.token is not None
    assert (by_name.token.reveal(), by_file.token.reveal()) == ("hush", "hush too")
    for shown in (
        repr(by_name),
        str(by_name),
        by_name.model_dump_json(),
        repr(by_file),
        by_file.model_dump_json(),
    ):
        assert "hush" not in shown
    assert Holder.model_validate(by_name.model_dump(mode="json")) == by_name


def test_a_secret_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORAL_TEST_SECRET", raising=False)
    with pytest.raises(UsageError, match="CORAL_TEST_SECRET is not set"):
        Secret(env="CORAL_TEST_SECRET").reveal()
    with pytest.raises(UsageError, match="nothing"):
        Secret(file=tmp_path / "nothing").reveal()


@pytest.mark.parametrize("given", ["sk-letmein", {"env": "A", "file": "b"}, {}, {"value": "sk-letmein"}, 7])
def test_a_secret_itself_is_refused_and_not_echoed(given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Holder.model_validate({"token": given})
    assert "by reference" in str(caught.value)
    assert "letmein" not in str(caught.value)


def test_unknown_keys_have_a_near_miss() -> None:
    with pytest.raises(ValidationError, match=r"did you mean regions\?"):
        Holder.model_validate({"regoins": []})
    with pytest.raises(ValidationError, match="known: regions, token"):
        Holder.model_validate({"zzz": 1})
    assert near_miss("prefil", ["prefill", "decode"]) == "prefill"
    assert near_miss("zzz", ["prefill", "decode"]) is None


@pytest.mark.parametrize("size", ["1e400B", "1e300PiB"])
def test_a_size_beyond_numbers_is_no_size(size: str) -> None:
    from pydantic import TypeAdapter

    with pytest.raises(ValidationError, match="not a size"):
        TypeAdapter(Bytes).validate_python(size)
