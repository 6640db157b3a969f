"""Commands on a directory that this user may not enter end with one line, not with a traceback."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.cli import main as cli

NOBODY = 65534
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
COMMANDS = (
    *(("up", "-d"), ("down",), ("status",), ("logs",), ("page",)),
    *(
        (part, action)
        for part in ("smp", "ntf")
        for action in ("init", "start", "address", "check-config", "rotate-certificate")
    ),
    *(("smp", "backup", "copy"), ("ntf", "backup", "copy"), ("ntf", "trace", "AAAA")),
    *(("ntf", "export", "log"), ("ntf", "import", "log"), ("ntf", "vapid-key"), ("ntf", "probe")),
    ("doctor", "--offline"),
)
RUN_ALL = """
import contextlib, io, json, sys, traceback
from heliograph.cli.main import main
results = []
for command in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(command)
        except BaseException:
            code = traceback.format_exc()
    results.append([code, out.getvalue()])
print(json.dumps(results))
"""


def drop_privilege() -> None:
    """Let the kernel check permissions of files for root, too."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "closed"
    directory.mkdir()
    (directory / "config.toml").touch()
    if os.geteuid() == 0:
        directory.chmod(0o700)
        os.chown(directory, NOBODY, NOBODY)
    else:
        directory.chmod(0)
    yield directory
    directory.chmod(0o700)


def test_one_line(closed: Path) -> None:
    commands = [
        [*command, "--dir", str(directory)]
        for command in COMMANDS
        for directory in (closed, closed / "router")
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=drop_privilege,
        cwd=closed.parent,
    )
    for command, (code, said) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 1, (command, code, said)
        assert "Permission denied" in said, (command, said)
        assert str(closed) in said, (command, said)
        assert f"/{command[0]}/config.toml" not in said, "the directory that was given"
        assert "Traceback" not in said, command
        if command[0] != "doctor":
            assert len(said.strip().splitlines()) == 1, (command, said)


@pytest.mark.parametrize("part", ["smp", "ntf"])
def test_directory_of_a_system(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """`--dir` may be a whole system's: the router's is inside."""
    assert cli.main([part, "init", "--dir", str(tmp_path / part)]) == 0
    (tmp_path / "config.toml").touch()
    capsys.readouterr()
    assert cli.main([part, "address", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{part}://")
