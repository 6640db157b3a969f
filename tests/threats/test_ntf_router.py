"""A notification router that is subscribed to notifications of messages."""

import json
import os
import time

import pytest

from heliograph.crypto.boxes import box_padded, open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh
from heliograph.push.provider import Delivery
from heliograph.wire import smp
from heliograph.wire.addresses import SMPQueueNtf
from heliograph.wire.ntf.push import (
    PUSH_SIZE,
    CheckMessagesPush,
    MessagePush,
    PNMessageData,
    decode_nmsg_meta,
    encode_pn_messages,
)
from heliograph.wire.ntf.tokens import PushProvider, SubscriptionState, TokenStatus
from heliograph.wire.smp.fields import MsgFlags
from tests.ntf.support import NtfWorld, Phone, Recorder
from tests.smp.support import AUTH, Queue, create_notified
from tests.threats.support import (
    a_tap,
    as_agent,
    mentions,
    shown,
    stored,
    subscribed_by_way_of,
)

BODY = b"the body of a message, which nobody else shall read"


async def subscribed(world: NtfWorld, count: int = 1) -> tuple[Phone, list[Queue]]:
    phone, queues = await world.registered(), await world.queues(count)
    for queue in queues:
        await phone.subscribe(queue)
    return phone, queues


async def test_learns_the_device_token(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    assert phone.device.token in stored(small_world.directory, "ntf")


async def test_learns_how_many_queues_and_routers(small_world: NtfWorld) -> None:
    world = small_world
    phone, _ = await subscribed(world, 2)
    other = await world.another_smp()
    peer = await other.connect()
    await phone.subscribe(await create_notified(peer), router=other)
    rows = await world.read(
        lambda tx: tx.query(
            "SELECT server_id, COUNT(*) FROM subscriptions WHERE token_id = ?"
            " GROUP BY server_id ORDER BY server_id",
            (phone.token_id,),
        )
    )
    assert [count for _, count in rows] == [2, 1]


async def test_learns_how_many_notifications_each_queue_has(small_world: NtfWorld) -> None:
    """It writes the list that a push carries, so it knows what each push was about."""
    world = small_world
    phone, (busy, calm) = await subscribed(world, 2)
    reported: list[bytes] = []
    for queue in (busy, busy, calm, busy):
        await world.send(queue)
        reported.append((await phone.notified())[-1].queue.notifier_id)
    assert reported.count(busy.notifier_id) == 3
    assert reported.count(calm.notifier_id) == 1


async def test_drops_notifications_undetectably(small_world: NtfWorld) -> None:
    """Neither its clients nor messaging routers can tell it from one that does its work."""
    world = small_world
    world.providers[PushProvider.APNS_TEST] = Recorder()  # says that it took them
    phone = await world.phone()
    await world.restart_ntf(phone)
    await phone.tnew()
    recorder = world.providers[PushProvider.APNS_TEST]
    assert isinstance(recorder, Recorder)
    await phone.until_status(TokenStatus.CONFIRMED)
    [verification] = recorder.to(phone.device)
    code = open_box_padded(phone.secret, verification.nonce, verification.box)  # type: ignore[union-attr]
    await phone.tvfy(code)
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    await world.send(queue)
    await world.smp.arrived()
    assert world.smp.router.observer.counters.notifications_delivered == 1
    assert (await phone.schk(subscription)).state is SubscriptionState.ACTIVE
    assert await phone.tchk() is TokenStatus.ACTIVE
    assert world.apns.attempts(phone.device) == 0
    # What it cannot drop is the message.
    assert await shown(world.sender, queue) == [b"hello"]


async def test_spams_with_background_notifications_only(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    provider = small_world.apns.new_provider()
    await provider.send(Delivery(phone.device, CheckMessagesPush(), int(time.time()) + 60))
    await provider.close()
    assert isinstance(await small_world.apns.push(phone.device), CheckMessagesPush)
    entry = small_world.apns.simulator.record.select(token=phone.device.token.decode())[-1]
    assert "alert" not in json.loads(entry.body)["aps"]
    assert entry.headers["apns-push-type"] == "background"


async def test_does_not_learn_queue_addresses(small_world: NtfWorld) -> None:
    world = small_world
    phone, [queue] = await subscribed(world)
    await world.send(queue)
    await phone.notified_of(queue)
    store = stored(world.directory, "ntf")
    assert not mentions(store, queue.rcv_id, queue.snd_id, queue.recipient.private)
    assert mentions(store, queue.notifier_id)


async def test_its_key_opens_no_door_but_its_own(small_world: NtfWorld) -> None:
    """The notifier's ID and key neither receive, nor send, nor change the queue."""
    world = small_world
    _, [queue] = await subscribed(world)
    await queue.send(world.sender, BODY)
    assert queue.notifier is not None
    peer = await world.smp.connect()
    key = queue.notifier.auth.private
    for entity_id in (queue.notifier_id, queue.rcv_id, queue.snd_id):
        for command in (smp.SUB(), smp.GET(), smp.ACK(b"x" * 24), smp.DEL(), smp.OFF(), smp.NDEL()):
            assert await peer.ask(command, entity_id, key) == AUTH, command
    assert await peer.ask(smp.SEND(MsgFlags(True), b"x"), queue.notifier_id, key) == AUTH
    assert await shown(world.sender, queue) == [BODY]


async def test_does_not_learn_contents_or_type(small_world: NtfWorld) -> None:
    """What it is sent does not depend on the message, and none of its keys opens it."""
    world = small_world
    phone, [queue] = await subscribed(world)
    notices = []
    for body in (b"x", BODY * 200):
        assert await queue.send(world.sender, body) == smp.OK()
        [notice] = await phone.notified()
        notices.append(notice)
    assert len(notices[0].meta) == len(notices[1].meta)
    store = stored(world.directory, "ntf")
    assert BODY[:20] not in store
    assert queue.notifier is not None
    secret = dh(queue.notifier.server_key, queue.notifier.dh.private)
    assert decode_nmsg_meta(open_box_padded(secret, notices[0].nonce, notices[0].meta)).msg_id
    [[dh_secret, dh_private]] = await world.read(
        lambda tx: tx.query("SELECT dh_secret, dh_private FROM tokens")
    )
    agreed = dh(queue.notifier.server_key, dh_private)
    for key in (dh_secret, agreed, phone.secret):
        with pytest.raises(CryptoError):
            open_box_padded(key, notices[0].nonce, notices[0].meta)


async def test_learns_nothing_about_messages_without_the_flag(small_world: NtfWorld) -> None:
    world = small_world
    async with a_tap(world.smp.address) as (address, heard):
        phone, queue = await subscribed_by_way_of(world, address)
        before, store = heard.volume, stored(world.directory, "ntf")
        for _ in range(3):
            assert await queue.send(world.sender, BODY, notify=False) == smp.OK()
        assert await phone.is_quiet(0.3)
        assert heard.since(before) == (0, 0)
        assert stored(world.directory, "ntf") == store
        assert world.router.stats.counters.ntf_received == 0


def forged(phone: Phone, queue: Queue, nonce: bytes, meta: bytes) -> MessagePush:
    """What a router can make with what it knows."""
    source = SMPQueueNtf(phone.world.smp.address, queue.notifier_id)
    entry = PNMessageData(source, int(time.time()), nonce, meta)
    outer = os.urandom(24)
    return MessagePush(
        outer, box_padded(phone.secret, outer, encode_pn_messages([entry]), PUSH_SIZE)
    )


async def test_visible_spam_is_filtered(small_world: NtfWorld) -> None:
    """A forged push says of no message that there is one, and none is there to be shown."""
    world = small_world
    phone, [queue] = await subscribed(world)
    push = forged(phone, queue, os.urandom(24), os.urandom(144))
    [found] = as_agent(phone, [queue], push)
    assert found.msg_id is None
    assert await queue.get(world.sender) == smp.OK()  # there is none
    assert await shown(world.sender, queue) == []
    stranger = await world.registered()
    assert as_agent(stranger, [queue], push) == []


async def test_cannot_add_duplicate_or_corrupt_messages(small_world: NtfWorld) -> None:
    """A push is a hint to look: the message comes from the messaging router, once and whole."""
    world = small_world
    phone, [queue] = await subscribed(world)
    await queue.send(world.sender, BODY)
    push = await world.apns.push(phone.device)
    assert isinstance(push, MessagePush)
    [first] = as_agent(phone, [queue], push)
    assert await shown(world.sender, queue) == [BODY]
    # Again: the same message, which is no longer there.
    [again] = as_agent(phone, [queue], push)
    assert again.msg_id == first.msg_id
    assert await shown(world.sender, queue) == []
    # Corrupted: it does not open.
    broken = bytes([push.box[0] ^ 1]) + push.box[1:]
    assert as_agent(phone, [queue], MessagePush(push.nonce, broken)) == []
