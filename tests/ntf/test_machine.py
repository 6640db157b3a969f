"""Statistics and state of several workers as one."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from heliograph.documents import JsonObject
from heliograph.ntf.cluster.supervisor import worker_directory
from heliograph.ntf.machine import MachineState, WorkersStatsLog, absorb_workers, finish_absorbing
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.ntf.store.totals import Totals
from heliograph.runtime.config.operations import StatsOptions
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from tests.runtime.reference.test_periods import at, ids

DAY = at("2026-05-31 12:00")
NEXT_DAY = at("2026-06-01 00:00")
OWN = str(ServerAddress(Scheme.SMP, (decode_host("own.org"),), "", bytes(32)))


class Workers:
    """Workers that save their statistics when they are asked."""

    def __init__(self, directory: Path, *stats: Stats) -> None:
        self.logs: list[NtfStatsLog] = []
        for number, each in enumerate(stats, 1):
            own = worker_directory(directory, number)
            own.mkdir(parents=True)
            self.logs.append(NtfStatsLog(each, own / "stats.json"))
        self.silent: set[int] = set()

    async def ask(self) -> Mapping[int, JsonObject]:
        answering = {n: log for n, log in enumerate(self.logs, 1) if n not in self.silent}
        for log in answering.values():
            log.save()
        report = {"threads": 2, "clients": 3, "in_flight": 1, "processes": len(self.logs)}
        # A messaging router that is split, and one that only the first worker has.
        servers = {1: [(5, "own.org", True, False, 10), (6, None, False, False, 0)]}
        return {
            number: {**report, "servers": servers.get(number, [(5, "own.org", True, False, 7)])}
            for number in answering
        }


def counted(*tokens: int, received: int) -> Stats:
    stats = Stats()
    stats.counters.ntf_received = received
    stats.counters.received_own["own.org"] = received
    stats.active_tokens.add(ids(*tokens), DAY)
    return stats


def column(line: str, number: int) -> int:
    return int(line.split(",")[number])


async def test_tokens_active_at_several_workers_are_counted_once(tmp_path: Path) -> None:
    """Also if some of the workers were active in the new day before the line was written."""
    first, second = counted(1, 2, received=5), counted(2, 3, received=7)
    first.active_tokens.add(ids(9), NEXT_DAY)
    workers = Workers(tmp_path, first, second)
    log = WorkersStatsLog(tmp_path, StatsOptions(), workers.ask, 2)
    await log.gather()
    line = log.line(NEXT_DAY)
    assert column(line, 6) == 12
    assert column(line, 8) == 3
    assert log.stats.counters.received_own == {"own.org": 12}
    assert log.scope == ("Processes of this machine: 2, of which 2 answered",)


async def test_one_file_of_lines_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not answer is counted as it was saved last, and caught up with later."""
    first, second = counted(1, received=5), counted(2, received=7)
    workers = Workers(tmp_path, first, second)
    now = at("2026-06-01 23:59")

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        first.counters.ntf_received += 1
        second.counters.ntf_received += 100
        workers.silent = {2} if len(lines()) == 1 else set()
        if len(lines()) == 3:
            raise asyncio.CancelledError

    def lines() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    file = tmp_path / "stats.csv"
    monkeypatch.setattr(asyncio, "sleep", sleep)
    options = StatsOptions("stats.csv", log_interval_seconds=60.0)
    log = WorkersStatsLog(tmp_path, options, workers.ask, 2)
    monkeypatch.setattr(log, "_clock", lambda: now)
    with pytest.raises(asyncio.CancelledError):
        await log.run()
    received = [column(line, 6) for line in lines()]
    assert received[1] < 10
    assert received[2] > 100
    assert sum(received) == log.stats.counters.ntf_received
    again = WorkersStatsLog(tmp_path, options, workers.ask, 2)
    again.restore()
    await again.gather()
    period = again.period()["ntf_received"]
    saved = first.counters.ntf_received + second.counters.ntf_received
    assert period == saved - sum(received)


async def test_from_one_process_to_workers_and_back(tmp_path: Path) -> None:
    alone = NtfStatsLog(counted(1, received=5), tmp_path / "stats.json")
    alone.begin(DAY)
    alone.save()
    workers = Workers(tmp_path, counted(2, received=7))
    log = WorkersStatsLog(tmp_path, StatsOptions(), workers.ask, 1)
    log.restore()
    await log.gather()
    assert log.period()["ntf_received"] == 7
    log.begin(NEXT_DAY)
    log.save()
    for _ in range(2):  # a second start adds nothing
        alone = NtfStatsLog(Stats(), tmp_path / "stats.json")
        alone.restore()
        absorb_workers(alone, tmp_path)
        assert alone.period()["ntf_received"] == 0
        assert alone.stats.counters.ntf_received == 12
        assert alone.stats.active_tokens.count("day", DAY) == 2


@pytest.mark.parametrize("workers_again", [False, True])
async def test_a_kill_while_statistics_of_workers_are_added_counts_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers_again: bool
) -> None:
    """Also if there are workers again after it, which go on with what they had saved."""
    await Workers(tmp_path, counted(1, received=5), counted(2, received=7)).ask()

    def killed(file: Path) -> None:
        raise KeyboardInterrupt

    alone = NtfStatsLog(Stats(), tmp_path / "stats.json")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            absorb_workers(alone, tmp_path)
    if workers_again:
        finish_absorbing(tmp_path)
        again = Workers(tmp_path)
        again.logs = [NtfStatsLog(Stats(), worker_directory(tmp_path, 1) / "stats.json")]
        again.logs[0].restore()
        again.logs[0].stats.counters.ntf_received += 100
        log: NtfStatsLog = WorkersStatsLog(tmp_path, StatsOptions(), again.ask, 1)
        log.restore()
        await log.gather()
    else:
        log = NtfStatsLog(Stats(), tmp_path / "stats.json")
        log.restore()
        absorb_workers(log, tmp_path)
    assert log.stats.counters.ntf_received == 12 + 100 * workers_again


async def test_damaged_statistics_of_a_worker_cost_only_those(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(tmp_path, counted(1, received=5), counted(2, received=7))
    await workers.ask()
    workers.silent = {2}
    (worker_directory(tmp_path, 2) / "stats.json").write_text('{"stats": {}}')
    log = WorkersStatsLog(tmp_path, StatsOptions(), workers.ask, 2)
    await log.gather()
    assert log.period()["ntf_received"] == 5
    assert "the statistics of a worker cannot be read" in caplog.text


async def test_pending_at_own_messaging_routers_of_other_machines(tmp_path: Path) -> None:
    """Nobody here subscribes to one of them: it is the operator's own all the same."""
    workers = Workers(tmp_path, Stats())
    stats = WorkersStatsLog(tmp_path, StatsOptions(), workers.ask, 1)

    async def count() -> Totals:
        other = OWN.replace("own.org", "other.org")
        return Totals(pending={(8, OWN, False): 4, (9, other, False): 2, (10, "", False): 1})

    state = await MachineState(stats, workers.ask, 1, count, ["own.org"]).state()
    assert state.live.pending.own == {"own.org": 4}
    assert (state.live.pending.other_servers, state.live.pending.other) == (2, 3)


async def test_a_split_messaging_router_is_one(tmp_path: Path) -> None:
    workers = Workers(tmp_path, Stats(), Stats(), Stats())
    stats = WorkersStatsLog(tmp_path, StatsOptions(), workers.ask, 2)

    async def count() -> Totals:
        return Totals(pending={(5, OWN, False): 4})

    state = await MachineState(stats, workers.ask, 2, count, ["own.org"]).state()
    assert (state.threads, state.clients, state.in_flight) == (6, 9, 3)
    assert state.live.subscribers.own == ["own.org"]
    assert state.live.subscribers.other == 1
    assert state.live.active.own == {"own.org": 24}
    assert state.live.pending.own == {"own.org": 4}
    assert state.live.sessions == 1
    assert state.scope[1] == (
        "Processes of the router: 3; all but what is pending is of this machine only"
    )
