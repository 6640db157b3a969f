"""Owners with known hours, at a real router: their daily wake-ups come at these hours, and back."""

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heliograph.actions.contract import ActionKind
from heliograph.actions.table import append_actions, read_actions
from heliograph.db.dialects import Transaction
from heliograph.ntf.push.cron import Cron
from heliograph.pipeline.decisions import best_hours
from heliograph.pipeline.decisions.deciding import Decisions, DecisionSettings, sign_all
from heliograph.pipeline.planning.phases import distance
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.tables import Tables
from heliograph.wire import ntf
from tests.actions.support import SIGNER
from tests.journal.recorder import Noted
from tests.ntf.actions.support import a_runner, cap, hashed
from tests.ntf.support import NtfWorld
from tests.pipeline.decisions.planted import Place, each, scribe_of
from tests.pipeline.decisions.test_planted_world import a_place
from tests.pipeline.support import pipeline, write_journal
from tests.waiting import until

HOUR, DAY = 3600, 86_400
WOKEN = 3
"""The hour at which everybody is woken at first."""
EVENING = 20
DAYS = 4


async def live(place: Place, hours: dict[bytes, int]) -> None:
    """Have the router wake everybody, and owners use their phones at their hours, for days."""
    world, yesterday = place.world, time.time() // DAY * DAY - DAY
    by_hash: dict[object, int] = {
        hashed("token", token_id): hour for token_id, hour in hours.items()
    }
    events = world.journal.events
    events[:] = [
        replace(event, at=yesterday + (by_hash.get(event.columns.get("token"), 0) + 0.5) * HOUR)
        for event in events
    ]
    for _ in range(DAYS):
        await place.age(1)
        first, due_at = len(events), int(time.time() * 1000) + 300
        await write(world, "UPDATE tokens SET cron_due_at = ?", due_at)
        await until(partial(are_woken, events, first, len(hours)))
        await place.see(place.phones.values())
        for number, event in enumerate(events[first:], first):
            hour = by_hash[event["token"]] if event.kind == "owner_seen" else WOKEN
            events[number] = replace(event, at=yesterday + (hour + 0.5) * HOUR)
    seen = Counter(event["token"] for event in events if event.kind == "owner_seen")
    assert set(seen.values()) == {DAYS}


def are_woken(events: list[Noted], first: int, count: int) -> bool:
    woken = [event for event in events[first:] if event.kind == "push_accepted"]
    return len([event for event in woken if event["mode"] == "periodic"]) == count


async def write(world: NtfWorld, sql: str, *values: object) -> None:
    def run(tx: Transaction) -> None:
        tx.execute(sql, values)

    await world.router.store.database.write(run)


async def wake_ups(world: NtfWorld, days: int) -> dict[bytes, list[float]]:
    """Return when each token is woken in the next days, as the router would wake it."""
    database = world.router.store.database
    cron = Cron(database, world.router.outbox, 60.0)
    found: defaultdict[bytes, list[float]] = defaultdict(list)
    now, end = time.time(), time.time() + days * DAY
    while now < end:
        for push in await cron.wake_due(now):
            found[push.token_id].append(now)
        rows = await database.read(lambda tx: tx.query("SELECT MIN(cron_due_at) FROM tokens"))
        now = max(rows[0][0] / 1000 + 0.5, now + 0.001)
    await write(world, "DELETE FROM pending_pushes")
    return found


async def decided(spark: Any, world: NtfWorld, directory: Path) -> Decisions:
    journal = write_journal(directory / "journal", scribe_of(world.events))
    made = pipeline(spark, Tables(directory / "tables"), journal)
    await asyncio.to_thread(once, made)
    settings = DecisionSettings(max_percent=100.0)
    return await asyncio.to_thread(best_hours.decide, made, settings, time.time())


async def test_wake_ups_come_at_the_hours_of_their_owners(spark: Any, tmp_path: Path) -> None:
    async with a_place(tmp_path) as place:
        world, tables = place.world, tmp_path / "actions"
        phones = await place.new_phones(48)

        async def ask(phone: Any) -> None:
            assert await phone.ask(ntf.TCRN(1440), phone.token_id) == ntf.OK()

        await each(ask, phones)
        # Half of them use their phones in the evening, the others at any hour.
        hours = {
            phone.token_id: number // 2 if number % 2 else EVENING
            for number, phone in enumerate(phones)
        }
        await live(place, hours)
        result = await decided(spark, world, tmp_path)
        assert result.stopped == []
        moves = {item.subject: item.evidence for item in result.decisions}
        by_token = {token_id: moves.get(hashed("token", token_id)) for token_id in hours}
        for token_id, evidence in by_token.items():
            is_near = distance(WOKEN, hours[token_id]) < best_hours.LEAST_MOVE
            assert evidence is not None or is_near or hours[token_id] == EVENING
            assert evidence is None or evidence["best"] == hours[token_id]
        append_actions(tables, sign_all(result.decisions, SIGNER, DecisionSettings()))
        runner = a_runner(world, tables, cap=cap(1000))
        await runner.apply_automatic()

        last = time.time()
        await write(world, "UPDATE tokens SET cron_due_at = ? WHERE cron_phase IS NULL", at_three())
        times = await wake_ups(world, 3)
        assert set(times) == set(hours)
        for token_id, found in times.items():
            gaps = [after - before for before, after in zip([last, *found], found, strict=False)]
            assert max(gaps) <= DAY + 1
            if (evidence := by_token[token_id]) is not None:
                phase = int(str(evidence["phase"]))
                assert all(abs(at % DAY - phase) <= 1 for at in found[1:])
        # Two an hour in the mean, so three fit. The router spreads the others by itself.
        day = Counter(
            int(found[1] % DAY // HOUR)
            for token_id, found in times.items()
            if by_token[token_id] is not None
        )
        assert max(day.values()) <= 3
        assert day[EVENING] == 3

        rows = read_actions(tables)
        assert {row["kind"] for row in rows} == {ActionKind.MOVE_WAKEUP.value}
        assert len(rows) >= 30
        for row in rows:
            assert await runner.undo(row["action_id"]) == "undone"
        left = await world.read(
            lambda tx: tx.query("SELECT COUNT(*) FROM tokens WHERE cron_phase IS NOT NULL")
        )
        assert left == [(0,)]


def at_three() -> int:
    """Return the next time at which those who were not moved are woken, in milliseconds."""
    at = time.time() // DAY * DAY + (WOKEN + 0.5) * HOUR
    return int((at if at > time.time() else at + DAY) * 1000)
