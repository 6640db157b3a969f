"""Writes of several processes at the same time: what belongs to one token has one order."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from heliograph.db import postgres
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseConflict
from heliograph.ntf.push import outbox, payload
from heliograph.ntf.store.receiving import NmsgOutcome
from heliograph.ntf.store.records import Incoming, PendingPush, PushKind
from heliograph.ntf.store.subscriptions.subscriptions import Added, NewSubscription
from heliograph.push.provider import Accepted, Delivery, PushOutcome, RetryLater
from tests.ntf.cluster.support import MemberWorld, a_cluster
from tests.ntf.support import Recorder, a_device, a_new_token

ADDRESS = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@127.0.0.1:1"
TOKENS, QUEUES_EACH, BATCHES, BATCH = 12, 3, 30, 8


class _Queue(NamedTuple):
    token_id: bytes
    subscription_id: bytes
    notifier_id: bytes


class _Unreliable(Recorder):
    """One of eight pushes must be sent again."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    async def send(self, delivery: Delivery) -> PushOutcome:
        await asyncio.sleep(self._random.random() * 0.01)
        await super().send(delivery)
        return RetryLater(0.05, "Busy") if self._random.random() < 0.125 else Accepted()


async def subscribed(world: MemberWorld) -> list[_Queue]:
    """Add active tokens with subscriptions to the store."""
    store, queues = world.router.store, []
    for _ in range(TOKENS):
        new = a_new_token(a_device())
        await store.register(new)
        await store.verify(new.token_id, new.code)
        for _ in range(QUEUES_EACH):
            queue = _Queue(new.token_id, os.urandom(24), os.urandom(24))
            wanted = NewSubscription(
                queue.subscription_id, queue.token_id, ADDRESS, queue.notifier_id, b"key"
            )
            [added] = await store.add_subscriptions([wanted], None)
            assert isinstance(added, Added)
            assert added.server.server_id == 1
            queues.append(queue)
    return queues


class _Pushed(list[PendingPush]):
    """Messages that were pushed, with what they carried."""

    def build(self, push: PendingPush, nonce: bytes, size: int) -> payload.BuiltPush:
        built = payload.build(push, nonce, size)
        if push.kind is PushKind.MESSAGE:
            self.append(built.push)
        return built


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> _Pushed:
    found = _Pushed()
    monkeypatch.setattr(outbox, "build", found.build)
    return found


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts of conflicts between transactions."""
    found: list[str] = []

    class Conflict(DatabaseConflict):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            found.append(text)

    monkeypatch.setattr(postgres, "DatabaseConflict", Conflict)
    return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_notification_is_lost_between_processes(
    tmp_path: Path, pushed: _Pushed, deadlocks: list[str], seed: int
) -> None:
    async with a_cluster(tmp_path, 3) as cluster:
        queues = await subscribed(cluster.first)
        for number, world in enumerate(cluster.members):
            for lane in world.router.outbox.lanes.values():
                lane.provider = _Unreliable(seed + number)
        stored: dict[bytes, tuple[_Queue, int]] = {}
        latest: dict[bytes, tuple[int, bytes]] = {}

        async def receive(world: MemberWorld, some: list[_Queue]) -> None:
            by_notifier = {queue.notifier_id: queue for queue in some}
            incoming = [Incoming(key, os.urandom(24), b"meta", 1.0) for key in by_notifier]
            batch = await world.router.store.receive(1, incoming)
            world.router.outbox.offer(batch.pushes)
            for item, found in zip(incoming, batch.received, strict=True):
                assert found.outcome is NmsgOutcome.STORED
                queue = by_notifier[item.notifier_id]
                assert stored.setdefault(item.nonce, (queue, found.seq)) == (queue, found.seq)
                latest[queue.notifier_id] = max(
                    latest.get(queue.notifier_id, (0, b"")), (found.seq, item.nonce)
                )

        async def work(world: MemberWorld, choice: random.Random) -> None:
            for _ in range(BATCHES):
                some = [receive(world, choice.sample(queues, BATCH)) for _ in range(2)]
                await asyncio.gather(*some)

        choices = random.Random(seed)
        await asyncio.gather(
            *(work(world, random.Random(choices.random())) for world in cluster.members)
        )
        await cluster.first.until_none_pending()
        carried = {notice.nonce for push in pushed for notice in push.notices}
        assert {nonce for _, nonce in latest.values()} <= carried
        for queue, seq in stored.values():
            assert any(push.token_id == queue.token_id and push.seq >= seq for push in pushed)
        numbers = [seq for _, seq in stored.values()]
        assert len({*numbers}) == len(numbers)
        attempts = Counter((push.token_id, push.seq, push.attempts) for push in pushed)
        assert {*attempts.values()} == {1}
        assert not deadlocks


async def test_one_nmsg_at_two_processes_is_stored_once(tmp_path: Path, pushed: _Pushed) -> None:
    """As in a hand-over, when a messaging router sends it again to the new owner."""
    async with a_cluster(tmp_path, 2) as cluster:
        queues = await subscribed(cluster.first)
        for world in cluster.members:
            for lane in world.router.outbox.lanes.values():
                lane.provider = Recorder()
        stores = [world.router.store for world in cluster.members]
        for _ in range(10):
            incoming = [Incoming(queue.notifier_id, os.urandom(24), b"m", 1.0) for queue in queues]
            batches = await asyncio.gather(*(store.receive(1, incoming) for store in stores))
            for found in zip(*(batch.received for batch in batches), strict=True):
                assert {item.outcome for item in found} == {
                    NmsgOutcome.STORED,
                    NmsgOutcome.REPEATED,
                }
            for world, batch in zip(cluster.members, batches, strict=True):
                world.router.outbox.offer(batch.pushes)
            await cluster.first.until_none_pending()
        assert len(pushed) == 10 * TOKENS


async def test_what_is_deleted_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = (world.router.store for world in cluster.members)
        queues = await subscribed(cluster.first)
        incoming = [Incoming(queue.notifier_id, os.urandom(24), b"m", 1.0) for queue in queues]

        async def delete() -> None:
            for number, queue in enumerate(queues):
                if number % QUEUES_EACH:
                    await other.delete_subscription(queue.subscription_id)
                else:
                    await other.delete_token(queue.token_id)

        deleting = asyncio.create_task(delete())
        while not deleting.done():
            fresh = [item._replace(nonce=os.urandom(24)) for item in incoming]
            await one.receive(1, fresh)
        await deleting

        def left(tx: Transaction) -> list[str]:
            tables = ("tokens", "subscriptions", "last_notifications", "pending_pushes")
            return [table for table in tables if tx.query(f"SELECT 1 FROM {table} LIMIT 1")]

        assert await one.read(left) == []
