"""Rotation of queues, and deletion that outlives restarts."""

import asyncio
from pathlib import Path

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.errors import Prohibited, UnknownConnection
from heliograph.agent.records import RcvQueue, SndStatus
from heliograph.db.dialects import Transaction
from tests.agent.places import BOTH_STORES
from tests.agent.support import TIMEOUT, Router, User, connect, settings, users
from tests.waiting import eventually

pytestmark = BOTH_STORES


async def rcv_queues(user: User, conn_id: str) -> list[RcvQueue]:
    store = user.agent.store
    return await store.read(lambda tx: queues.rcv_queues_of(tx, store.vault, [conn_id]))


async def rotated(user: User, conn_id: str, router: Router) -> None:
    """Until only the queue at this router is left."""

    async def only_one() -> bool:
        left = await rcv_queues(user, conn_id)
        return [queue.address for queue in left] == [router.address]

    await eventually(only_one)


async def connect_through(
    alice: User, router_of_alice: Router, bob: User, router_of_bob: Router
) -> tuple[str, str]:
    """Connect two users who receive at different routers."""
    at_alice, invitation = await alice.agent.create_connection(router_of_alice.address)
    at_bob = await bob.agent.join_connection(invitation, router_of_bob.address)
    async with asyncio.timeout(TIMEOUT):
        await alice.agent.wait_ready(at_alice)
        await bob.agent.wait_ready(at_bob)
    return at_alice, at_bob


@pytest.mark.parametrize("version", [6, 8, 9, 19])
async def test_rotation(tmp_path: Path, router: Router, other_router: Router, version: int) -> None:
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, at_bob = await connect(alice, bob, router.address)
        await alice.agent.send(at_alice, b"through the old")
        await bob.agent.rotate_queue(at_bob, other_router.address)
        assert await bob.receive() == [b"through the old"]
        await rotated(bob, at_bob, other_router)
        await router.stop()
        await alice.agent.send(at_alice, b"through the new")
        assert await bob.receive() == [b"through the new"]
        snd = await alice.agent.store.read(
            lambda tx: queues.snd_queues_of(tx, alice.agent.store.vault, at_alice)
        )
        assert [(queue.status, queue.is_current) for queue in snd] == [(SndStatus.ACTIVE, True)]


async def test_nothing_is_lost_on_the_way(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    sent = [b"%d" % number for number in range(60)]
    receiving = asyncio.create_task(bob.receive(60))
    for number, body in enumerate(sent):
        await alice.agent.send(at_alice, body)
        if number in (10, 30):
            target = other_router if number == 10 else router
            await bob.agent.rotate_queue(at_bob, target.address)
    assert sorted(await receiving, key=int) == sent
    await rotated(bob, at_bob, router)


async def test_a_later_rotation_ends_before_an_earlier_one(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    await alice.close()
    await bob.agent.rotate_queue(at_bob, other_router.address)
    await bob.agent.rotate_queue(at_bob, router.address)
    [first, _, last] = await rcv_queues(bob, at_bob)
    await other_router.stop()
    await alice.open()
    await alice.agent.subscribe()

    async def first_is_replaced() -> bool:
        return first.queue_id not in {item.queue_id for item in await rcv_queues(bob, at_bob)}

    await eventually(first_is_replaced)
    await other_router.start()
    await rotated(bob, at_bob, router)
    assert [item.queue_id for item in await rcv_queues(bob, at_bob)] == [last.queue_id]
    await alice.agent.send(at_alice, b"through the last")
    assert await bob.receive() == [b"through the last"]


@pytest.mark.parametrize("status", SndStatus)
async def test_an_older_queue_becomes_current_only_if_the_newer_is_refused(
    router: Router, alice: User, bob: User, status: SndStatus
) -> None:
    at_alice, _ = await connect(alice, bob, router.address)
    vault = alice.agent.store.vault

    def activate_both(tx: Transaction) -> tuple[list[int], list[int], list[int]]:
        [old] = queues.snd_queues_of(tx, vault, at_alice)
        keys = old.sender_key, old.e2e_public, old.e2e_secret
        new = queues.NewSndQueue(old.address, b"new", *keys, False, False)
        newer = queues.add_snd_queue(tx, vault, at_alice, new)
        assert queues.make_current(tx, at_alice, newer) == [old.queue_id]
        queues.set_snd_status(tx, newer, status)
        replaced = queues.make_current(tx, at_alice, old.queue_id)
        found = queues.snd_queues_of(tx, vault, at_alice)
        current = [item.queue_id for item in found if item.is_current]
        return replaced, current, [old.queue_id, newer]

    replaced, current, [older, newer] = await alice.agent.store.write(activate_both)
    if status is SndStatus.REFUSED:
        older, newer = newer, older
    assert (replaced, current) == ([older], [newer])


async def test_the_end_of_the_first_queue_comes_last(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    """Its router is down while the queue after it is replaced and deleted."""
    _, at_bob = await connect_through(alice, other_router, bob, router)
    [first] = await rcv_queues(bob, at_bob)
    await router.stop()
    await bob.agent.rotate_queue(at_bob, other_router.address)
    [_, second] = await rcv_queues(bob, at_bob)
    await bob.agent.rotate_queue(at_bob, other_router.address)

    async def second_is_deleted() -> bool:
        return second.queue_id not in {item.queue_id for item in await rcv_queues(bob, at_bob)}

    await eventually(second_is_deleted)
    assert first.queue_id in {item.queue_id for item in await rcv_queues(bob, at_bob)}
    await router.start()
    await rotated(bob, at_bob, other_router)


async def test_a_queue_that_was_not_confirmed_is_replaced(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    """Its router is down from the moment that it was made."""
    at_alice, invitation = await alice.agent.create_connection(other_router.address)
    await alice.close()
    at_bob = await bob.agent.join_connection(invitation, router.address)
    await router.stop()
    await alice.open()
    await alice.agent.subscribe()
    async with asyncio.timeout(TIMEOUT):
        await bob.agent.wait_ready(at_bob)
    await bob.agent.rotate_queue(at_bob, other_router.address)
    await alice.agent.send(at_alice, b"through the next")
    assert await bob.receive() == [b"through the next"]
    await router.start()
    await rotated(bob, at_bob, other_router)


@pytest.mark.parametrize("version", [8, 19])
async def test_both_sides_at_once(
    tmp_path: Path, router: Router, other_router: Router, version: int
) -> None:
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, at_bob = await connect(alice, bob, router.address)
        await asyncio.gather(
            alice.agent.rotate_queue(at_alice, other_router.address),
            bob.agent.rotate_queue(at_bob, other_router.address),
        )
        await rotated(alice, at_alice, other_router)
        await rotated(bob, at_bob, other_router)
        await alice.agent.send(at_alice, b"to bob")
        await bob.agent.send(at_bob, b"to alice")
        assert await bob.receive() == [b"to bob"]
        assert await alice.receive() == [b"to alice"]


@pytest.mark.parametrize("version", [8, 19])
async def test_rotation_outlives_restarts(
    tmp_path: Path, router: Router, other_router: Router, version: int
) -> None:
    async with users(tmp_path, "alice", "bob", settings=settings(version)) as [alice, bob]:
        at_alice, at_bob = await connect(alice, bob, router.address)
        await alice.close()
        await bob.agent.rotate_queue(at_bob, other_router.address)
        await bob.restart()
        await bob.agent.subscribe()
        await alice.open()
        await alice.agent.subscribe()
        await router.restart()
        await other_router.restart()
        await rotated(bob, at_bob, other_router)
        await alice.restart()
        await alice.agent.send(at_alice, b"still here")
        assert await bob.receive() == [b"still here"]


async def test_the_old_router_is_gone_for_good(
    router: Router, other_router: Router, alice: User, bob: User
) -> None:
    """Bob cannot delete his old queue, and Alice cannot end it; yet messages pass."""
    at_alice, at_bob = await connect_through(alice, other_router, bob, router)
    await router.stop()
    await alice.agent.send(at_alice, b"stuck")
    await bob.agent.rotate_queue(at_bob, other_router.address)
    assert await bob.receive() == [b"stuck"]
    await alice.agent.send(at_alice, b"and on")
    assert await bob.receive() == [b"and on"]


async def test_a_queue_rotates_only_once_the_other_side_has_joined(
    router: Router, alice: User
) -> None:
    conn_id, _ = await alice.agent.create_connection(router.address)
    with pytest.raises(Prohibited, match="joined"):
        await alice.agent.rotate_queue(conn_id, router.address)


async def test_deletion_outlives_restarts(router: Router, alice: User, bob: User) -> None:
    at_alice, at_bob = await connect(alice, bob, router.address)
    await alice.agent.send(at_alice, b"never read")
    await router.stop()
    await bob.agent.delete_connection(at_bob)
    assert await bob.agent.connections() == []
    with pytest.raises(UnknownConnection):
        await bob.agent.send(at_bob, b"")
    await bob.restart()
    assert len(await rcv_queues(bob, at_bob)) == 1
    await router.start()

    async def is_forgotten() -> bool:
        rows = await bob.agent.store.read(lambda tx: tx.query("SELECT 1 FROM connections"))
        return not rows and not await rcv_queues(bob, at_bob)

    await eventually(is_forgotten)
    for table in ("snd_queues", "outgoing", "received"):
        query = f"SELECT 1 FROM {table}"
        assert await bob.agent.store.read(lambda tx, q=query: tx.query(q)) == []  # type: ignore[misc]
