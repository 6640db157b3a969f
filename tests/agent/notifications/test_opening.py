"""Pushes: both boxes, the list, and which entries are news. Then the whole way of one."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from heliograph.agent.agent import Agent
from heliograph.agent.errors import BadNotification, Prohibited
from heliograph.agent.notifications.opening import connections_of, open_push
from heliograph.agent.records import NotificationInfo, NotifierCredentials, RcvQueue, RcvStatus
from heliograph.crypto.boxes import box_padded
from heliograph.journal.events import AgentDecrypted, JournalEvent
from heliograph.journal.journal import Journal
from heliograph.sim.world import World, world
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.ntf.push import (
    NMSG_META_SIZE,
    PUSH_SIZE,
    MessagePush,
    NMsgMeta,
    PNMessageData,
    VerificationPush,
    decode_push,
    encode_nmsg_meta,
    encode_pn_messages,
)
from heliograph.wire.ntf.tokens import APNSDeviceToken, NotificationsMode, PushProvider, TokenStatus
from tests.agent.support import SETTINGS, TIMEOUT, User
from tests.waiting import eventually

TOKEN_SECRET = bytes(range(32))
ROUTERS = [decode_address(f"smp://{letter * 42}A=@{letter.lower()}.example") for letter in "ABC"]


def a_queue(number: int, seen: int | None = None) -> RcvQueue:
    """The queue with this number, at one of three routers."""
    notifier = NotifierCredentials(b"notifier %d" % number, b"", bytes([number + 1]) * 32)
    return RcvQueue(
        number,
        f"c{number}",
        ROUTERS[number % 3],
        b"r",
        b"s",
        RcvStatus.ACTIVE,
        b"",
        b"",
        b"",
        last_broker_ts=seen,
        notifier=notifier,
    )


def an_entry(queue: RcvQueue, msg_ts: int, *, secret: bytes | None = None) -> PNMessageData:
    assert queue.notifier is not None
    nonce = os.urandom(24)
    meta = encode_nmsg_meta(NMsgMeta(b"message %d" % msg_ts, msg_ts))
    box = box_padded(secret or queue.notifier.dh_secret, nonce, meta, NMSG_META_SIZE)
    return PNMessageData(SMPQueueNtf(queue.address, queue.notifier.notifier_id), 5, nonce, box)


def find_in(queues: Sequence[RcvQueue]) -> object:
    known = {
        (queue.address.fingerprint, queue.notifier.notifier_id): queue
        for queue in queues
        if queue.notifier is not None
    }
    return lambda queue: known.get((queue.server.fingerprint, queue.notifier_id))


def found(entries: Sequence[PNMessageData], queues: Sequence[RcvQueue]) -> list[NotificationInfo]:
    return connections_of(entries, find_in(queues))  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20), st.booleans(), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_news(cases: list[tuple[int, int | None, bool, bool]]) -> None:
    """Every entry: its time, the last time seen, whether we have the queue, whether it opens."""
    queues = [a_queue(number, seen) for number, (_, seen, _, _) in enumerate(cases)]
    entries = [
        an_entry(queue, msg_ts, secret=None if opens else bytes(32))
        for queue, (msg_ts, _, _, opens) in zip(queues, cases, strict=True)
    ]
    known = [queue for queue, (_, _, is_known, _) in zip(queues, cases, strict=True) if is_known]
    expected = []
    for number, (msg_ts, seen, is_known, opens) in enumerate(cases):
        is_last = number == len(cases) - 1
        if is_known and (is_last or (opens and (seen is None or msg_ts > seen))):
            expected.append((f"c{number}", msg_ts if opens else None))
    assert [(info.conn_id, info.msg_ts) for info in found(entries, known)] == expected


def test_everything_of_an_entry() -> None:
    queue = a_queue(1)
    entry = an_entry(queue, 7)
    assert found([entry], [queue]) == [NotificationInfo("c1", 1, 5, b"message 7", 7, entry.nonce)]


def test_an_equal_time_is_no_news_unless_it_is_last() -> None:
    first, second = a_queue(1, seen=7), a_queue(2, seen=7)
    entries = [an_entry(first, 7), an_entry(second, 7)]
    assert [info.conn_id for info in found(entries, [first, second])] == ["c2"]


def test_the_same_notifier_at_another_router_is_another_queue() -> None:
    queue = a_queue(1)
    entry = an_entry(queue, 7)
    other = PNMessageData(
        SMPQueueNtf(ROUTERS[2], entry.queue.notifier_id), entry.timestamp, entry.nonce, entry.meta
    )
    assert found([other], [queue]) == []


def test_a_router_that_moved_is_the_same() -> None:
    queue = a_queue(1)
    entry = an_entry(queue, 7)
    moved = decode_address(f"{str(queue.address).split('@')[0]}@elsewhere.example:443")
    entry = PNMessageData(
        SMPQueueNtf(moved, entry.queue.notifier_id), entry.timestamp, entry.nonce, entry.meta
    )
    assert [info.conn_id for info in found([entry], [queue])] == ["c1"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_the_list_of_a_push(numbers: list[int]) -> None:
    entries = [an_entry(a_queue(number), number) for number in numbers]
    nonce = os.urandom(24)
    payload = box_padded(TOKEN_SECRET, nonce, encode_pn_messages(entries), PUSH_SIZE)
    assert open_push(TOKEN_SECRET, nonce, payload) == entries


@given(st.binary(max_size=100), st.binary(min_size=24, max_size=24))
def test_any_payload_is_refused_properly(payload: bytes, nonce: bytes) -> None:
    with pytest.raises(BadNotification, match="cannot be decrypted"):
        open_push(TOKEN_SECRET, nonce, payload)


@given(st.binary(max_size=100))
def test_any_content_is_refused_properly(content: bytes) -> None:
    nonce = bytes(24)
    with pytest.raises(BadNotification, match="damaged"):
        open_push(TOKEN_SECRET, nonce, box_padded(TOKEN_SECRET, nonce, content, PUSH_SIZE))


# The whole way.


class Notes(Journal):
    def __init__(self) -> None:
        self.recorded: list[JournalEvent] = []

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        self.recorded.append(event)


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as running:
        yield running


async def pushes(places: World, token: str, after: int, kind: type) -> tuple[int, object]:
    """The first push of a kind after another."""
    while True:
        entries = await places.apns.record.wait_for(token, after, TIMEOUT)
        assert entries, "no push came"
        for entry in entries:
            after = entry.seq
            push = decode_push(entry.body.encode())
            if isinstance(push, kind):
                return after, push


async def test_from_a_message_to_its_notification(places: World, tmp_path: Path, bob: User) -> None:
    journal, token = Notes(), "ab" * 32
    app = await Agent.open(tmp_path / "alice", passphrase="x", settings=SETTINGS, journal=journal)
    device = APNSDeviceToken(PushProvider.APNS_TEST, token.encode())
    with pytest.raises(Prohibited, match="no token"):
        await app.get_notification_connections(bytes(24), b"")
    await app.register_token(device, NotificationsMode.INSTANT, places.ntf_address)
    seq, push = await pushes(places, token, 0, VerificationPush)
    assert isinstance(push, VerificationPush)
    assert await app.verify_token(push.nonce, push.box) is TokenStatus.ACTIVE

    at_alice, invitation = await app.create_connection(places.smp_address)
    at_bob = await bob.agent.join_connection(invitation)
    async with asyncio.timeout(TIMEOUT):
        await app.wait_ready(at_alice)

    async def is_subscribed() -> bool:
        return "check" in str(await app.notifications.subscriptions()).lower()

    await eventually(is_subscribed)
    await app.close()  # as when the app is suspended

    await bob.agent.send(at_bob, b"hello, phone")
    seq, push = await pushes(places, token, seq, MessagePush)
    assert isinstance(push, MessagePush)
    extension = await Agent.open(
        tmp_path / "alice", passphrase="x", settings=SETTINGS, journal=journal
    )
    [info] = await extension.get_notification_connections(push.nonce, push.box)
    assert info.conn_id == at_alice
    message = await extension.get_message(info.conn_id)
    assert message is not None
    assert message.body == b"hello, phone"
    assert (message.broker_id, message.broker_ts) == (info.msg_id, info.msg_ts)
    await extension.ack(message.conn_id, message.message_id)
    assert journal.recorded == [AgentDecrypted(notification=info.nonce)]
    with pytest.raises(BadNotification):
        await extension.get_notification_connections(push.nonce, push.box[:-1])
    await extension.delete_connection(at_alice)
    with pytest.raises(BadNotification, match="no connection"):
        await extension.get_notification_connections(push.nonce, push.box)
    await extension.close()


async def test_notifications_of_a_connection_are_turned_off_and_on(
    places: World, tmp_path: Path
) -> None:
    token = "cd" * 32
    device = APNSDeviceToken(PushProvider.APNS_TEST, token.encode())
    async with Agent.open(tmp_path / "alice", settings=SETTINGS) as agent:
        await agent.register_token(device, NotificationsMode.INSTANT, str(places.ntf_address))
        _, push = await pushes(places, token, 0, VerificationPush)
        assert isinstance(push, VerificationPush)
        await agent.verify_token(push.nonce, push.box)
        conn_id, _ = await agent.create_connection(places.smp_address)

        async def is_on() -> bool:
            return bool(await agent.notifications.subscriptions())

        async def is_off() -> bool:
            return not await is_on()

        await eventually(is_on)
        await agent.enable_notifications(conn_id, False)
        await eventually(is_off)
        assert not (await agent.connection(conn_id)).enable_ntfs
        await agent.subscribe()
        assert await is_off()
        await agent.enable_notifications(conn_id, True)
        await eventually(is_on)
        assert await agent.check_token() is TokenStatus.ACTIVE
        info = await agent.token_info()
        assert info is not None
        assert info.mode is NotificationsMode.INSTANT
        await agent.set_mode(NotificationsMode.PERIODIC)
        await eventually(is_off)
        await agent.delete_token()
        assert await agent.token_info() is None
