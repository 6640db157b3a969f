"""The supervisor with workers that are small scripts: what it does when one of them misbehaves."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from heliograph.ntf.cluster import supervisor
from heliograph.ntf.cluster.supervisor import WorkerProcesses
from heliograph.runtime.backoff import Backoff
from tests.waiting import until

SCRIPT = """
import signal, sys, time
if "--check" in sys.argv:
    sys.exit("--refuse" in sys.argv)
if "--slow" in sys.argv:
    time.sleep(0.5)
if "--hang" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready address", flush=True)
for question in sys.stdin:
    print('{"question": %s, "report": {}}' % question.split()[0], flush=True)
if "--hang" in sys.argv:
    signal.pause()
"""


def workers(count: int, *options: str) -> WorkerProcesses:
    return WorkerProcesses((sys.executable, "-c", SCRIPT, *options), count)


async def test_a_rolling_restart_ends_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would wait for ever, and so would each later one."""
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT", 1.0)
    monkeypatch.setattr(supervisor, "DELAYS", Backoff(0.01, 0.01))
    router = workers(2, "--hang")
    async with router.running():
        before = router.pids
        async with asyncio.timeout(60):
            await router.restart_each()
        assert not {*before} & {*router.pids}
        assert len(router.pids) == 2


async def test_a_worker_that_hangs_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel would go on to give it connections."""
    monkeypatch.setattr(supervisor, "PING_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(supervisor, "HANG_TIMEOUT", 2.0)
    router = workers(2)
    async with router.running():
        hanging, _ = router.pids
        os.kill(hanging, signal.SIGSTOP)
        await until(lambda: hanging not in router.pids and len(router.pids) == 2, 60)
    assert "worker 1 hangs: killing it" in caplog.text


async def test_a_slow_start_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that migrates a large store must not be killed in the middle, again and again."""
    monkeypatch.setattr(supervisor, "SLOW_START", 0.1)
    router = workers(1, "--slow")
    async with router.running():
        assert len(router.pids) == 1
    assert "worker 1 is not ready after 0 s" in caplog.text


async def test_nothing_is_restarted_with_a_configuration_that_has_mistakes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One worker would be gone with the first SIGHUP, and the last one with the next failure."""
    router = workers(2, "--refuse")
    async with router.running():
        before = router.pids
        await router.restart_each()
        assert router.pids == before
    assert "no worker is restarted" in caplog.text


async def test_a_hang_up_during_the_start_restarts_the_workers_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the signal would end the supervisor, and so the router."""
    caplog.set_level("INFO")
    monkeypatch.setattr(supervisor, "DELAYS", Backoff(0.01, 0.01))
    missed: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: missed.append(number))
    router = workers(2, "--slow")

    async def hang_up() -> None:
        await until(lambda: len(router.pids) == 1)
        os.kill(os.getpid(), signal.SIGHUP)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hang_up())
            async with router.running():
                assert not missed
                await until(lambda: "restarting worker 2" in caplog.text, 60)
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_worker_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the machine has no memory, or no process IDs, for a moment."""
    monkeypatch.setattr(supervisor, "DELAYS", Backoff(0.2, 0.2))
    router = workers(1)
    async with router.running():
        [pid] = router.pids
        start = asyncio.create_subprocess_exec
        failures = iter((OSError(11, "no more processes"), OSError(12, "no memory")))

        async def fail_twice(*command: str | Path, **options: object) -> object:
            for failure in failures:
                raise failure
            return await start(*command, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_twice)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: router.pids not in ([], [pid]), 60)
        assert "worker 1 cannot be started: [Errno 12] no memory" in caplog.text
