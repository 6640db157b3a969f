"""How flat periodic wake-ups are, in planted worlds, and what the plan costs.

    python -m bench.wakeups [TOKENS]

Worlds are of the planner alone, second by second, with TOKENS (100,000) at 20 minutes: all
registered in the same minute; random times; an outage of two hours; and small fleets. A peak is
that of a window with 50 wake-ups, at least a second, in units of the mean of its cycle. The last
lines are of a real store with as many tokens: what the plan costs, and how long commands take that
write to the store meanwhile.
"""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.push.cron import Cron
from heliograph.ntf.push.outbox import Outbox
from heliograph.ntf.push.plan_reader import PlanReader
from heliograph.ntf.store import tokens
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.store import NtfStore
from tests.ntf.push.wake_up_fleet import WakeUpFleet
from tests.ntf.support import a_new_token

MINUTES = 20
CYCLE = 60 * MINUTES
TOKENS = 100_000
SMALL = (100, 400, 1_600, 6_000)
LEAST_WRITES = 100


def _peaks(fleet: WakeUpFleet, first: int, cycles: int) -> str:
    found = [
        fleet.peak(first + number * CYCLE, first + (number + 1) * CYCLE) for number in range(cycles)
    ]
    return ", ".join(f"{peak:.2f}" for peak in found)


def _wave(count: int, draw: random.Random) -> WakeUpFleet:
    return WakeUpFleet([(draw.randrange(60_000), MINUTES) for _ in range(count)], at=0)


def _worlds(count: int) -> None:
    draw = random.Random(1)
    started = time.process_time()
    wave = _wave(count, draw)
    wave.run(range(1, 8 * CYCLE))
    cost = (time.process_time() - started) / sum(wave.sent.values())
    late = sorted(wave.late)
    print(f"all in the same minute, peak of each cycle: {_peaks(wave, 0, 8)}")
    print(
        f"  lateness p99 {late[int(len(late) * 0.99)] / 1000:.2f} s, at most"
        f" {100 * max(wave.early):.0f} % early, {cost * 1e6:.1f} us of CPU each, simulated"
    )
    for small in SMALL:
        fleet = _wave(small, draw)
        fleet.run(range(1, 8 * CYCLE))
        most = fleet.busiest_second(5 * CYCLE, 8 * CYCLE)
        print(
            f"  {small:,} tokens: {_peaks(fleet, 0, 8)}; from the sixth on at most {most} in a"
            f" second, {fleet.plan.rate:.2f} in the mean"
        )
    fleet = WakeUpFleet([(draw.randrange(1000 * CYCLE), MINUTES) for _ in range(count)], at=0)
    fleet.run(range(1, 3 * CYCLE))
    print(f"random times: {_peaks(fleet, 0, 3)}")
    start = 3 * CYCLE + 7200
    fleet.at = None
    fleet.early.clear()
    fleet.run(range(start, start + 4 * CYCLE))
    most = max(fleet.sent[second] for second in range(start, start + 4 * CYCLE))
    early = sum(fleet.early) / len(fleet.early)
    print(
        f"after two hours without service: {_peaks(fleet, start, 4)}; at most"
        f" {most / fleet.plan.rate:.2f} times the steady rate, {100 * early:.1f} % early in all"
    )


async def _store(count: int, directory: Path) -> None:
    database = await Database.open(f"sqlite:///{directory / 'ntf.db'}", MIGRATIONS)
    draw = random.Random(1)

    def fill(tx: Transaction) -> None:
        tokens.register(tx, a_new_token(), 1, 7, 8)
        tx.execute("UPDATE tokens SET status = 'ACTIVE', cron_minutes = ?", (MINUTES,))
        columns = "device, status, auth_key, dh_private, dh_secret, code, cron_minutes, created_at"
        [known] = tx.query(f"SELECT {columns}, seen_at FROM tokens")
        tx.many(
            f"INSERT INTO tokens (token_id, cron_due_at, {columns}, seen_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(draw.randbytes(24), draw.randrange(1000 * CYCLE), *known) for _ in range(count - 1)],
        )

    await database.write(fill)
    store, observer = NtfStore(database, 60.0), NtfObserver(NO_JOURNAL)
    cron = Cron(database, Outbox(store, {}, observer), 60.0)
    started, cpu = time.perf_counter(), time.process_time()
    reader, pages, plan = PlanReader(), 0, None
    while plan is None:
        plan, pages = await reader.read_page(database), pages + 1
    cpu, took = time.process_time() - cpu, time.perf_counter() - started
    print(
        f"a plan of {count:,} tokens from SQLite: {cpu:.2f} s of CPU, {plan.rate:.0f}/s, in {pages}"
        f" pages of {1000 * took / pages:.1f} ms"
    )
    for name, is_planning in (("no plan is made", False), ("a plan is made", True)):
        found = await _latencies(database, cron, is_planning=is_planning)
        print(
            f"  commands that write while {name}: p50 {1000 * found[len(found) // 2]:.1f} ms,"
            f" p99 {1000 * found[int(len(found) * 0.99)]:.1f}, at most {1000 * found[-1]:.1f}"
        )
    await database.close()


async def _latencies(database: Database, cron: Cron, *, is_planning: bool) -> list[float]:
    """Return how long writes took, a hundred a second, while the first plan is read or not."""
    found = []

    def write(tx: Transaction) -> None:
        tx.execute("UPDATE tokens SET seen_at = seen_at + 1 WHERE token_id = ?", (bytes(24),))

    task = asyncio.create_task(cron.wake_due(0.0)) if is_planning else None
    for _ in range(LEAST_WRITES):
        began = time.perf_counter()
        await database.write(write)
        found.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    if task is not None:
        while not task.done():
            began = time.perf_counter()
            await database.write(write)
            found.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
        await task
    return sorted(found)


def main(count: int) -> None:
    _worlds(count)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        asyncio.run(_store(count, Path(directory)))


async def run() -> None:
    await asyncio.to_thread(main, TOKENS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TOKENS)
