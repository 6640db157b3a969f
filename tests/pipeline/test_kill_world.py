"""`kill -9` of routers under load: the ledger still agrees with the provider and the routers.

All parts are processes. Phones show whatever the provider accepted, and journal it. Afterwards, for
every notification: exactly those are shown that accepted pushes carried, none is unaccounted for,
and nothing is pending. For the last run of each router, which ends as it should, journal and
counters are equal; so are the provider's record and the journal, push by push.

HELIOGRAPH_ACCOUNT_ROUNDS says how often (1), HELIOGRAPH_FAULT_SEED repeats a run.
"""

import asyncio
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from heliograph.crypto.boxes import open_box_padded
from heliograph.journal.events import AgentDecrypted, DeviceShown
from heliograph.journal.hashing import notification_id
from heliograph.journal.identity import journal_identity
from heliograph.journal.schema import Part
from heliograph.journal.storage.reader import read_tables
from heliograph.journal.storage.writer import JournalWriter
from heliograph.pipeline.account import Account
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.tables import open_tables
from heliograph.transport.errors import ClientError
from heliograph.wire import smp
from heliograph.wire.ntf.push import MessagePush, decode_pn_messages, decode_push
from tests.faults.processes import STORES, WORKERS
from tests.faults.test_ntf_faults import SEED, Device, FaultWorld, Line
from tests.pipeline.support import pipeline
from tests.ports import steady_port

ROUNDS = int(os.environ.get("HELIOGRAPH_ACCOUNT_ROUNDS", "1"))
FAULTS = ("ntf", "smp", "outage")
ROUTERS = ("smp", "ntf")


class World(FaultWorld):
    """With journals of all parts in one directory, and phones that look at every push."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, STORES[0])
        self.journal = directory / "journal"
        self.ports = {part: steady_port() for part in ROUTERS}
        self.carried: set[str] = set()
        self.message_pushes: list[float] = []
        """When the provider got those that it accepted."""
        self._parts: dict[str, JournalWriter] = {}
        for part in (Part.AGENT, Part.DEVICE):
            place = directory / part.value
            place.mkdir()
            identity = journal_identity(place)
            self._parts[part.value] = JournalWriter(self.journal, identity, part.value)

    async def play(self, number: int) -> None:
        """Each fault once, in any order, while messages are sent."""
        done = asyncio.Event()
        senders = [asyncio.create_task(self._send(device, done)) for device in self.devices]
        kinds = list(FAULTS)
        self.random.shuffle(kinds)
        for kind in kinds:
            # At a random moment of the load, not of a pause in it.
            sent = self.sent + self.random.randint(5, 40)
            await self.eventually(partial(self._has_sent, sent))
            self.faults[kind] += 1
            await self.cause(kind)
        done.set()
        await asyncio.gather(*senders)
        await self.script()
        await self.settle(number)

    async def _has_sent(self, number: int) -> bool:
        return self.sent >= number

    async def _send(self, device: Device, done: asyncio.Event) -> None:
        """A few messages in a row to one queue after another: some replace others."""
        lines = list(device.lines.values())
        while not done.is_set():
            try:
                async with self.peer() as peer:
                    while not done.is_set():
                        line = self.random.choice(lines)
                        for _ in range(self.random.randint(1, 4)):
                            body = f"{self.sent}".encode()
                            self.sent += 1
                            if await line.queue.send(peer, body) == smp.OK():
                                line.bodies.append(body)
                        await asyncio.sleep(self.random.uniform(0.02, 0.1))
            except ClientError:
                await asyncio.sleep(0.02)

    def _read_entry(self, device: Device, entry: dict[str, Any]) -> None:
        super()._read_entry(device, entry)
        push = decode_push(entry["body"].encode())
        if isinstance(push, MessagePush):
            self.message_pushes.append(entry["time"])
            for item in decode_pn_messages(open_box_padded(device.secret, push.nonce, push.box)):
                self.carried.add(notification_id(item.nonce))
                self._parts["agent"].record(AgentDecrypted(notification=item.nonce))
                self._parts["device"].record(DeviceShown(notification=item.nonce))

    async def quiet(self) -> None:
        """One more message to each, so that every token has a push; then nothing is pending."""
        async with self.peer() as peer:
            for line in self.lines:
                body = f"last {self.sent}".encode()
                self.sent += 1
                await line.queue.send(peer, body)
                line.bodies.append(body)
        await self.settle(0)

        async def is_quiet() -> bool:
            before = await self.counters()
            await asyncio.sleep(1.5)  # longer than a messaging router waits before it repeats
            return not await self.pending() and before == await self.counters()

        assert await self.eventually(is_quiet)
        self.read_pushes()

    @property
    def lines(self) -> list[Line]:
        return [line for device in self.devices for line in device.lines.values()]

    async def counters(self) -> dict[str, dict[str, int]]:
        """Of each router's metrics, those that tell of notifications."""
        found = {}
        for part, port in self.ports.items():
            async with aiohttp.request("GET", f"http://127.0.0.1:{port}/metrics") as answer:
                lines = re.findall(r"^(simplex_\w+) ([0-9.]+)$", await answer.text(), re.MULTILINE)
            found[part] = {name: int(float(value)) for name, value in lines if _TELLS.search(name)}
        return found

    async def end(self) -> None:
        """So that all is sealed."""
        await asyncio.gather(self.ntf.stop(), self.smp.stop())
        for writer in self._parts.values():
            writer.close()
            assert writer.lost == 0


_TELLS = re.compile("notifications_|messages_notify_sent|messages_ntf_successes")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_ledger_outlives_kills(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    for part in ROUTERS:
        name = f"HELIOGRAPH_{part.upper()}"
        monkeypatch.setenv(f"{name}_JOURNAL_PATH", str(world.journal))
        monkeypatch.setenv(f"{name}_METRICS_PORT", str(world.ports[part]))
    monkeypatch.setenv("HELIOGRAPH_SMP_QUEUES_QUOTA", "100000")
    counters = asyncio.run(_run(world))
    print(f"\nHELIOGRAPH_FAULT_SEED={SEED}, {world.sent} sent, {dict(world.faults)}")  # noqa: T201
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, world.journal)
        batches = once(made)
        assert sum(item.duplicates + item.quarantined for item in batches) == 0
        account = made.account()
        rows = made.ledger().collect()
    _accounted(world, account, rows)
    runs = _last_runs(world.journal)
    _as_the_provider_has_it(world, runs["ntf"])
    _as_routers_count(counters, runs)


async def _run(world: World) -> dict[str, dict[str, int]]:
    try:
        await world.start()
        for number in range(1, ROUNDS + 1):
            await world.play(number)
        await world.quiet()
        counters = await world.counters()
        await world.end()
        return counters
    finally:
        await world.close()


def _accounted(world: World, account: Account, rows: list[Any]) -> None:
    print(account.outcomes, Counter((row["outcome"], row["recovered"]) for row in rows))  # noqa: T201
    assert account.is_complete, account
    assert {row["notification"] for row in rows if row["outcome"] == "shown"} == world.carried
    assert len(rows) == sum(len(line.ids) for line in world.lines)
    assert account.outcomes.keys() <= {"shown", "coalesced", "accepted"}
    # Those of which only a kill is known to be the reason that nothing is known.
    assert all(row["recovered"] for row in rows if row["outcome"] == "accepted")


def _as_the_provider_has_it(world: World, events: list[dict[str, Any]]) -> None:
    """Of the last run every push, of those that were killed none too many."""
    began = min(event["at"] for event in events).timestamp()
    accepted = [
        event
        for event in events
        if event["kind"] == "push_accepted" and event["mode"] == "message"
        if event["notifications"]
    ]
    assert len(accepted) == sum(at >= began for at in world.message_pushes)


def _as_routers_count(
    counters: dict[str, dict[str, int]], runs: dict[str, list[dict[str, Any]]]
) -> None:
    kinds = {part: Counter(event["kind"] for event in events) for part, events in runs.items()}
    pushes = Counter(
        event["kind"]
        for event in runs["ntf"]
        if event["kind"].startswith("push_") and event["mode"] == "message"
    )
    stored = [
        event
        for event in runs["smp"]
        if event["kind"] == "notification_stored" and event["reason"] is None
    ]
    ntf, messaging = counters["ntf"], counters["smp"]
    assert ntf["simplex_ntf_notifications_received"] == (
        kinds["ntf"]["nmsg_stored"] + kinds["ntf"]["nmsg_repeated"]
    )
    assert ntf["simplex_ntf_notifications_delivered"] == pushes["push_accepted"]
    assert ntf["simplex_ntf_notifications_failed"] == (
        pushes["push_retried"] + pushes["push_rejected"]
    )
    assert messaging["simplex_smp_messages_notify_sent"] == len(stored)
    assert messaging["simplex_smp_messages_ntf_successes"] == kinds["smp"]["notification_delivered"]


def _last_runs(journal: Path) -> dict[str, list[dict[str, Any]]]:
    """By part the events of its last run: of each of its processes."""
    rows = pa.concat_tables(read_tables(journal)).to_pylist()
    boots: dict[str, set[int]] = {}
    for row in rows:
        boots.setdefault(row["part"], set()).add(row["boot"])
    processes = {"ntf": WORKERS or 1}
    last = {part: sorted(found)[-processes.get(part, 1) :] for part, found in boots.items()}
    return {part: [row for row in rows if row["boot"] in last[part]] for part in last}
