from __future__ import annotations

import socket

import pytest

from coral.cli.main import main


def test_where_nothing_serves_the_next_step_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["status", "--url", f"http://127.0.0.1:{port}"]) == 1
    said = capsys.readouterr().err
    assert f"nothing answers at http://127.0.0.1:{port}" in said
    assert "--url" in said


def test_only_http_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "file:///etc/passwd"]) == 1
    assert "no HTTP address" in capsys.readouterr().err
