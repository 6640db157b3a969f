"""What the messaging router journals: nothing that waits goes without a word."""

import asyncio
import time

from heliograph.journal.hashing import notification_id
from heliograph.smp import observer
from heliograph.wire import smp
from tests.journal.recorder import Notes
from tests.smp.support import OK, World, create_notified
from tests.waiting import until


def reported(world: World, kind: str) -> list[str]:
    return [event.notification for event in world.journal.of(kind)]


async def test_stored_and_delivered(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect()
    queue = await create_notified(alice)
    assert await queue.send(alice, b"quiet", notify=False) == OK
    assert await queue.send(alice, b"loud") == OK
    assert len(reported(world, "notification_stored")) == 1
    assert reported(world, "notification_delivered") == []
    assert await queue.nsub(ntf) == smp.SOK()
    nmsg = await ntf.push(queue.notifier_id)
    expected = [notification_id(nmsg.nonce)]
    assert (
        reported(world, "notification_stored")
        == reported(world, "notification_delivered")
        == expected
    )


async def test_removed_with_the_notifier_or_the_queue(world: World) -> None:
    alice = await world.connect()
    first, second, third = [await create_notified(alice) for _ in range(3)]
    for queue in (first, first, second, third):
        assert await queue.send(alice, b"hello") == OK
    stored = reported(world, "notification_stored")
    assert await first.ndel(alice) == OK
    assert reported(world, "notification_removed") == stored[:2]
    assert await second.delete(alice) == OK
    assert reported(world, "notification_removed") == stored[:3]


async def test_removed_by_the_commit_that_stores_it(world: World) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    answers = await asyncio.gather(queue.send(alice, b"hello"), queue.ndel(alice))
    assert [*answers] == [OK, OK]
    kinds = [event.kind for event in world.journal.events]
    assert kinds.index("notification_stored") < kinds.index("notification_removed")


async def test_expired(world: World) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    assert await queue.send(alice, b"hello") == OK
    await world.router.expire(time.time())
    assert reported(world, "notification_expired") == []
    await world.router.expire(time.time() + world.settings.notification_ttl + 2)
    assert reported(world, "notification_expired") == reported(world, "notification_stored")
    assert len(reported(world, "notification_expired")) == 1


async def test_waiting_notifications_are_journaled_at_the_start(
    world: World, monkeypatch: object
) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    for _ in range(5):
        assert await queue.send(alice, b"hello") == OK
    stored = reported(world, "notification_stored")
    monkeypatch.setattr(observer, "NOTIFICATIONS_PER_PAGE", 2)  # type: ignore[attr-defined]
    await world.stop()
    assert world.journal.events[-1].kind == "router_stopped"
    world.journal = Notes("smp")
    await world.start()
    await until(lambda: world.journal.of("router_recovered"))
    assert world.journal.events[0].kind == "router_started"
    assert reported(world, "notification_stored") == stored
    assert {event["reason"] for event in world.journal.of("notification_stored")} == {"recovered"}
    [recovered] = world.journal.of("router_recovered")
    assert recovered["count"] == 5


async def test_commands_are_counted(world: World) -> None:
    alice = await world.connect()
    queue = await create_notified(alice)
    for _ in range(3):
        assert await queue.send(alice, b"hello") == OK
    await world.stop()
    counted = {event["command"]: event["count"] for event in world.journal.of("commands_counted")}
    assert (counted["NEW"], counted["SEND"]) == (1, 3)
    assert [event["count"] for event in world.journal.of("client_connected")] == [1]
    await world.start()
