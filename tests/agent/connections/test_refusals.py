"""What routers refuse for good, and what cannot be understood: said, and nothing else stops."""

import asyncio
from pathlib import Path

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.errors import RouterError
from heliograph.agent.events import QueueGone, SendFailed
from heliograph.agent.keys import Vault
from heliograph.agent.messages import inbox, receiving, store as messages
from heliograph.agent.messages.envelope import EndQueue
from heliograph.agent.messages.inbox import Arrival, Receipt
from heliograph.agent.records import RcvQueue, RcvStatus, SndStatus
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.transport.client import Client
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm
from tests.agent.support import TIMEOUT, Router, User, connect, settings, users
from tests.waiting import eventually


async def rcv_queue(user: User, conn_id: str) -> RcvQueue:
    store = user.agent.store
    [queue] = await store.read(lambda tx: queues.rcv_queues_of(tx, store.vault, [conn_id]))
    return queue


async def delete_at_router(queue: RcvQueue) -> None:
    """Behind the back of its owner."""
    client = await Client.connect(queue.address)
    assert await client.request(smp.DEL(), queue.rcv_id, queue.recipient_key) == smp.OK()
    await client.close()


@pytest.mark.parametrize("version", [8, 19])
async def test_a_used_invitation(tmp_path: Path, router: Router, version: int) -> None:
    names = "alice", "bob", "eve"
    async with users(tmp_path, *names, settings=settings(version)) as [alice, bob, eve]:
        _, invitation = await alice.agent.create_connection(router.address)
        at_bob = await bob.agent.join_connection(invitation)
        async with asyncio.timeout(TIMEOUT):
            await bob.agent.wait_ready(at_bob)
        at_eve = await eve.agent.join_connection(invitation)
        await eve.agent.send(at_eve, b"me too")
        await eventually(lambda: has_failed(eve, at_eve, 2))
        assert {event.error for event in eve.events if isinstance(event, SendFailed)} == {"AUTH"}
        await eve.agent.send(at_eve, b"and again")
        await eventually(lambda: has_failed(eve, at_eve, 3))


async def has_failed(user: User, conn_id: str, count: int) -> bool:
    return len((await user.agent.connection(conn_id)).failed) == count


async def test_a_queue_secured_by_another(router: Router, alice: User, bob: User) -> None:
    """The router has another key than the one that the sender sent us."""
    at_alice, _ = await connect(alice, bob, router.address)
    queue, store = await rcv_queue(alice, at_alice), alice.agent.store
    other = generate_key_pair(Algorithm.X25519).public
    secret = queue.e2e_secret or b""
    await store.write(lambda tx: queues.set_sender(tx, store.vault, queue.queue_id, secret, other))
    assert (await alice.has(QueueGone)).conn_id == at_alice
    assert (await rcv_queue(alice, at_alice)).status is RcvStatus.GONE


async def test_the_end_of_a_queue_that_is_gone(router: Router, alice: User, bob: User) -> None:
    """Its recipient did not wait for it."""
    at_alice, at_bob = await connect(alice, bob, router.address)
    await delete_at_router(await rcv_queue(bob, at_bob))
    store = alice.agent.store

    def end(tx: Transaction) -> None:
        [queue] = queues.snd_queues_of(tx, store.vault, at_alice)
        queues.set_snd_status(tx, queue.queue_id, SndStatus.ENDED)
        messages.add_outgoing(tx, store.vault, at_alice, EndQueue(), 0, queue_id=queue.queue_id)

    await store.write(end)

    async def is_forgotten() -> bool:
        return not await store.read(lambda tx: queues.snd_queues_of(tx, store.vault, at_alice))

    await eventually(is_forgotten)
    assert (await alice.agent.connection(at_alice)).failed == ()


async def test_a_confirmation_whose_answer_was_lost(tmp_path: Path, router: Router) -> None:
    """It arrived, and the queue is secured: refused now, it is not taken for a failure."""
    async with users(tmp_path, "alice", "bob", settings=settings(8)) as [alice, bob]:
        _, at_bob = await connect(alice, bob, router.address)
        store = bob.agent.store

        def forget(tx: Transaction) -> None:
            """As if the answer, and what Alice said since, had not come."""
            [queue] = queues.snd_queues_of(tx, store.vault, at_bob)
            queues.set_snd_status(tx, queue.queue_id, SndStatus.NEW)
            tx.execute(
                "INSERT INTO outgoing (conn_id, queue_id, number, kind, notification, body,"
                " attempts, created_at) VALUES (?, ?, 1, ?, 0, ?, 1, 0)",
                (at_bob, queue.queue_id, b"C", b"00"),
            )

        await store.write(forget)

        async def waits() -> bool:
            [queue] = await store.read(lambda tx: queues.snd_queues_of(tx, store.vault, at_bob))
            return queue.status is SndStatus.CONFIRMED

        await eventually(waits)
        assert (await bob.agent.connection(at_bob)).failed == ()


async def test_a_queue_that_is_gone_when_it_is_subscribed(
    router: Router, alice: User, bob: User
) -> None:
    _, at_bob = await connect(alice, bob, router.address)
    queue = await rcv_queue(bob, at_bob)
    await bob.close()
    await delete_at_router(queue)
    await bob.open()
    for _ in range(2):
        outcome = (await bob.agent.subscribe())[at_bob]
        assert isinstance(outcome, RouterError)
        assert "no longer has the queue" in str(outcome)
        assert not outcome.temporary
    assert (await bob.has(QueueGone)) == QueueGone(at_bob, queue.queue_id)
    assert await bob.agent.get_message(at_bob) is None


async def test_one_message_that_nobody_understands(
    router: Router, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours with one queue is not one of all."""
    bad, _ = await connect(alice, bob, router.address)
    pairs = [await connect(alice, bob, router.address) for _ in range(5)]
    ids = {(await rcv_queue(bob, at_bob)).rcv_id for _, at_bob in pairs}
    receive = inbox.receive

    def fragile(
        tx: Transaction, vault: Vault, arrival: Arrival, at: int, room: int
    ) -> Receipt | None:
        if arrival.rcv_id not in ids:
            raise ValueError("a fault")
        return receive(tx, vault, arrival, at, room)

    monkeypatch.setattr(receiving, "receive", fragile)
    await alice.agent.send(bad, b"bad")
    for at_alice, _ in pairs:
        await alice.agent.send(at_alice, b"good")
    assert await bob.receive(5) == [b"good"] * 5
    monkeypatch.setattr(receiving, "receive", receive)
    await bob.restart()
    await bob.agent.subscribe()
    assert await bob.receive() == [b"bad"]


@pytest.mark.slow
async def test_a_locked_store_delays_and_loses_nothing(
    router: Router, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process holds it for longer than a writer waits."""
    at_alice, _ = await connect(alice, bob, router.address)
    monkeypatch.setattr("heliograph.agent.store.BUSY_TIMEOUT", 0.0)
    other = await User(bob.directory).open()
    release = asyncio.Event()
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(tx: Transaction) -> None:
        loop.call_soon_threadsafe(held.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    holding = asyncio.ensure_future(other.agent.store.write(hold))
    await held.wait()
    await alice.agent.send(at_alice, b"while it is locked")
    await asyncio.sleep(6.0)  # SQLite's own timeout is 5 s
    release.set()
    await holding
    assert await bob.receive() == [b"while it is locked"]
    await other.close()
