import io
import sys

import pytest

from heliograph.cli.main import main


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wire", "decode", b"TCRN \0\x1e".hex()]) == 0
    out = capsys.readouterr().out
    assert out.startswith("NTF command, version 3\n")
    assert "minutes" in out


@pytest.mark.parametrize("text", ["50 49\n4e47\n", "0x50494e47", "50:49:4e:47"])
def test_standard_input(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["wire", "decode"]) == 0
    assert "PING" in capsys.readouterr().out


def test_handshake(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--protocol", "smp", "--handshake", "service"]
    assert main(["wire", "decode", *options, b"ESESSION".hex()]) == 0
    assert "SESSION" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["xyz"], "not hex"),
        ([""], "nothing to decode"),
        (["00"], "cannot be read"),
        (["--handshake", "client", "00"], "1 bytes"),
    ],
)
def test_clear_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wire", "decode", *arguments]) == 1
    assert message in capsys.readouterr().err
