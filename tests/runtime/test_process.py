"""Locks, systemd and limits here; signals and exit codes with real processes in tests/cli."""

import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from heliograph.runtime import process
from heliograph.runtime.errors import StartError

TIMEOUT = 20


def test_one_router_a_directory(tmp_path: Path) -> None:
    assert process.running_address(tmp_path) is None
    with process.lock(tmp_path) as note:
        assert process.running_address(tmp_path) is None
        note("smp://x@h:1")
        assert process.running_address(tmp_path) == "smp://x@h:1"
        with (
            pytest.raises(StartError, match=rf"runs already \(process {os.getpid()}\)"),
            process.lock(tmp_path),
        ):
            pass
    assert process.running_address(tmp_path) is None
    with process.lock(tmp_path):
        pass


def test_a_lock_left_by_a_killed_router_is_void(tmp_path: Path) -> None:
    (tmp_path / process.LOCK).write_text("1\nsmp://x@h:1\n")
    assert process.running_address(tmp_path) is None
    with process.lock(tmp_path):
        pass


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with (
            pytest.raises(StartError, match="cannot be written: No space left"),
            process.lock(tmp_path),
        ):
            pass
    with process.lock(tmp_path):
        pass


def test_directories_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no such directory"), process.lock(tmp_path / "absent"):
        pass
    (tmp_path / process.LOCK).mkdir()
    with pytest.raises(StartError, match="cannot be written"), process.lock(tmp_path):
        pass


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified(
    tmp_path: Path, abstract: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"heliograph-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT)
        sock.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        process.notify_systemd("READY=1")
        assert sock.recv(100) == b"READY=1"


def test_systemd_that_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    process.notify_systemd("READY=1")
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    process.notify_systemd("READY=1")
    assert "cannot notify the service manager" in caplog.text


def test_file_limit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    with caplog.at_level(logging.INFO):
        process.raise_file_limit(4096)
        assert not caplog.records
        process.raise_file_limit(5000)
    assert set_to == [(4096, 4096)] * 2
    assert "at most 4096 files" in caplog.text


def test_file_limit_that_cannot_be_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with caplog.at_level(logging.INFO):
        process.raise_file_limit(5000)
    assert "at most 1024 files" in caplog.text


SCRIPT = """
    import asyncio, os, sys, time
    from contextlib import asynccontextmanager
    from pathlib import Path
    from heliograph.runtime import process

    @asynccontextmanager
    async def serve():
        if "slow-start" in sys.argv:
            print("starting", flush=True)
            await asyncio.sleep(60)
        yield "smp://x@h:1"
        print("stopping", flush=True)
        if "slow-stop" in sys.argv:
            await asyncio.sleep(60)

    class SlowExit:
        # Keeps the interpreter busy when it has restored the default signal handlers.

        def __del__(self, write=os.write, sleep=time.sleep):
            write(1, b"ended\\n")
            sleep(1)

    if "slow-exit" in sys.argv:
        sys.kept = SlowExit()
    sys.exit(process.run(Path(sys.argv[1]), serve))
"""


def start(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(directory), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(running: "subprocess.Popen[str]") -> tuple[int, list[str], str]:
    """Whatever happens, it ends."""
    try:
        out, err = running.communicate(timeout=TIMEOUT)
    finally:
        running.kill()
    return running.returncode, out.splitlines(), err


def first_line(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops(tmp_path: Path, number: signal.Signals) -> None:
    running = start(tmp_path)
    assert first_line(running) == "ready smp://x@h:1\n"
    running.send_signal(number)
    assert lines_of(running) == (0, ["stopping"], "")


def test_a_signal_before_it_is_ready(tmp_path: Path) -> None:
    running = start(tmp_path, "slow-start")
    assert first_line(running) == "starting\n"
    running.terminate()
    assert lines_of(running) == (0, [], "")


def test_the_same_request_again_while_the_process_ends(tmp_path: Path) -> None:
    """A clean stop has exit code 0, also if the second sender was late."""
    running = start(tmp_path, "slow-exit")
    assert first_line(running) == "ready smp://x@h:1\n"
    running.terminate()
    assert [first_line(running), first_line(running)] == ["stopping\n", "ended\n"]
    running.terminate()
    assert lines_of(running) == (0, [], "")


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    running = start(tmp_path, "slow-stop")
    assert first_line(running) == "ready smp://x@h:1\n"
    running.terminate()
    assert first_line(running) == "stopping\n"
    running.terminate()
    time.sleep(process.SAME_REQUEST_SECONDS + 0.1)
    assert running.poll() is None, "a signal right after the first one is the same request"
    running.terminate()
    code, lines, _ = lines_of(running)
    assert (code, lines) == (128 + signal.SIGTERM, [])
