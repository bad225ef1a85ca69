from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coral.cli.main import main
from coral.core.serve.joining.token import Token

CONFIG = {
    "models": [
        {
            "name": "m",
            "source": "./m",
            "slo": {"prefill": "1s", "decode": "1s"},
            "demand": {"requests_per_s": 1, "input_tokens": 1, "output_tokens": 1},
        }
    ],
    "serve": {"listen": "0.0.0.0:7000", "advertise": "coral.example:7100"},
    "state": {"folder": "./state"},
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "coral.yaml"
    path.write_text(json.dumps(CONFIG))
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["keys", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_from_a_token_to_its_end(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "-c", str(config), "--json")
    made = said(capsys, "token", "-c", str(config), "--machine", "gpu-1", "--expires", "10m", "--json")
    token = Token.parse(made["token"])
    assert (token.address, token.machine, token.server) == (
        "coral.example:7100",
        "gpu-1",
        shown["public_key"],
    )
    assert shown["address"] == "coral.example:7100"
    (kept,) = said(capsys, "list", "-c", str(config), "--json")["tokens"]
    assert kept["name"] == "gpu-1"
    assert main(["keys", "list", "-c", str(config)]) == 0
    assert "gpu-1" in capsys.readouterr().out
    assert main(["keys", "revoke", "gpu-1", "-c", str(config)]) == 0
    assert "revoked: a token for gpu-1" in capsys.readouterr().out
    assert said(capsys, "list", "-c", str(config), "--json") == {"machines": [], "tokens": []}
    assert main(["keys", "revoke", "gpu-1", "-c", str(config)]) == 2


def test_a_token_alone_is_what_a_script_reads(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "token", "-c", str(config)]) == 0
    assert Token.parse(capsys.readouterr().out).machine == ""


@pytest.mark.parametrize("expires", ["0s", "-1s", "soon", ""])
def test_a_token_is_valid_for_some_time(
    config: Path, expires: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "token", "-c", str(config), f"--expires={expires}"]) == 2
    assert "--expires" in capsys.readouterr().err


def test_nobody_can_join_where_nothing_listens(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(json.dumps({**CONFIG, "serve": {}}))
    assert main(["keys", "token", "-c", str(config)]) == 2
    assert "serve.listen" in capsys.readouterr().err
    assert main(["keys", "-c", str(config)]) == 0
    assert "cannot join" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("serve", "told"),
    [
        ({"listen": "0.0.0.0:7000"}, "advertise"),
        ({"listen": "[::]:7000"}, "advertise"),
        ({"advertise": "10.0.0.1:7000"}, "listen"),
        ({"listen": "10.0.0.1:0"}, "port"),
        ({"listen": "10.0.0.1:65535"}, "port"),
        ({"listen": "10.0.0.1"}, "host:port"),
    ],
)
def test_an_address_that_machines_cannot_reach_is_refused(
    config: Path, serve: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps({**CONFIG, "serve": serve}))
    assert main(["config", "check", "-c", str(config)]) == 2
    assert told in "".join(capsys.readouterr())
