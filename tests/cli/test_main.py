import subprocess
import sys

import pytest

from heliograph import __version__
from heliograph.cli import main as cli


def test_help_lists_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    for command in ("wire", "demo"):
        assert command in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--version"])
    assert exit_info.value.code == 0
    assert __version__ in capsys.readouterr().out


def test_errors_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["no-such-command"])
    assert exit_info.value.code == 2
    assert "Try 'heliograph --help'" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_interruptions(
    error: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr("heliograph.cli.wire.run_decode", fail)
    monkeypatch.setattr(sys, "stderr", open("/dev/null", "w"))  # noqa: SIM115
    assert cli.main(["wire", "decode", "00"]) == code
    sys.stderr.close()


def test_demo_turns_a_message_into_a_push() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from heliograph.cli.main import main; main(['demo'])"],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert "the token is ACTIVE" in done.stdout
    assert "the subscription is ACTIVE" in done.stdout
    assert "(the very one)" in done.stdout
    assert "Meet at noon" in done.stdout
    assert done.stderr == ""
