import io
import sys

import pytest

from heliograph.cli.main import main
from heliograph.wire.primitives import pad


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wire", "decode", b"TCRN \0\x1e".hex()]) == 0
    out = capsys.readouterr().out
    assert out.startswith("NTF command, version 3\n")
    assert "minutes" in out


@pytest.mark.parametrize("text", ["50 49\n4e47\n", "0x50494e47", "50:49:4e:47"])
def test_standard_input(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
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
        (["00"], "1 bytes: nothing known: tried as block"),
        (["--version", "0", "00"], "no such version"),
        (["--protocol", "ntf", "--version", "4", "00"], "no such version"),
        (["--protocol", "smp", "--version", "5", "00"], "no such version"),
        (["--handshake", "client", "00"], "1 bytes"),
        (["ff" * 512], "512 bytes (nor as handshake): cannot be explained as NTF block"),
    ],
)
def test_clear_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wire", "decode", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_what_a_peer_sent_never_reaches_the_terminal_raw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (b"ERR STORE \n\x1b[31m", b"ERR PROXY BROKER RESPONSE \x02\xff\xfe"):
        assert main(["wire", "decode", command.hex()]) == 0
        out = capsys.readouterr().out
        assert "response" in out
        assert "\x1b" not in out
        assert out.isascii()


def test_binary_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert main(["wire", "decode"]) == 1
    assert "not hex" in capsys.readouterr().err


def test_handshake_of_a_whole_block_is_recognized_by_its_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    block = pad(b"\x00\x06\x00\x06\x00", 16384)
    assert main(["wire", "decode", "--handshake", "server", block.hex()]) == 0
    assert "SMP server handshake" in capsys.readouterr().out


def test_malformed_command_in_a_sound_frame(capsys: pytest.CaptureFixture[str]) -> None:
    content = b"\1" + b"\0\x09" + b"\0\1c\0HELLO"
    assert main(["wire", "decode", content.hex()]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("malformed NTF content, version 3\n")
    assert "correlation ID  'c'" in out
    assert "'HELLO', malformed" in out
    assert "cannot be explained as NTF content" in err


def test_handshake_without_being_asked(capsys: pytest.CaptureFixture[str]) -> None:
    block = pad(b"\x00\x06\x00\x06\x00", 16384)
    assert main(["wire", "decode", block.hex()]) == 0
    assert "SMP server handshake" in capsys.readouterr().out
