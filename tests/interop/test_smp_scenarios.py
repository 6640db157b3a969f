"""The scenarios that the reference tests of its messaging server, one test each, block by block.

What shares a block and in which order is part of them: the reference's tests read one transmission
from a block, or two.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.smp.settings import Rules, SmpSettings
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import encode_short
from heliograph.wire.smp.fields import QueueLink, QueueMode
from heliograph.wire.smp.links import sender_id_of
from tests.interop.blocks import Handle, a_key, create, create_secured, new, sending
from tests.keys import fixed_bytes, fixed_key_pair
from tests.smp.support import AUTH, NO_MSG, OK, PROHIBITED, QUOTA, Queue, World, a_world, new_store

CURRENT = 18
SOK = smp.SOK()
MAX_BODY = b"-" * smp.max_message_length(CURRENT)
A_SIGNATURE = fixed_bytes("signature", 64)
LARGE = smp.ERR(ErrorCode.LARGE_MSG)
ALGORITHMS = (Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings = SmpSettings(rules=Rules(quota=4), ntf_delivery_interval=0)
    async with a_world(new_store("sqlite", tmp_path), settings) as running:
        yield running


async def test_create_and_secure_by_recipient(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    queue = await create(r)
    rid, sid, key = queue.rcv_id, queue.snd_id, queue.recipient.private
    assert await s.ask(b"bcda", sending(b"hello"), sid) == OK
    message = await r.pushed(rid)
    assert queue.body(message) == b"hello"
    assert await r.ask(b"cdab", smp.ACK(message.msg_id), rid, key) == OK
    assert await r.ask(b"dabc", smp.ACK(message.msg_id), rid, key) == NO_MSG
    sender = a_key()
    assert await s.ask(b"abcd", sending(b"hello"), sid, sender.private) == AUTH
    assert await r.ask(b"bcda", smp.KEY(sender.public), rid, a_key().private) == AUTH
    assert await r.ask(b"cdab", smp.KEY(sender.public), sid, key) == AUTH
    for _ in range(2):
        assert await r.ask(b"dabc", smp.KEY(sender.public), rid, key) == OK
    assert await r.ask(b"abcd", smp.KEY(a_key().public), rid, key) == AUTH
    await _exchange_on_secured(r, s, queue, sender.private)


async def test_create_and_secure_by_sender(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    queue = await create(r)
    sender, other = a_key(), a_key()
    skey = smp.SKEY(sender.public)
    assert await s.ask(b"bcda", skey, queue.snd_id, other.private) == AUTH
    assert await s.ask(b"cdab", skey, queue.rcv_id, sender.private) == AUTH
    assert await s.ask(b"dabc", skey, queue.snd_id, sender.private) == OK
    assert await s.ask(b"abcd", smp.SKEY(other.public), queue.snd_id, other.private) == AUTH
    assert await s.ask(b"abcd", skey, queue.snd_id, sender.private) == OK
    await _exchange_on_secured(r, s, queue, sender.private)


async def _exchange_on_secured(r: Handle, s: Handle, queue: Queue, sender: bytes) -> None:
    rid, sid, key = queue.rcv_id, queue.snd_id, queue.recipient.private
    assert await s.ask(b"bcda", sending(b"hello again"), sid, sender) == OK
    message = await r.pushed(rid)
    assert queue.body(message) == b"hello again"
    assert await r.ask(b"cdab", smp.ACK(message.msg_id), rid, key) == OK
    assert await s.ask(b"dabc", sending(b"hello"), sid) == AUTH
    assert await s.ask(b"bcda", sending(MAX_BODY), sid, sender) == OK
    assert queue.body(await r.pushed(rid)) == MAX_BODY
    assert await s.ask(b"bcda", sending(MAX_BODY + b"-"), sid, sender) == LARGE


async def test_contact_queues_are_not_secured_by_senders(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    queue = await create(r, QueueMode.CONTACT)
    sender = a_key()
    assert await s.ask(b"dabc", smp.SKEY(sender.public), queue.snd_id, sender.private) == AUTH


async def test_several_recipient_keys(world: World) -> None:
    h = await Handle.open(world)
    queue = await create(h, QueueMode.CONTACT, Algorithm.ED25519, b"1")
    old, second = queue.recipient, a_key(Algorithm.ED25519)
    rid, both, que = queue.rcv_id, smp.RKEY((old.public, second.public)), smp.QUE()
    assert await h.ask(b"2", both, rid, old.private) == OK
    assert isinstance(await h.ask(b"3", que, rid, old.private), smp.INFO)
    assert await h.ask(b"5", smp.RKEY((second.public,)), rid, second.private) == OK
    assert await h.ask(b"6", que, rid, old.private) == AUTH
    assert await h.ask(b"7", both, rid, second.private) == OK
    assert isinstance(await h.ask(b"8", que, rid, old.private), smp.INFO)
    assert await h.ask(b"9", smp.RKEY((second.public,)), rid, old.private) == OK
    assert await h.ask(b"10", que, rid, old.private) == AUTH
    assert isinstance(await h.ask(b"11", que, rid, second.private), smp.INFO)


async def test_suspend_and_delete(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    queue = await create_secured(r)
    rid, sid, key, sender = queue.rcv_id, queue.snd_id, queue.recipient.private, queue.sender_key
    assert await s.ask(b"cdab", sending(b"hello"), sid, sender) == OK
    assert await s.ask(b"dabc", sending(b"hello 2"), sid, sender) == OK
    assert queue.body(await r.pushed(rid)) == b"hello"
    assert await r.ask(b"abcd", smp.OFF(), rid, a_key().private) == AUTH
    assert await r.ask(b"bcda", smp.OFF(), sid, key) == AUTH
    assert await r.ask(b"cdab", smp.OFF(), rid, key) == OK
    assert await s.ask(b"dabc", sending(b"hello"), sid, sender) == AUTH
    assert await s.ask(b"abcd", sending(b"hello"), sid) == AUTH
    assert await r.ask(b"bcda", smp.OFF(), rid, key) == OK
    r.send(b"cdab", smp.SUB(), rid, key)
    sok, message = await r.block()
    assert (sok.corr_id, sok.entity_id, sok.message) == (b"cdab", rid, SOK)
    assert (message.corr_id, queue.body(message.message)) == (b"", b"hello")
    assert await r.ask(b"dabc", smp.DEL(), rid, a_key().private) == AUTH
    assert await r.ask(b"abcd", smp.DEL(), sid, key) == AUTH
    assert await r.ask(b"bcda", smp.DEL(), rid, key) == OK
    assert await s.ask(b"cdab", sending(b"hello"), sid, sender) == AUTH
    assert await s.ask(b"dabc", sending(b"hello"), sid) == AUTH
    for command in (smp.ACK(b""), smp.OFF(), smp.SUB()):
        assert await r.ask(b"abcd", command, rid, key) == AUTH


async def test_many_queues_without_correlation_ids(world: World) -> None:
    h1, h2, h3 = [await Handle.open(world) for _ in range(3)]
    queues = [await create(h1, algorithm=Algorithm.ED25519, corr_id=b"") for _ in range(20)]
    await h1.peer.close()
    for handle in (h2, h3):
        for queue in queues:
            assert await handle.ask(b"", smp.SUB(), queue.rcv_id, queue.recipient.private) == SOK
        await handle.peer.close()


@pytest.mark.parametrize(("count", "together"), [(1, 1), (2, 1), (6, 0)])
async def test_subscribe_many_queues_with_messages(world: World, count: int, together: int) -> None:
    """All answers come first, so that none of them is late; a message follows if there is room."""
    r, s = await Handle.open(world), await Handle.open(world)
    queues = [await create(r, algorithm=Algorithm.ED25519) for _ in range(count)]
    await r.peer.close()
    for queue in queues:
        assert await s.ask(b"1", sending(b"hello"), queue.snd_id) == OK
    r = await Handle.open(world)
    corr_ids = [os.urandom(24) for _ in queues]
    r.send_many(
        [
            (corr_id, smp.SUB(), queue.rcv_id, queue.recipient.private)
            for corr_id, queue in zip(corr_ids, queues, strict=True)
        ]
    )
    block = await r.block()
    answers, messages = block[:count], block[count:]
    assert [answer.corr_id for answer in answers] == corr_ids
    assert [answer.message for answer in answers] == [SOK] * count
    assert len(messages) == together
    messages += [await r.one() for _ in range(count - together)]
    for queue, push in zip(queues, messages, strict=True):
        assert (push.corr_id, push.entity_id) == (b"", queue.rcv_id)
        assert queue.body(push.message) == b"hello"


async def test_switch_the_subscription(world: World) -> None:
    rh1, rh2, sh = [await Handle.open(world) for _ in range(3)]
    queue = await create(rh1)
    rid, sid, key = queue.rcv_id, queue.snd_id, queue.recipient.private
    assert await sh.ask(b"bcda", sending(b"test1"), sid) == OK
    assert await sh.ask(b"cdab", sending(b"test2, no ACK"), sid) == OK
    first = await rh1.pushed(rid)
    second = await rh1.ask(b"abcd", smp.ACK(first.msg_id), rid, key)
    assert queue.body(second) == b"test2, no ACK"
    rh2.send(b"bcda", smp.SUB(), rid, key)
    sok, again = await rh2.block()
    assert (sok.message, again.message) == (SOK, second)
    assert await rh2.ask(b"cdab", smp.ACK(second.msg_id), rid, key) == OK
    assert await rh1.pushed(rid) == smp.END()
    assert await sh.ask(b"dabc", sending(b"test3"), sid) == OK
    third = await rh2.pushed(rid)
    assert await rh1.ask(b"abcd", smp.ACK(third.msg_id), rid, key) == NO_MSG
    assert await rh2.ask(b"bcda", smp.ACK(third.msg_id), rid, key) == OK
    assert await rh1.ask(b"cdab", smp.DEL(), rid, key) == OK
    assert await rh2.pushed(rid) == smp.DELD()
    assert rh1.is_quiet


async def test_get_and_subscribe(world: World) -> None:
    """Only one acknowledgement deletes a message, and none is lost."""
    rh1, rh2, sh = [await Handle.open(world) for _ in range(3)]
    queue = await create_secured(rh1)
    rid, key = queue.rcv_id, queue.recipient.private
    for number in range(1, 5):
        body = sending(b"hello %d" % number)
        assert await sh.ask(b"1", body, queue.snd_id, queue.sender_key) == OK
    first = await rh1.pushed(rid)
    assert await rh2.ask(b"2", smp.GET(), rid, key) == first
    assert await rh1.ask(b"3", smp.GET(), rid, key) == PROHIBITED
    assert await rh2.ask(b"3a", smp.SUB(), rid, key) == PROHIBITED
    second = await rh1.ask(b"4", smp.ACK(first.msg_id), rid, key)
    assert queue.body(second) == b"hello 2"
    assert await rh2.ask(b"5", smp.ACK(b"1234"), rid, key) == NO_MSG
    assert await rh2.ask(b"5a", smp.ACK(first.msg_id), rid, key) == OK
    assert await rh2.ask(b"6", smp.GET(), rid, key) == second
    assert await rh2.ask(b"7", smp.ACK(second.msg_id), rid, key) == OK
    third = await rh2.ask(b"8", smp.GET(), rid, key)
    assert queue.body(third) == b"hello 3"
    assert await rh1.ask(b"9", smp.ACK(second.msg_id), rid, key) == third
    fourth = await rh1.ask(b"10", smp.ACK(third.msg_id), rid, key)
    assert queue.body(fourth) == b"hello 4"
    assert await rh1.ask(b"11", smp.ACK(fourth.msg_id), rid, key) == OK
    assert await rh2.ask(b"12", smp.GET(), rid, key) == OK


async def test_exceed_the_quota(world: World) -> None:
    rh, sh = await Handle.open(world), await Handle.open(world)
    queue = await create_secured(rh)
    rid, sid, key, sender = queue.rcv_id, queue.snd_id, queue.recipient.private, queue.sender_key
    for _ in range(4):
        assert await sh.ask(b"1", sending(b"hello"), sid, sender) == OK
    assert await sh.ask(b"3", sending(b"too much"), sid, sender) == QUOTA
    message = await rh.pushed(rid)
    for _ in range(4):
        assert queue.body(message) == b"hello"
        assert await sh.ask(b"5", sending(b"too much"), sid, sender) == QUOTA
        message = await rh.ask(b"4", smp.ACK(message.msg_id), rid, key)
    assert queue.body(message) is None
    assert await sh.ask(b"7", sending(b"too much"), sid, sender) == QUOTA
    assert await rh.ask(b"8", smp.ACK(message.msg_id), rid, key) == OK
    assert await sh.ask(b"9", sending(b"fits"), sid, sender) == OK
    assert queue.body(await rh.pushed(rid)) == b"fits"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_send_to_oneself(world: World, algorithm: Algorithm) -> None:
    """The message comes first, in a block of its own, and then the answer."""
    h, n = await Handle.open(world), await Handle.open(world)
    queue = await create_secured(h, algorithm)
    rid, key, notifier = queue.rcv_id, queue.recipient.private, a_key(algorithm)
    nkey = smp.NKEY(notifier.public, a_key(Algorithm.X25519).public)
    nid = await h.ask(b"abcd", nkey, rid, key)
    assert await n.ask(b"dabc", smp.NSUB(), nid.notifier_id, notifier.private) == SOK
    for _ in range(2):
        h.send(b"bcda", sending(b"hello", notify=True), queue.snd_id, queue.sender_key)
        message = await h.pushed(rid)
        assert queue.body(message) == b"hello"
        answer = await h.one()
        assert (answer.corr_id, answer.message) == (b"bcda", OK)
        assert isinstance(await n.pushed(nid.notifier_id), smp.NMSG)
        assert await h.ask(b"cdab", smp.ACK(message.msg_id), rid, key) == OK


async def test_restart(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    queue = await create_secured(r)
    await r.peer.close()
    bodies = [b"hello %d" % number for number in range(2, 6)]
    for body in bodies:
        assert await s.ask(b"2", sending(body), queue.snd_id, queue.sender_key) == OK
    assert await s.ask(b"6", sending(b"hello 6"), queue.snd_id, queue.sender_key) == QUOTA
    for acknowledged in (2, 3):
        await world.restart()
        r = await Handle.open(world)
        r.send(b"2", smp.SUB(), queue.rcv_id, queue.recipient.private)
        sok, push = await r.block()
        assert sok.message == SOK
        message = push.message
        for _ in range(acknowledged):
            assert queue.body(message) == (bodies.pop(0) if bodies else None)
            ack = smp.ACK(message.msg_id)
            message = await r.ask(b"3", ack, queue.rcv_id, queue.recipient.private)
    assert message == OK


async def test_notifications_move_and_end(world: World) -> None:
    rh, sh, nh1, nh2 = [await Handle.open(world) for _ in range(4)]
    queue = await create_secured(rh)
    rid, key, notifier = queue.rcv_id, queue.recipient.private, a_key(Algorithm.ED25519)
    nkey = smp.NKEY(notifier.public, a_key(Algorithm.X25519).public)

    async def deliver(nh: Handle | None, nid: bytes) -> None:
        send = sending(b"hello", notify=True)
        assert await sh.ask(b"3", send, queue.snd_id, queue.sender_key) == OK
        message = await rh.pushed(rid)
        assert await rh.ask(b"3a", smp.ACK(message.msg_id), rid, key) == OK
        if nh is not None:
            assert isinstance(await nh.pushed(nid), smp.NMSG)

    first = (await rh.ask(b"1", nkey, rid, key)).notifier_id
    nid = (await rh.ask(b"1a", nkey, rid, key)).notifier_id
    assert nid != first
    nh1.send(b"2a", smp.NSUB(), first, notifier.private)
    assert (await nh1.one()).message == AUTH
    assert await nh1.ask(b"2", smp.NSUB(), nid, notifier.private) == SOK
    await deliver(nh1, nid)
    assert await nh2.ask(b"4", smp.NSUB(), nid, notifier.private) == SOK
    assert await nh1.pushed(nid) == smp.END()
    await deliver(nh2, nid)
    assert nh1.is_quiet
    assert await rh.ask(b"6", smp.NDEL(), rid, key) == OK
    assert await nh2.pushed(nid) == smp.DELD()
    await deliver(None, nid)
    assert nh2.is_quiet
    again = (await rh.ask(b"8", nkey, rid, key)).notifier_id
    assert await nh1.ask(b"9", smp.NSUB(), again, notifier.private) == SOK
    await deliver(nh1, again)


async def test_link_of_an_invitation(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    recipient, secret, corr_id = a_key(Algorithm.ED25519), a_key(Algorithm.X25519), os.urandom(24)
    link = QueueLink(b"", sender_id_of(corr_id), b"fixed data", b"user data")
    command = new(recipient, secret, QueueMode.MESSAGING, link)
    assert await r.ask(b"1", command, b"", recipient.private) == PROHIBITED
    ids = await r.ask(corr_id, command, b"", recipient.private)
    assert (ids.snd_id, ids.mode) == (link.sender_id, QueueMode.MESSAGING)
    link_id, rid, key = ids.link_id, ids.rcv_id, recipient.private
    assert await s.ask(b"2", smp.LGET(), link_id) == AUTH
    changed = smp.LSET(link_id, b"fixed data", b"updated user data")
    assert await r.ask(b"2a", changed, rid, key) == OK
    sender, other = a_key(Algorithm.ED25519), a_key(Algorithm.ED25519)
    lkey = smp.LKEY(sender.public)
    assert await s.ask(b"3a", lkey, link_id) == smp.ERR(ErrorCode.CMD_NO_AUTH)
    assert await s.ask(b"3b", lkey, link_id, other.private) == AUTH
    assert await s.ask(b"4", lkey, rid, sender.private) == AUTH
    data = smp.LNK(ids.snd_id, b"fixed data", b"updated user data")
    assert await s.ask(b"5", lkey, link_id, sender.private) == data
    assert await s.ask(b"6", smp.LKEY(other.public), link_id, other.private) == AUTH
    assert await s.ask(b"7", lkey, link_id, sender.private) == data
    assert await r.ask(b"8", changed, rid, key) == AUTH
    assert await r.ask(b"9", smp.LDEL(), rid, key) == OK


async def test_link_of_an_address(world: World) -> None:
    r, s = await Handle.open(world), await Handle.open(world)
    recipient, secret, corr_id = a_key(Algorithm.ED25519), a_key(Algorithm.X25519), os.urandom(24)
    link_id = os.urandom(24)
    link = QueueLink(link_id, sender_id_of(corr_id), b"fixed data", b"user data")
    command = new(recipient, secret, QueueMode.CONTACT, link)
    assert await r.ask(b"1", command, b"", recipient.private) == PROHIBITED
    ids = await r.ask(corr_id, command, b"", recipient.private)
    assert (ids.snd_id, ids.mode, ids.link_id) == (link.sender_id, QueueMode.CONTACT, link_id)
    rid, key, sender = ids.rcv_id, recipient.private, a_key(Algorithm.ED25519)
    assert await s.ask(b"2", smp.LKEY(sender.public), link_id, sender.private) == AUTH
    assert await s.ask(b"3", smp.LGET(), link_id, sender.private) == smp.ERR(ErrorCode.CMD_HAS_AUTH)
    assert await s.ask(b"4", smp.LGET(), rid) == AUTH
    for _ in range(2):
        data = smp.LNK(ids.snd_id, b"fixed data", b"user data")
        assert await s.ask(b"5", smp.LGET(), link_id) == data
    changed = smp.LSET(link_id, b"fixed data", b"updated user data")
    assert await r.ask(b"7", changed, rid, key) == OK
    data = smp.LNK(ids.snd_id, b"fixed data", b"updated user data")
    assert await s.ask(b"8", smp.LGET(), link_id) == data
    other = smp.LSET(os.urandom(24), b"fixed data", b"updated user data")
    assert await r.ask(b"9", other, rid, key) == AUTH
    assert await r.ask(b"10", smp.LSET(link_id, b"changed", b"user"), rid, key) == AUTH
    for _ in range(2):
        assert await r.ask(b"11", smp.LDEL(), rid, key) == OK
    assert await s.ask(b"12", smp.LGET(), link_id) == AUTH


ENTITY = b"12345678"
KEY = b" " + encode_short(fixed_key_pair(Algorithm.ED25519, "syntax").public)
DH_KEY = encode_short(fixed_key_pair(Algorithm.X25519, "syntax").public)
NEW = b"NEW" + KEY + DH_KEY + b"0S1M00"
SYNTAX, UNKNOWN = ErrorCode.CMD_SYNTAX, ErrorCode.CMD_UNKNOWN
NO_AUTH, HAS_AUTH = ErrorCode.CMD_NO_AUTH, ErrorCode.CMD_HAS_AUTH


@pytest.mark.parametrize(
    ("auth", "entity_id", "command", "error"),
    [
        (b"", b"1234", b"HELLO", UNKNOWN),
        (A_SIGNATURE, b"", b"NEW", SYNTAX),
        (A_SIGNATURE, b"", b"NEW \x01A" + KEY[1:] + DH_KEY, SYNTAX),
        (b"", b"", NEW, NO_AUTH),
        (A_SIGNATURE, ENTITY, NEW, HAS_AUTH),
        (A_SIGNATURE, ENTITY, b"KEY" + KEY, ErrorCode.AUTH),
        (A_SIGNATURE, ENTITY, b"KEY", SYNTAX),
        (A_SIGNATURE, ENTITY, b"KEY \x01A" + KEY[1:], SYNTAX),
        (b"", ENTITY, b"KEY" + KEY, NO_AUTH),
        (A_SIGNATURE, b"", b"KEY" + KEY, NO_AUTH),
        *(
            case
            for name in (b"SUB", b"OFF", b"DEL")
            for case in (
                (A_SIGNATURE, ENTITY, name, ErrorCode.AUTH),
                (A_SIGNATURE, ENTITY, name + b"=", UNKNOWN),
                (b"", ENTITY, name, NO_AUTH),
                (A_SIGNATURE, b"", name, NO_AUTH),
            )
        ),
        (A_SIGNATURE, ENTITY, b"SEND F hello", ErrorCode.AUTH),
        (A_SIGNATURE, ENTITY, b"SEND", SYNTAX),
        (A_SIGNATURE, b"", b"SEND F hello", ErrorCode.CMD_NO_ENTITY),
        (A_SIGNATURE, ENTITY, b"ACK \x041234", ErrorCode.AUTH),
        (A_SIGNATURE, ENTITY, b"ACK", SYNTAX),
        (A_SIGNATURE, b"", b"ACK \x041234", NO_AUTH),
        (b"", ENTITY, b"ACK \x041234", NO_AUTH),
        (A_SIGNATURE, ENTITY, b"OK", UNKNOWN),
    ],
)
async def test_syntax(
    world: World, auth: bytes, entity_id: bytes, command: bytes, error: ErrorCode
) -> None:
    handle = await Handle.open(world)
    handle.send_raw(b"abcd", command, entity_id, auth)
    answer = await handle.one()
    assert (answer.corr_id, answer.entity_id) == (b"abcd", entity_id)
    assert answer.message == smp.ERR(error)
    assert await handle.ask(b"bcda", smp.PING()) == smp.PONG()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_short_correlation_ids_are_padded_nonces(world: World, algorithm: Algorithm) -> None:
    handle = await Handle.open(world, 7)
    queue = await create(handle, algorithm=algorithm)
    assert await handle.ask(b"cdab", smp.SUB(), queue.rcv_id, queue.recipient.private) == OK
    other = a_key(algorithm).private
    for entity_id in (queue.rcv_id, b"1234"):
        assert await handle.ask(b"dabc", smp.SUB(), entity_id, other) == AUTH
