"""Commands on files that this user may not read end with one line that says what to do."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.cli import main as cli
from heliograph.system.install import create

NOBODY = 65534
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
PIPELINE = (
    *(("run", "--every", "900", "--journal", "."), ("once", "--journal", "."), ("report",)),
    *(("status",), ("objectives",), ("compact",), ("expire",), ("retire", "A"), ("decide",)),
    *(("requeue", "--journal", "."), ("signer",), ("plan",), ("submit", "once")),
    ("backfill", "--from", "2026-01-01", "--to", "2026-01-02"),
)
COMMANDS = (
    *(("up", "-d"), ("down",), ("status",), ("logs",), ("page",)),
    *(
        (part, action)
        for part in ("smp", "ntf")
        for action in ("init", "start", "address", "check-config", "rotate-certificate")
    ),
    *(("smp", "backup", "copy"), ("ntf", "backup", "copy"), ("ntf", "trace", "AAAA")),
    *(("ntf", "export", "log"), ("ntf", "import", "log"), ("ntf", "vapid-key"), ("ntf", "probe")),
    *(
        ("ntf", "actions", *words)
        for words in (("list",), ("show", "A"), ("apply",), ("undo", "A"))
    ),
    *(("pipeline", *words) for words in PIPELINE),
    *(("fleet", word, "A") for word in ("status", "pause", "resume", "abort")),
    ("fleet", "wake", "--where", "true", "--rate", "1/s"),
    ("doctor", "--offline"),
)
ADVICE = "run this as nobody, or as root" if os.geteuid() == 0 else "run chmod u+rwX "
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
    close(directory)
    yield directory
    directory.chmod(0o700)


def run_all(commands: list[list[str]], cwd: Path) -> list[tuple[object, str]]:
    """Return code and output of each command, run without the right to read all files."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=drop_privilege,
        cwd=cwd,
    )
    return [(code, said) for code, said in json.loads(done.stdout)]


def close(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o700)
    else:
        path.chmod(0)


def test_one_line(closed: Path) -> None:
    commands = [
        [*command, "--dir", str(directory)]
        for command in COMMANDS
        for directory in (closed, closed / "router")
    ]
    for command, (code, said) in zip(commands, run_all(commands, closed.parent), strict=True):
        assert code == 1, (command, code, said)
        assert "Permission denied" in said, (command, said)
        assert str(closed) in said, (command, said)
        assert "/smp/" not in said, "the directory that was given"
        assert ADVICE in said, (command, said)
        assert said.count(ADVICE) == 1, (command, said)
        assert "Traceback" not in said, command
        if command[0] != "doctor":
            assert len(said.strip().splitlines()) == 1, (command, said)


def test_journals(closed: Path) -> None:
    """Commands that read or write a journal, given one that this user may not enter."""
    pipeline = ("--dir", str(closed.parent / "pipeline"), "--journal", str(closed))
    token = closed.parent / "token"
    token.write_text("secret-secret-secret-secret-secret")
    commands = [
        ["journal", "show", str(closed)],
        ["journal", "count", str(closed)],
        ["journal", "ship", str(closed), "--to", "copy"],
        ["journal", "collect", str(closed), "--token-file", str(token), "--listen", "127.0.0.1:0"],
        ["pipeline", "status", *pipeline],
        ["pipeline", "run", "--every", "900", *pipeline],
    ]
    for command, (code, said) in zip(commands, run_all(commands, closed.parent), strict=True):
        assert (code, said.count("\n")) == (1, 1), (command, code, said)
        assert str(closed) in said, (command, said)
        assert f"Permission denied: {ADVICE}" in said, (command, said)


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    commands = [[*words, "--dir", str(file)] for words in COMMANDS]
    for command, (code, said) in zip(commands, run_all(commands, tmp_path), strict=True):
        assert code == 1, (command, code, said)
        assert f"{file} is not a directory" in said, (command, said)
        assert command[0] == "doctor" or said.count("\n") == 1, (command, said)
    assert file.read_text() == "text"


def test_a_pipeline_that_may_not_write(tmp_path: Path) -> None:
    """Where it may read: it is said at the start, and not when the first segment comes."""
    directory = tmp_path / "pipeline"
    directory.mkdir()
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    directory.chmod(0o755 if os.geteuid() == 0 else 0o555)
    words = ("--dir", str(directory), "--journal", str(tmp_path))
    commands = [["pipeline", "run", "--every", "900", *words], ["pipeline", "once", *words]]
    try:
        for command, (code, said) in zip(commands, run_all(commands, tmp_path), strict=True):
            assert (code, said.count("\n")) == (1, 1), (command, said)
            assert f"{directory}: cannot be written: Permission denied: {ADVICE}" in said
    finally:
        directory.chmod(0o700)


def test_a_pipeline_that_is_not_there(tmp_path: Path) -> None:
    place = ("--dir", str(tmp_path / "nowhere"))
    wake = ("wake", "--where", "true", "--rate", "1/s")
    commands = [
        *(["pipeline", word, *place] for word in ("status", "objectives", "report", "compact")),
        *(["fleet", *words, *place] for words in (("status",), wake)),
    ]
    for command, (code, said) in zip(commands, run_all(commands, tmp_path), strict=True):
        assert (code, said.count("\n")) == (1, 1), (command, said)
        assert f"{tmp_path / 'nowhere'}" in said, (command, said)
        assert "heliograph pipeline once" in said, (command, said)
    assert not (tmp_path / "nowhere").exists()


def test_a_closed_part_of_an_open_directory(tmp_path: Path) -> None:
    """A lock, logs or a backup that this user may not read is not one that is missing."""
    root = tmp_path / "system"
    for name in ("smp", "ntf", "logs", "backup"):
        (root / name).mkdir(parents=True)
    (root / "config.toml").touch()
    (root / "lock").write_text("1\n")
    places = [root / "lock", root / "logs", root / "smp", root / "ntf", root / "backup"]
    for each in places:
        close(each)
    lock, logs, smp, ntf, backup = [str(place) for place in places]
    new = str(tmp_path / "new")
    expected = {
        (("status", "--dir", str(root)), lock),
        (("down", "--dir", str(root)), lock),
        (("logs", "--dir", str(root)), logs),
        (("smp", "start", "--dir", str(root)), smp),
        (("ntf", "address", "--dir", str(root)), ntf),
        (("restore", backup, "--dir", new), f"{backup}/manifest.json"),
        (("restore", backup, "--check"), f"{backup}/manifest.json"),
    }
    try:
        results = run_all([[*command] for command, _ in expected], tmp_path)
        for (command, place), (code, said) in zip(expected, results, strict=True):
            assert code == 1, (command, said)
            assert f"{place}: Permission denied: {ADVICE}" in said, (command, said)
    finally:
        for each in places:
            each.chmod(0o700)


def test_a_backup_is_whole_or_none(tmp_path: Path) -> None:
    root = tmp_path / "system"
    create(root, any_port=True)
    close(root / "journal")
    [(code, said)] = run_all([["backup", "copy", "--dir", str(root)]], tmp_path)
    (root / "journal").chmod(0o700)
    assert (code, said.count("\n")) == (1, 1), said
    assert f"{root / 'journal'}: Permission denied: {ADVICE}" in said
    assert not [path for path in tmp_path.iterdir() if path != root], "nothing is left of it"


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    if os.geteuid() == 0:
        os.chown(parent, NOBODY, NOBODY)
    parent.chmod(0o755 if os.geteuid() == 0 else 0o555)
    commands = [
        [*words, "--dir", str(parent / "new")]
        for words in (("smp", "init"), ("ntf", "init"), ("up", "-d", "--no-pipeline"))
    ]
    try:
        for command, (code, said) in zip(commands, run_all(commands, tmp_path), strict=True):
            assert code == 1, (command, said)
            assert f"{parent / 'new'}: " in said, (command, said)
            assert f"Permission denied: {ADVICE}" in said, (command, said)
            assert len(said.splitlines()) == 1, (command, said)
    finally:
        parent.chmod(0o700)


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
