"""A flood at real routers: found on Spark, throttled, harmless for the neighbour, and ended."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heliograph.actions.contract import ActionKind
from heliograph.actions.table import append_actions
from heliograph.pipeline.decisions import anomalies
from heliograph.pipeline.decisions.deciding import Decisions, DecisionSettings, sign_all
from heliograph.pipeline.jobs.rates import BUCKET
from heliograph.pipeline.tables.tables import Tables
from tests.actions.support import ROUTER, SIGNER
from tests.journal.recorder import Noted
from tests.ntf.actions.support import a_runner, hashed
from tests.ntf.support import NtfWorld, Phone, a_world
from tests.pipeline.support import Event, pipeline as pipeline_of, write_segment
from tests.smp.support import Queue

FLOOD = 330
LATER = 60
PAST = 1_800.0
"""Seconds before, in which nothing happened."""
VALID_FOR = 12.0
SETTINGS = DecisionSettings(max_percent=100.0)


def journal_of(events: Sequence[Noted], directory: Path) -> Path:
    """Write the events of a router, after a past without any, up to the end of a bucket."""
    last = max(event.at for event in events)
    end = (int(last * 1e6) // BUCKET + 1) * BUCKET / 1e6
    whole: list[tuple[str, float, dict[str, Any]]] = [
        ("router_started", events[0].at - PAST, {"through": 0}),
        *((event.kind, event.at, event.columns) for event in events),
        ("client_connected", end, {"count": 1}),
    ]
    rows: list[Event] = [
        {
            **columns,
            "schema": 1,
            "event_id": f"{ROUTER}-1-{seq}",
            "router": ROUTER,
            "part": "ntf",
            "boot": 1,
            "seq": seq,
            "kind": kind,
            "at": datetime.fromtimestamp(at, UTC),
            "mono": seq,
        }
        for seq, (kind, at, columns) in enumerate(sorted(whole, key=lambda item: item[1]), 1)
    ]
    write_segment(directory, f"{ROUTER}/1-00000001", rows)
    return directory


async def push_time(world: NtfWorld, phone: Phone, queue: Queue) -> float:
    """Return the seconds from a message to its push."""
    began = time.perf_counter()
    msg_id = await world.send_and_receive(queue)
    while not phone.was_notified(queue, msg_id):
        await world.apns.push(phone.device)
    return time.perf_counter() - began


async def test_a_flood_is_found_and_throttled_and_its_neighbour_notices_nothing(
    spark: Any, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    async with a_world(f"sqlite:///{tmp_path}/ntf.db", tmp_path) as world:
        victim, neighbour = await world.registered(), await world.registered()
        flooded, other, quiet = await world.queues(3)
        await victim.subscribe(flooded)
        await victim.subscribe(other)
        await neighbour.subscribe(quiet)
        before = [await push_time(world, neighbour, quiet) for _ in range(10)]
        for _ in range(FLOOD // 2):
            await world.send_and_receive(flooded)
            await world.send_and_receive(other)
        await world.until_none_pending()
        began = time.monotonic()
        journal = journal_of(world.events, tmp_path / "journal")
        pipeline = pipeline_of(spark, Tables(tables), journal)

        def decide() -> Decisions:
            pipeline.ingester.ingest_batch()
            pipeline.update_rates()
            return anomalies.decide(pipeline, SETTINGS, time.time())

        found = await asyncio.to_thread(decide)  # the routers' event loop goes on
        seconds = time.monotonic() - began
        assert found.stopped == []
        [flood] = found.decisions
        token = hashed("token", victim.token_id)
        assert (flood.kind, flood.subject) == (ActionKind.THROTTLE_TOKEN, token)
        assert flood.evidence["observed"] >= FLOOD
        assert flood.evidence["baseline"] == 0
        short = replace(flood, valid_for=VALID_FOR)
        append_actions(tables, sign_all([short], SIGNER, SETTINGS))
        runner = a_runner(world, tables)
        await runner.apply_automatic()
        [restriction] = world.router.store.restrictions
        pushes = world.apns.attempts(victim.device)
        during = []
        for _ in range(LATER // 6):
            for _ in range(6):
                await world.send_and_receive(flooded)
            during.append(await push_time(world, neighbour, quiet))
        assert world.apns.attempts(victim.device) <= pushes + 1
        # It ends by itself: the newest notifications are pushed then, and the next ones at once.
        world.apns.skip(victim.device)
        last = await world.send_and_receive(other)
        await asyncio.sleep(max(0, restriction.until / 1000 - time.time()))
        while not victim.was_notified(other, last):
            await world.apns.push(victim.device)
        after = await push_time(world, victim, flooded)
        await runner.expire_restrictions()
        await runner.record_recovered()
        kinds = [event.kind for event in world.events if event.kind.startswith("action_")]
        assert kinds == ["action_applied", "action_expired"]
    usual, throttled = statistics.median(before), statistics.median(during)
    print(  # noqa: T201  what the test measures
        f"\nfound in {seconds:.1f} s after the journal; the neighbour's push took {usual * 1e3:.0f}"
        f" ms before and {throttled * 1e3:.0f} ms during the flood; afterwards the victim's took"
        f" {after * 1e3:.0f} ms"
    )
    assert throttled < 3 * usual + 0.1
