import subprocess
import sys
from pathlib import Path

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


def test_errors_name_the_command_that_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["device", "verify", "--dir", "alice", "abc"])
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("heliograph device verify: unrecognized arguments: abc\n")
    assert "Try 'heliograph device verify --help'" in said


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_finds_no_space() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "heliograph", "wire", "decode", "50494e47"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "heliograph: no space left on the device: free some\n"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo_turns_messages_into_pushes(tmp_path: Path) -> None:
    """The pipeline's part of it is in tests/pipeline, which has a Spark."""
    done = subprocess.run(
        [sys.executable, "-m", "heliograph", "demo", "--no-pipeline", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The token is ACTIVE") == 2
    assert "| Signal received. Meet at noon?" in done.stdout
    assert "| At noon, by the old tower." in done.stdout
    assert "kill -9" in done.stdout
    assert "| Message 6 of 6" in done.stdout


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: heliograph {command}")


@pytest.mark.parametrize("command", ["report", "backfill"])
def test_days_that_are_no_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    days = ["--from", "2026-02-02", "--to", "2026-01-01"]
    assert cli.main(["pipeline", command, "--dir", str(tmp_path), *days]) == 1
    assert "--from 2026-02-02 is after --to 2026-01-01" in capsys.readouterr().err
