"""A restart in every state: what the queue is, what was delivered, what waits."""

import itertools

import pytest

from heliograph.smp.settings import Rules
from heliograph.wire import smp
from tests.smp.support import (
    AUTH,
    OK,
    QUOTA,
    World,
    create,
    create_notified,
    service,
    with_settings,
)
from tests.waiting import until

SECURED = ("no", "by recipient", "by sender")
MESSAGES = ("none", "waiting", "delivered", "acknowledged", "full")
NOTIFICATIONS = ("no credentials", "none", "waiting", "delivered", "replaced", "removed")


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(quota=3))])
@pytest.mark.parametrize("secured", SECURED)
@pytest.mark.parametrize("is_off", [False, True], ids=["on", "off"])
async def test_every_state(world: World, secured: str, is_off: bool) -> None:
    alice, bob = await world.connect(), await world.connect()
    cases = []
    for messages, notifications in itertools.product(MESSAGES, NOTIFICATIONS):
        queue = await create(alice)
        if secured != "no":
            secure = queue.secure if secured == "by recipient" else queue.secure_by_sender
            assert await secure(alice) == OK
        if notifications != "no credentials":
            await queue.nkey(alice)
        ntf = None
        if notifications == "delivered":
            ntf = await world.connect()
            await queue.nsub(ntf)
        sent = [] if messages == "none" else [b"one", b"two"]
        if messages == "full":
            sent.append(b"three")
        for body in sent:
            assert await queue.send(bob, body) == OK
        if messages == "full":
            assert await queue.send(bob, b"four") == QUOTA
        left: list[bytes | None] = [*sent, *([None] if messages == "full" else [])]
        if messages in ("delivered", "acknowledged"):
            message = await alice.push(queue.rcv_id)
            if messages == "acknowledged":
                await queue.ack(alice, message)
                left.pop(0)
        alice.pushes.clear()
        waiting = len(sent)
        if ntf is not None:
            await until(lambda ntf=ntf, sent=sent: len(ntf.pushes) == len(sent))  # type: ignore[misc]
            await world.arrived()
            waiting = 0
        if notifications == "replaced":
            await queue.nkey(alice)
            waiting = 0
        elif notifications == "removed":
            await queue.ndel(alice)
            waiting = 0
        if is_off:
            assert await queue.by_recipient(alice, smp.OFF()) == OK
        cases.append((queue, messages, notifications, left, waiting))
    await world.restart()
    alice, bob = await world.connect(), await world.connect()
    for queue, messages, notifications, left, waiting in cases:
        ntf = await world.connect()
        if notifications in ("no credentials", "removed"):
            if queue.notifier is not None:
                assert await queue.nsub(ntf) == AUTH
        else:
            assert await queue.nsub(ntf) == smp.SOK()
            await until(lambda ntf=ntf, waiting=waiting: len(ntf.pushes) == waiting)  # type: ignore[misc]
        answer = await queue.send(bob, b"last")
        assert answer == (AUTH if is_off else QUOTA if messages == "full" else OK)
        if answer == OK:
            left.append(b"last")
        assert await queue.receive_all(alice) == left
        await ntf.close()


async def test_deleted_queues_stay_deleted(world: World) -> None:
    alice = await world.connect()
    queue, kept = await create_notified(alice), await create_notified(alice)
    for each in (queue, kept):
        await each.send(alice, b"hello")
    assert await queue.delete(alice) == OK
    await world.restart()
    alice = await world.connect()
    assert await queue.sub(alice) == AUTH
    assert await queue.send(alice, b"hello") == AUTH
    assert await queue.nsub(alice) == AUTH
    assert await kept.receive_all(alice) == [b"hello"]
    assert (await world.router.store.counts())[:3] == (1, 1, 0)


async def test_ids_are_not_confused_after_everything_was_received(world: World) -> None:
    """Numbers of messages begin again after a restart with an empty store."""
    alice = await world.connect()
    queue = await create_notified(alice)
    for round_ in range(3):
        await queue.send(alice, b"%d" % round_)
        ntf = await world.connect()
        await queue.nsub(ntf)
        await ntf.push(queue.notifier_id)
        assert await queue.receive_all(alice) == [b"%d" % round_]
        await world.arrived()
        await world.restart()
        alice = await world.connect()
    assert await world.notifications() == 0


async def test_services_keep_their_queues(world: World) -> None:
    alice, ntf = await world.connect(), await world.connect(service=service())
    queues = [await create_notified(alice) for _ in range(4)]
    await ntf.ask_many([queue.nsubscribing() for queue in queues])
    await queues[0].ndel(alice)
    await queues[1].nkey(alice)
    before = await ntf.nsubs()
    assert before.count == 2
    await world.restart()
    alice, ntf = await world.connect(), await world.connect(service=service())
    assert await ntf.nsubs() == before
    for queue in queues:
        await queue.send(alice, b"hello")
    await until(lambda: len(ntf.pushes) == 2)
    assert {of for of, _ in ntf.pushes} == {queues[2].notifier_id, queues[3].notifier_id}
