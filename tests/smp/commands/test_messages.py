"""Messages: their order, one at a time, quota, size, GET beside SUB, take-over, expiry."""

import asyncio
import time
from typing import Any

import pytest

from heliograph.db.dialects import Transaction
from heliograph.smp.settings import Rules
from heliograph.smp.store import store
from heliograph.transport import client
from heliograph.transport.client import ClientRequest
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.requests import Reply, decode_replies
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.smp.messages import RcvMessage, RcvQuota
from heliograph.wire.transmissions import Session
from tests.smp.support import (
    NO_MSG,
    OK,
    PROHIBITED,
    QUOTA,
    World,
    create,
    create_notified,
    error,
    with_settings,
)
from tests.waiting import until


async def test_one_at_a_time_and_in_order(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice)
    for n in range(5):
        assert await queue.send(bob, b"%d" % n) == OK
    message = await alice.push(queue.rcv_id)
    assert await alice.is_quiet()
    for n in range(5):
        assert queue.body(message) == b"%d" % n
        message = await queue.ack(alice, message)
    assert message == OK
    assert await queue.send(bob, b"next") == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"next"


async def test_what_a_message_says(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    for notify, body in ((True, b"loud"), (False, b""), (False, bytes(range(256)))):
        await queue.send(alice, body, notify=notify)
    message = await queue.get(alice)
    contents = [queue.decrypt(message)]
    for _ in range(2):
        await queue.ack(alice, message)
        message = await queue.get(alice)
        contents.append(queue.decrypt(message))
    assert [item.flags.notification for item in contents if isinstance(item, RcvMessage)] == [
        True,
        False,
        False,
    ]
    assert [item.body for item in contents if isinstance(item, RcvMessage)] == [
        b"loud",
        b"",
        bytes(range(256)),
    ]
    now = time.time()
    assert all(now - 600 < item.timestamp < now + 5 for item in contents)


async def test_acknowledging_what_was_not_delivered(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice)
    assert await queue.ack(alice, b"") == NO_MSG
    assert await queue.ack(bob, b"") == NO_MSG
    await queue.send(bob, b"one")
    await queue.send(bob, b"two")
    message = await alice.push(queue.rcv_id)
    assert await queue.ack(alice, b"\0" * 24) == NO_MSG
    assert await queue.ack(bob, message) == NO_MSG
    assert queue.body(await queue.ack(alice, b"")) == b"two"  # an empty ID is whatever it is
    assert await queue.ack(alice, message) == NO_MSG
    assert await queue.ack(alice, b"") == OK


async def test_subscribing_again_delivers_again(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice)
    await queue.send(alice, b"one")
    first = await alice.push(queue.rcv_id)
    assert await queue.sub(alice) == smp.SOK()
    assert await alice.push(queue.rcv_id) == first
    assert await queue.ack(alice, first) == OK
    assert await queue.sub(alice) == smp.SOK()
    assert await alice.is_quiet()


@pytest.mark.parametrize("order", ["send first", "subscribe first"])
async def test_sending_and_subscribing_at_once_delivers_once(world: World, order: str) -> None:
    """A message that becomes durable while SUB waits comes with its answer, and not before too."""
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    requests = [
        queue.sending(b"one"),
        ClientRequest(smp.SUB(), queue.rcv_id, queue.recipient.private),
    ]
    if order == "subscribe first":
        requests.reverse()
    answers = await alice.ask_many(requests)
    assert set(answers) == {OK, smp.SOK()}
    assert queue.body(await alice.push(queue.rcv_id)) == b"one"
    assert await alice.is_quiet()


async def test_two_senders_and_a_receiver_at_once(world: World) -> None:
    alice, bob, carol = [await world.connect() for _ in range(3)]
    queue = await create(alice)
    for n in range(10):
        sent = {b"bob %d" % n, b"carol %d" % n}
        answers = await asyncio.gather(
            queue.send(bob, b"bob %d" % n), queue.send(carol, b"carol %d" % n)
        )
        assert list(answers) == [OK, OK]
        first = await alice.push(queue.rcv_id)
        second = await queue.ack(alice, first)
        assert {queue.body(first), queue.body(second)} == sent
        assert await queue.ack(alice, second) == OK


async def test_take_over(world: World) -> None:
    alice, phone, bob = [await world.connect() for _ in range(3)]
    queue = await create(alice)
    await queue.send(bob, b"one")
    await queue.send(bob, b"two")
    message = await queue.ack(alice, await alice.push(queue.rcv_id))
    assert queue.body(message) == b"two"
    assert await queue.sub(phone) == smp.SOK()
    assert await alice.push(queue.rcv_id) == smp.END()
    again = await phone.push(queue.rcv_id)
    assert again == message
    assert await queue.ack(alice, message) == NO_MSG
    assert await queue.ack(phone, again) == OK
    await queue.send(bob, b"three")
    message = await phone.push(queue.rcv_id)
    assert queue.body(message) == b"three"
    assert await queue.ack(alice, message) == NO_MSG
    assert await queue.ack(phone, message) == OK
    assert await alice.is_quiet()


async def test_taken_over_before_it_was_answered(world: World) -> None:
    """A client that loses its subscription at once gets END after SOK."""
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"one")
    for _ in range(5):
        peers = [await world.connect() for _ in range(3)]
        assert await asyncio.gather(*map(queue.sub, peers)) == [smp.SOK()] * 3
        await until(lambda peers=peers: sum(len(peer.pushes) for peer in peers) >= 3)  # type: ignore[misc]
        ended = [peer for peer in peers if (queue.rcv_id, smp.END()) in peer.pushes]
        [holder] = [peer for peer in peers if peer not in ended]
        assert all(peer.pushes[-1] == (queue.rcv_id, smp.END()) for peer in ended)
        assert queue.body(holder.pushes[0][1]) == b"one"
        for peer in peers:
            await peer.close()


async def test_the_order_of_an_answer_and_its_end(
    small_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, phone = await small_world.connect(), await small_world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"one")
    seen: list[object] = []

    def record(session: Session, *arguments: Any) -> list[Any]:
        found = list(decode_replies(session, *arguments))
        if session is alice.client.established.session:
            seen.extend(item.message for item in found if isinstance(item, Reply))
        return found

    monkeypatch.setattr(client, "decode_replies", record)
    await asyncio.gather(queue.sub(alice), queue.sub(phone))
    await until(lambda: smp.END() in seen or smp.END() in [item for _, item in phone.pushes])
    if smp.END() in seen:
        assert seen.index(smp.SOK()) < seen.index(smp.END())


async def test_taken_over_while_it_acknowledges(world: World) -> None:
    alice, phone = await world.connect(), await world.connect()
    queue = await create(alice)
    await queue.send(alice, b"one")
    await queue.send(alice, b"two")
    message = await alice.push(queue.rcv_id)
    acknowledged, subscribed = await asyncio.gather(queue.ack(alice, message), queue.sub(phone))
    assert subscribed == smp.SOK()
    assert acknowledged in (OK, NO_MSG) or queue.body(acknowledged) == b"two"
    assert await alice.push(queue.rcv_id) == smp.END()
    first = queue.body(await phone.push(queue.rcv_id))
    assert first == (b"one" if acknowledged == NO_MSG else b"two")
    assert await alice.is_quiet()


async def test_a_connection_that_ended_is_not_the_subscriber(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create(alice)
    alice.vanish()
    await queue.send(bob, b"one")
    again = await world.connect()
    assert await queue.receive_all(again) == [b"one"]
    assert await again.is_quiet(0)


async def test_get_and_sub_do_not_mix_on_one_connection(world: World) -> None:
    alice, phone, bob = [await world.connect() for _ in range(3)]
    queue = await create(alice)
    for n in range(1, 5):
        await queue.send(bob, b"%d" % n)
    first = await alice.push(queue.rcv_id)
    assert await queue.get(phone) == first
    assert await queue.get(alice) == PROHIBITED
    assert await queue.sub(phone) == PROHIBITED
    second = await queue.ack(alice, first)
    assert queue.body(second) == b"2"
    assert await queue.ack(phone, b"1234") == NO_MSG
    assert await queue.ack(phone, first) == OK  # again: the message is gone already
    assert await queue.size(alice) == 3
    assert await queue.get(phone) == second
    assert await queue.ack(phone, second) == OK  # and not the next
    third = await queue.get(phone)
    assert queue.body(third) == b"3"
    assert await queue.ack(alice, second) == third
    assert await queue.size(alice) == 2
    fourth = await queue.ack(alice, third)
    assert queue.body(fourth) == b"4"
    assert await queue.ack(alice, fourth) == OK
    assert await queue.get(phone) == OK
    assert await queue.size(alice) == 0
    await queue.send(bob, b"5")
    assert queue.body(await alice.push(queue.rcv_id)) == b"5"


async def test_acknowledged_twice_and_then_reloaded(world: World) -> None:
    """The router must not count a message twice, whatever it remembers of the queue."""
    alice, phone = await world.connect(), await world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"one")
    message = await queue.get(phone)
    assert await queue.sub(alice) == smp.SOK()
    assert await alice.push(queue.rcv_id) == message
    assert await queue.ack(alice, message) == OK
    world.router.queues.clear()
    await queue.send(alice, b"two")
    assert queue.body(await alice.push(queue.rcv_id)) == b"two"
    assert await queue.ack(phone, message) == OK
    assert await queue.size(alice) == 1


async def test_get_does_not_end_a_subscription(world: World) -> None:
    alice, phone = await world.connect(), await world.connect()
    queue = await create(alice)
    assert await queue.get(phone) == OK
    await queue.send(phone, b"one")
    message = await alice.push(queue.rcv_id)
    assert await queue.get(phone) == message
    assert await queue.ack(phone, message) == OK
    await queue.send(phone, b"two")  # the subscriber has not acknowledged the first
    assert await alice.is_quiet()
    assert queue.body(await queue.ack(alice, message)) == b"two"


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(quota=2))])
async def test_quota(world: World) -> None:
    alice, bob = await world.connect(), await world.connect()
    queue = await create_notified(alice, subscribe=True)
    assert await queue.send(bob, b"one") == OK
    assert await queue.send(bob, b"two") == OK
    assert await queue.send(bob, b"three") == QUOTA
    assert await queue.send(bob, b"three") == QUOTA
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == b"one"
    message = await queue.ack(alice, message)
    assert queue.body(message) == b"two"
    assert await queue.send(bob, b"three") == QUOTA
    await world.restart()
    alice, bob = await world.connect(), await world.connect()
    assert await queue.send(bob, b"three") == QUOTA
    await queue.sub(alice)
    mark = await queue.ack(alice, await alice.push(queue.rcv_id))
    assert isinstance(queue.decrypt(mark), RcvQuota)
    assert await queue.send(bob, b"three") == QUOTA
    assert await queue.ack(alice, mark) == OK
    assert await queue.send(bob, b"three") == OK
    assert queue.body(await alice.push(queue.rcv_id)) == b"three"
    assert await world.notifications() == 3  # not for the mark


async def test_quota_of_128(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    answers = await alice.ask_many([queue.sending(b"%d" % n) for n in range(131)])
    assert answers == [OK] * 128 + [QUOTA] * 3
    info = await queue.by_recipient(alice, smp.QUE())
    assert info.info.size == 129
    assert await queue.receive_all(alice) == [*(b"%d" % n for n in range(128)), None]
    assert await queue.send(alice, b"again") == OK


@pytest.mark.parametrize(("version", "longest"), [(6, 16088), (8, 16064), (11, 16048), (19, 16048)])
async def test_the_longest_body(small_world: World, version: int, longest: int) -> None:
    alice = await small_world.connect(version)
    queue = await create(alice)
    assert await queue.send(alice, bytes(longest)) == OK
    message = await alice.push(queue.rcv_id)
    assert queue.body(message) == bytes(longest)
    if version >= 8:  # more does not fit a block before
        too_long = smp.SEND(MsgFlags(False), bytes(longest + 1))
        assert await alice.ask(too_long, queue.snd_id) == error(ErrorCode.LARGE_MSG)
    assert await queue.ack(alice, message) == OK


async def test_a_message_for_every_version_from_every_version(small_world: World) -> None:
    """What an old client may send, a new one can receive, and the other way round."""
    old, new = await small_world.connect(6), await small_world.connect(19)
    for sender, receiver, size in ((old, new, 16088), (new, old, 16048)):
        queue = await create(receiver)
        assert await queue.send(sender, bytes(size)) == OK
        assert queue.body(await receiver.push(queue.rcv_id)) == bytes(size)


@pytest.mark.parametrize("settings", [with_settings(message_ttl=100, notification_ttl=100)])
class TestExpiry:
    async def test_messages_and_notifications_expire(self, world: World) -> None:
        alice = await world.connect()
        queues = [await create_notified(alice) for _ in range(3)]
        for queue in queues:
            await queue.send(alice, b"old")
        await world.router.expire(time.time() + 50)
        assert (await world.router.store.counts())[2:] == (3, 3)
        await world.router.expire(time.time() + 1000)
        assert (await world.router.store.counts())[2:] == (0, 0)
        assert world.router.observer.counters.messages_expired == 3
        for queue in queues:
            assert await queue.receive_all(alice) == []
            await queue.send(alice, b"new")
            message = await alice.push(queue.rcv_id)
            assert queue.body(message) == b"new"
            assert await queue.ack(alice, message) == OK

    async def test_a_clock_that_was_ahead_holds_nothing_back(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alice = await world.connect()
        queue = await create(alice, subscribe=False)
        tomorrow = time.time() + 86_400
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: tomorrow)
            await queue.send(alice, b"from the future")
        for _ in range(3):
            await queue.send(alice, b"old")
        monkeypatch.setattr(store, "_EXPIRED_PAGE", 1)
        await world.router.expire(time.time() + 1000)
        assert world.router.observer.counters.messages_expired == 3
        assert await queue.receive_all(alice) == [b"from the future"]

    async def test_of_a_message_that_is_delivered(self, world: World) -> None:
        alice = await world.connect()
        queue = await create(alice)
        await queue.send(alice, b"old")
        message = await alice.push(queue.rcv_id)
        await world.router.expire(time.time() + 1000)
        await queue.send(alice, b"new")
        assert await alice.is_quiet()  # it waits for the acknowledgement
        message = await queue.ack(alice, message)
        assert queue.body(message) == b"new"
        assert await queue.size(alice) == 1
        assert await queue.ack(alice, message) == OK

    async def test_while_it_is_acknowledged(self, world: World) -> None:
        alice = await world.connect()
        queue = await create(alice)
        for body in (b"old", b"older"):
            await queue.send(alice, body)
        message = await alice.push(queue.rcv_id)
        expiring = asyncio.create_task(world.router.expire(time.time() + 1000))
        answer = await queue.ack(alice, message)
        await expiring
        assert answer == OK or queue.body(answer) == b"older"
        assert await queue.size(alice) == 0
        await queue.send(alice, b"new")
        if answer != OK:
            answer = await queue.ack(alice, answer)
        else:
            answer = await alice.push(queue.rcv_id)
        assert queue.body(answer) == b"new"

    async def test_of_queues_that_are_not_in_memory(self, world: World) -> None:
        alice = await world.connect()
        queue = await create(alice, subscribe=False)
        await queue.send(alice, b"old")
        await world.restart()
        alice = await world.connect()
        _, subscribed, sent = await asyncio.gather(
            world.router.expire(time.time() + 1000), queue.sub(alice), queue.send(alice, b"new")
        )
        assert (subscribed, sent) == (smp.SOK(), OK)
        phone = await world.connect()
        assert await queue.receive_all(phone) in ([], [b"new"])  # it may have expired as well
        assert await queue.size(phone) == 0
        await queue.send(alice, b"newer")
        assert queue.body(await phone.push(queue.rcv_id)) == b"newer"


@pytest.mark.parametrize("settings", [with_settings(rules=Rules(quota=1), message_ttl=100)])
async def test_a_full_queue_accepts_again_after_expiry(world: World) -> None:
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"one")
    assert await queue.send(alice, b"two") == QUOTA
    await world.router.expire(time.time() + 1000)
    assert await queue.send(alice, b"two") == OK


async def test_notifications_expire_in_any_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an imported log are sorted by notifier."""
    monkeypatch.setattr(store, "_EXPIRED_PAGE", 2)
    alice = await world.connect()
    queue = await create_notified(alice)
    for _ in range(4):
        await queue.send(alice, b"hello")

    def age(tx: Transaction) -> None:
        tx.execute("UPDATE notifications SET timestamp = 1 WHERE seq > ?", (1,))

    await world.router.store.database.write(age)
    await world.router.expire(time.time())
    assert await world.notifications() == 1


async def test_messages_expire_when_the_router_starts(world: World) -> None:
    """A router that is restarted often must not keep them for ever."""
    alice = await world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"old")
    world.settings = with_settings(message_ttl=-10)
    await world.restart()
    counters = world.router.observer.counters
    await until(lambda: counters.messages_expired == 1)
    assert await queue.get(await world.connect()) == OK


@pytest.mark.parametrize("settings", [with_settings(message_ttl=-10, expiration_interval=0.05)])
async def test_the_router_expires_by_itself(small_world: World) -> None:
    alice = await small_world.connect()
    queue = await create(alice, subscribe=False)
    await queue.send(alice, b"old")
    assert await alice.is_quiet(0.2)
    assert await queue.get(alice) == OK
