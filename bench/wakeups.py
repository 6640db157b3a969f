"""How flat periodic wake-ups are, in planted worlds, and what the plan costs.

    python -m bench.wakeups [TOKENS]

Worlds are of the planner alone, second by second, with TOKENS (100,000) at 20 minutes: all
registered in the same minute; random times; an outage of two hours. A rate is that of a second, and
a peak is in units of the mean of its cycle. The last lines are of a real store with as many tokens:
to make the plan, and to wake a page.
"""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.ntf.push.cron import make_plan
from heliograph.ntf.store import tokens
from heliograph.ntf.store.schema import MIGRATIONS
from tests.ntf.push.wake_up_fleet import WakeUpFleet
from tests.ntf.support import a_new_token

MINUTES = 20
CYCLE = 60 * MINUTES
TOKENS = 100_000


def _peaks(fleet: WakeUpFleet, first: int, cycles: int) -> str:
    found = [
        fleet.peak(first + number * CYCLE, first + (number + 1) * CYCLE) for number in range(cycles)
    ]
    return ", ".join(f"{peak:.2f}" for peak in found)


def _worlds(count: int) -> None:
    draw = random.Random(1)
    started = time.process_time()
    wave = WakeUpFleet([(draw.randrange(60_000), MINUTES) for _ in range(count)], at=0)
    wave.run(range(1, 8 * CYCLE))
    cost = (time.process_time() - started) / sum(wave.sent.values())
    late = sorted(wave.late)
    print(f"all in the same minute, peak of each cycle: {_peaks(wave, 0, 8)}")
    print(
        f"  lateness p99 {late[int(len(late) * 0.99)] / 1000:.2f} s, at most"
        f" {100 * max(wave.early):.0f} % early, {cost * 1e6:.1f} us of CPU each, simulated"
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
    for _ in range(2):
        started = time.process_time()
        plan = await database.write(make_plan)
        took = time.process_time() - started
    print(f"a plan of {count:,} tokens from SQLite: {1000 * took:.0f} ms of CPU, {plan.rate:.0f}/s")
    await database.close()


def main(count: int) -> None:
    _worlds(count)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        asyncio.run(_store(count, Path(directory)))


async def run() -> None:
    await asyncio.to_thread(main, TOKENS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TOKENS)
