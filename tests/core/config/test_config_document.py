from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coral.core.config.document import parse_yaml, read_document
from coral.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.5", 1.5),
        (".5", 0.5),
        ("12", 12),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("-3", -3),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("1800ms", "1800ms"),
        ("'1'", "1"),
        ("[a, {b: 1}]", ["a", {"b": 1}]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    assert parse_yaml(text).tree == value


def test_lines_are_known() -> None:
    document = parse_yaml("models:\n  - name: a\n    slo: {prefill: 1s}\n  - name: b\n")
    assert document.lines[("models", 0, "slo", "prefill")] == 3
    assert document.lines[("models", 1, "name")] == 4


def test_keys_given_twice_are_faults() -> None:
    document = parse_yaml("plan:\n  every: 6m\n  every: 3m\nserve: {}\nserve: {}\n")
    assert sorted((fault.path, fault.message) for fault in document.faults) == [
        ("plan.every", "given twice, in line 2 and in line 3"),
        ("serve", "given twice, in line 4 and in line 5"),
    ]


def test_anchors_and_merge_keys() -> None:
    tree = parse_yaml("slo: &slo {prefill: 1s, decode: 2s}\na: {<<: *slo, decode: 3s}\nb: *slo\n").tree
    assert tree["a"] == {"prefill": "1s", "decode": "3s"}
    assert tree["b"] == tree["slo"]


def test_an_alias_inside_what_it_names_is_a_fault() -> None:
    with pytest.raises(ConfigError, match="alias"):
        parse_yaml("a: &a [1, *a]")


@pytest.mark.parametrize(
    "text", ["a: [1, 2", "a: b: c", "a: 1\n\tb: 2", "a: !!python/object:os.system x", "a: *nobody"]
)
def test_malformed_yaml_names_line_and_column(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "coral.yaml")
    (fault,) = caught.value.faults
    assert "line " in fault.path
    assert "column " in fault.path
    assert caught.value.exit_code == 2


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "coral.toml"
    path.write_text('[plan]\nevery = "3m"\n[[models]]\nname = "a"\n')
    document = read_document(path)
    assert document.tree == {"plan": {"every": "3m"}, "models": [{"name": "a"}]}
    path.write_text("[plan\n")
    with pytest.raises(ConfigError, match=r"not TOML.*line 1"):
        read_document(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_document(tmp_path)
    (tmp_path / "a.ini").write_text("")
    with pytest.raises(ConfigError, match=r"unknown format \.ini"):
        read_document(tmp_path / "a.ini")
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_document(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: !!int abc", "line 1, column 4: is not YAML: 'abc' is no int"),
        ("a: !!bool maybe", "'maybe' is no bool"),
        ("a: !!timestamp x", "'x' is no timestamp"),
        ("a: " + "9" * 5000, "is no int"),
        ("!!int x: 1", "'x' is no int"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: \0", "is not YAML"),
    ],
)
def test_malformed_scalars_and_depth_are_faults(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text)
    assert problem in str(caught.value.faults[0])


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        parse_yaml("\n".join(lines))


def test_deep_toml_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_document(path)
