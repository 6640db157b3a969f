"""Real routers and a simulated APNs under load and faults: the ledger agrees with all of them.

What providers recorded, what routers counted and what the ledger found must be equal, exactly; and
no table may have a secret or an address that was used in the run.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heliograph.journal.hashing import notification_id
from heliograph.journal.identity import journal_identity
from heliograph.journal.storage.writer import JournalWriter
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.pipeline.jobs import stats
from heliograph.pipeline.tables.tables import open_tables
from heliograph.sim.providers.script import ScriptRule
from heliograph.wire import ntf
from heliograph.wire.ntf.push import MessagePush
from heliograph.wire.ntf.tokens import PushProvider
from tests.ntf.cluster.support import WorkersWorld
from tests.ntf.support import NtfWorld, Phone, a_device, new_store
from tests.pipeline.support import pipeline
from tests.smp.support import Queue
from tests.waiting import until

PHONES, QUEUES, ROUNDS = 4, 3, 12


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [False, True])
def test_the_ledger_agrees_with_everybody(spark: Any, tmp_path: Path, workers: bool) -> None:
    facts = asyncio.run(_run(tmp_path, workers))
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, tmp_path / "journal")
        result = made.ingester.ingest_batch()
        assert result is not None
        assert (result.duplicates, result.quarantined) == (0, 0)
        made.update_stats()
        rows = {row["notification"]: row for row in made.ledger().collect()}
        account = made.account()
        day = datetime.fromtimestamp(time.time(), UTC).date()
        counts = stats.merge_counts(made.read("counts"))
        lines = stats.daily_lines(counts, made.read("actives"), day.replace(day=1), day)
    assert account.is_complete, account
    carried = {name for name, row in rows.items() if row["accepted_at"] is not None}
    assert carried == facts.carried
    assert Counter(row["outcome"] for row in rows.values()) == Counter(account.outcomes)
    assert len(rows) == facts.sent
    assert (
        account.outcomes["accepted"]
        + account.outcomes.get("coalesced", 0)
        + account.outcomes.get("rejected", 0)
        == facts.sent - facts.waiting - facts.unknown
    )
    assert account.outcomes.get("waiting", 0) == facts.waiting
    assert account.outcomes.get("undeliverable", 0) == facts.unknown
    if len(lines) == 1:  # else midnight was in between
        theirs = stats.parse_line(facts.line)
        assert stats.reconcile(lines, [theirs]) == []
        assert theirs.ntf_received == facts.sent - facts.waiting - facts.unknown
        # One was deleted, and is unknown now.
        assert (theirs.tkn_day, theirs.sub_day) == (PHONES, PHONES * QUEUES + 1)
        assert (theirs.tkn_created, theirs.tkn_verified) == (PHONES + 1, PHONES + 2)
        assert (theirs.tkn_deleted, theirs.sub_deleted) == (1, 1)
    _no_secret(tmp_path / "tables", facts.secrets)


class _Facts:
    def __init__(self) -> None:
        self.carried: set[str] = set()
        self.sent = 0
        self.waiting = 0
        self.unknown = 0
        self.line = ""
        self.secrets: list[bytes] = []


@asynccontextmanager
async def _a_world(directory: Path, workers: bool) -> AsyncIterator[NtfWorld]:
    """With a notification router of one process, or of three."""
    if workers:
        world: NtfWorld = WorkersWorld(new_store("postgresql", directory), directory)
    else:
        world = NtfWorld(new_store("sqlite", directory), directory)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


async def _run(tmp_path: Path, workers: bool) -> _Facts:
    facts = _Facts()
    async with _a_world(tmp_path, workers) as world:
        phones = [await world.registered() for _ in range(PHONES)]
        world.apns.play(
            ScriptRule(every=5, status=503),
            ScriptRule(every=7, status=429),
        )
        queues: dict[int, list[Queue]] = {}
        for number, phone in enumerate(phones):
            queues[number] = await world.queues(QUEUES)
            for queue in queues[number]:
                await phone.subscribe(queue)
        alone = await world.queue()  # nobody subscribes to it
        for _ in range(ROUNDS):
            for number in range(PHONES):
                await world.send(*queues[number])
        await world.send(alone)
        facts.sent = ROUNDS * PHONES * QUEUES + 1
        facts.waiting = 1
        await _settled(world, ROUNDS * PHONES * QUEUES)
        await _odd_things(world, phones[0], queues[0][0])
        facts.sent += 1
        facts.unknown = 1
        for phone in phones:
            _carried(facts, world, phone)
        stats = Stats()
        for router in world.routers:
            stats.restore(router.stats.dump())
        log = NtfStatsLog(stats, tmp_path / "copy.json")
        log.since = time.time()
        facts.line = log.line(time.time() + 86_400)  # as the next day begins
        facts.secrets = _secrets(world, phones, [q for some in queues.values() for q in some])
        notes = [("smp", world.smp.journal), *(("ntf", journal) for journal in world.journals)]
    for part, journal in notes:
        directory = tmp_path / part
        directory.mkdir(exist_ok=True)
        writer = JournalWriter(tmp_path / "journal", journal_identity(directory), part)
        journal.replay(writer)
        writer.close()
        assert writer.lost == 0
    return facts


async def _odd_things(world: NtfWorld, phone: Phone, queue: Queue) -> None:
    """What counters and journal might see differently."""
    world.apns.play()
    other = await world.phone()
    await other.tnew()
    code = await other.code()
    for _ in range(2):  # as if the first answer had been lost
        assert await other.tvfy(code) == ntf.OK()
    assert await other.ask(ntf.TDEL(), other.token_id) == ntf.OK()
    null = await world.phone(a_device(PushProvider.APNS_NULL))  # nobody counts it
    await null.tnew()
    assert await null.ask(ntf.TDEL(), null.token_id) == ntf.OK()
    assert await phone.ask(ntf.SDEL(), phone.subscriptions[0]) == ntf.OK()
    await world.send(queue)  # of which the messaging router gets no confirmation
    await until(lambda: world.counted("ntf_received_auth") == 1)


async def _settled(world: NtfWorld, expected: int) -> None:
    """Wait until everything has arrived and no push is pending."""
    async with asyncio.timeout(120):
        while True:
            if world.counted("ntf_received") >= expected and await world.pending_pushes() == 0:
                return
            await asyncio.sleep(0.05)


def _carried(facts: _Facts, world: NtfWorld, phone: Phone) -> None:
    """What the simulator accepted for it, by the hashes that journals have."""
    for push in world.apns.accepted(phone.device):
        if isinstance(push, MessagePush):
            for item in phone.open(push):
                facts.carried.add(notification_id(item.nonce))


def _secrets(world: NtfWorld, phones: list[Phone], queues: list[Queue]) -> list[bytes]:
    found: list[bytes] = [world.address.fingerprint, world.smp.address.fingerprint]
    for phone in phones:
        found += [phone.device.token, phone.token_id, phone.secret, phone.keys.private]
        found += phone.subscriptions
    for queue in queues:
        found.append(queue.notifier_id)
    return found


def _no_secret(directory: Path, secrets: list[bytes]) -> None:
    """As bytes, as hex and as base64, in any column of any file, and in the logs."""
    from base64 import b64encode, urlsafe_b64encode

    forms = {
        form
        for secret in secrets
        for form in (
            secret,
            secret.hex().encode(),
            b64encode(secret).rstrip(b"="),
            urlsafe_b64encode(secret).rstrip(b"="),
        )
    }
    texts = [path.read_bytes() for path in directory.rglob("*.json")]
    for path in directory.rglob("*.parquet"):
        for column in pq.read_table(path).columns:
            texts += [str(value).encode() for value in set(map(str, column.to_pylist()))]
    everything = b"\n".join(texts)
    assert not [form for form in forms if form in everything]
    assert b"127.0.0.1" not in everything
