"""The supervisor, with real processes that do little."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from heliograph.runtime.errors import StartError
from heliograph.system import supervisor as module
from heliograph.system.layout import Layout
from heliograph.system.parts import SystemPart
from heliograph.system.state import PartState, read
from heliograph.system.supervisor import Supervisor
from tests.waiting import until

READY = "print('ready here', flush=True); import time; time.sleep(600)"


def part(name: str, script: str, needs: tuple[str, ...] = (), is_slow: bool = False) -> SystemPart:
    return SystemPart(name, (sys.executable, "-c", script), needs, is_slow)


Make = Callable[..., Supervisor]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    monkeypatch.setattr(module, "FIRST_DELAY", 0.05)
    made: list[Supervisor] = []

    def supervise(*parts: SystemPart) -> Supervisor:
        made.append(Supervisor(Layout(tmp_path), parts))
        return made[-1]

    yield supervise
    for supervisor in made:
        await supervisor.stop()


async def test_in_order_and_all_together(make: Make, tmp_path: Path) -> None:
    late = f"import pathlib; assert pathlib.Path({str(tmp_path / 'a')!r}).exists(); {READY}"
    early = f"import pathlib; pathlib.Path({str(tmp_path / 'a')!r}).touch(); {READY}"
    supervisor = make(part("a", early), part("b", late, needs=("a",)))
    await supervisor.start()
    found = read(Layout(tmp_path).state)
    assert found is not None
    assert found.is_up
    assert {name: item.state for name, item in found.parts.items()} == {
        "a": PartState.RUNNING,
        "b": PartState.RUNNING,
    }
    assert found.parts["a"].address == "here"
    pids = [item.pid for item in found.parts.values() if item.pid]
    await supervisor.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert supervisor.status.parts["a"].state is PartState.STOPPED


async def test_what_ends_is_started_again(make: Make) -> None:
    supervisor = make(part("a", READY))
    await supervisor.start()
    status = supervisor.status.parts["a"]
    first = status.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: status.restarts == 1 and status.state is PartState.RUNNING)
    assert status.pid not in (None, first)
    assert status.ended == "killed by SIGKILL"


async def test_what_cannot_start_says_why(make: Make) -> None:
    script = "import sys; print('now INFO x: hello', file=sys.stderr); sys.exit('no such key: x')"
    supervisor = make(part("a", READY), part("b", script))
    with pytest.raises(StartError, match=r"b did not start \(exit code 1\):\n  no such key: x"):
        await supervisor.start()


async def test_a_slow_part_keeps_nobody_waiting(make: Make) -> None:
    supervisor = make(part("a", READY), part("b", "raise SystemExit(3)", is_slow=True))
    await supervisor.start()
    await until(lambda: supervisor.status.parts["b"].restarts > 1)
    assert supervisor.status.parts["a"].state is PartState.RUNNING


async def test_never_ready(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.5)
    supervisor = make(part("a", "import time; time.sleep(600)"))
    with pytest.raises(StartError, match="a did not become ready"):
        await supervisor.start()


async def test_what_does_not_stop_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.5)
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"
    supervisor = make(part("a", deaf))
    await supervisor.start()
    pid = supervisor.status.parts["a"].pid
    assert pid is not None
    await supervisor.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_waits_keeps_no_stop_waiting(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is to be started again, nor what needs something that never comes."""
    monkeypatch.setattr(module, "STOP_SECONDS", 1000.0)
    monkeypatch.setattr(module, "FIRST_DELAY", 1000.0)
    ended = part("a", "raise SystemExit(3)", is_slow=True)
    supervisor = make(ended, part("b", READY, needs=("a",), is_slow=True), part("c", READY))
    await supervisor.start()
    statuses = supervisor.status.parts
    await until(lambda: statuses["a"].state is PartState.WAITING)
    async with asyncio.timeout(30):
        await supervisor.stop()
    assert {status.state for status in statuses.values()} == {PartState.STOPPED}


async def test_a_log_that_cannot_be_written(make: Make, tmp_path: Path) -> None:
    Layout(tmp_path).log("a").mkdir(parents=True)
    supervisor = make(part("a", READY))
    with pytest.raises(StartError, match=r"a did not start: .*a\.log: Is a directory"):
        await supervisor.start()
    assert supervisor.status.parts["a"].pid is None


async def test_no_place_for_logs(make: Make, tmp_path: Path) -> None:
    Layout(tmp_path).logs.write_text("a file")
    with pytest.raises(StartError, match="logs: File exists"):
        await make(part("a", READY)).start()


async def test_a_part_that_says_much(make: Make) -> None:
    """What is too long to be its word that it is ready is passed over."""
    supervisor = make(part("a", f"print('x' * (3 << 20), flush=True); {READY}"))
    await supervisor.start()
    assert supervisor.status.parts["a"].address == "here"


async def test_errors_go_to_the_log(make: Make, tmp_path: Path) -> None:
    supervisor = make(part("a", f"import sys; sys.stderr.write('a word\\n'); {READY}"))
    await supervisor.start()
    log = Layout(tmp_path).log("a")
    await until(lambda: log.read_text() == "a word\n")
