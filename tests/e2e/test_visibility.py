"""What each entity can see: a test for each of the twelve cells.

    entity          queue identity   message metadata   message content
    SMP router      yes              yes                no
    NTF router      yes              no                 no
    push provider   no               no                 no
    recipient       yes              yes                yes

What an entity can see is what it has: all bytes of its directory on disk (logs, record) and of its
store, and what opens with the keys in them.
"""

import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from heliograph.agent.connections import queues
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.records import NotificationInfo, RcvQueue
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.device.chats.body import Text, decode_body
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.push import MessagePush, PNMessageData, decode_pn_messages, decode_push
from tests.e2e.support import World, connect, register
from tests.faults.stores import content
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MARK = "The heliograph flashes at noon"


@dataclass
class Seen:
    """One message that is on its way, and the keys of its recipient."""

    world: World
    smp: bytes
    ntf: bytes
    apns: bytes
    """All that each has on disk."""

    queue: RcvQueue
    token_secret: bytes
    push: MessagePush
    entry: PNMessageData
    info: NotificationInfo
    body: bytes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(shared_world: World) -> AsyncIterator[Seen]:
    world = shared_world
    alice, bob = await world.new_phone("alice"), await world.new_phone("bob")
    await register(world, alice)
    await connect(world, alice, bob)
    async with alice.app() as app:  # Bob's greeting is received, so that one message is left
        await until_received(app)
    before = len(messages(world, await alice.token()))
    async with bob.app() as app:
        assert await app.send("alice", Text(MARK))

    async def is_pushed() -> bool:
        return len(messages(world, await alice.token())) > before

    await eventually(is_pushed)
    # Taken while the message is with the messaging router, and the push with the provider.
    smp, ntf, apns = (every_byte(world.directory / name) for name in ("smp", "ntf", "apns"))
    ntf += content(world.ntf.store_url)
    async with alice.app() as app:
        vault, store = app.agent.store.vault, app.agent.store
        [queue] = await store.read(lambda tx: queues.rcv_queues_of(tx, vault, [conn(alice)]))
        token = await store.read(lambda tx: ntf_store.load_token(tx, vault))
        assert token is not None
        assert token.dh_secret is not None
        push = messages(world, await alice.token())[-1]
        entry = decode_pn_messages(open_box_padded(token.dh_secret, push.nonce, push.box))[-1]
        [info] = await app.agent.get_notification_connections(push.nonce, push.box)
        message = await app.agent.get_message(info.conn_id)
        assert message is not None
        assert message.broker_id == info.msg_id
    yield Seen(world, smp, ntf, apns, queue, token.dh_secret, push, entry, info, message.body)
    await alice.close()
    await bob.close()


# The messaging router.


def test_the_smp_router_sees_queues(seen: Seen) -> None:
    assert seen.queue.notifier is not None
    for identity in (seen.queue.rcv_id, seen.queue.snd_id, seen.queue.notifier.notifier_id):
        assert holds(seen.smp, identity)


def test_the_smp_router_sees_metadata(seen: Seen) -> None:
    assert seen.info.msg_id is not None
    assert holds(seen.smp, seen.info.msg_id)


def test_the_smp_router_sees_no_content(seen: Seen) -> None:
    with closing(sqlite3.connect(seen.world.directory / "smp" / "smp.db")) as store:
        [[size]] = store.execute("SELECT MAX(LENGTH(body)) FROM messages").fetchall()
    assert size > len(MARK), "the message is not there at all"
    assert not holds(seen.smp, MARK.encode())
    assert not holds(seen.smp, seen.body)


# The notification router.


def test_the_ntf_router_sees_queues(seen: Seen) -> None:
    assert seen.queue.notifier is not None
    assert holds(seen.ntf, seen.queue.notifier.notifier_id)
    fingerprint = decode_address(seen.world.smp_address).fingerprint
    assert holds(seen.ntf, fingerprint)


def test_the_ntf_router_sees_no_metadata(seen: Seen) -> None:
    """It has the box that the messaging router made, and no key that opens it."""
    assert holds(seen.ntf, seen.entry.meta)
    assert seen.info.msg_id is not None
    assert not holds(seen.ntf, seen.info.msg_id)
    assert seen.queue.notifier is not None
    assert not holds(seen.ntf, seen.queue.notifier.dh_secret)
    assert opens(seen.queue.notifier.dh_secret, seen.entry)
    assert not opens(seen.token_secret, seen.entry)
    for start in range(0, len(seen.ntf) - 32, 997):  # nor do bytes that happen to be there
        assert not opens(seen.ntf[start : start + 32], seen.entry)


def test_the_ntf_router_sees_no_content(seen: Seen) -> None:
    assert not holds(seen.ntf, MARK.encode())
    assert not holds(seen.ntf, seen.body)
    # Nor does it know whom to ask for it: the recipient's own ID is not the notifier's.
    assert not holds(seen.ntf, seen.queue.rcv_id)


# The push provider.


def test_the_provider_sees_no_queue(seen: Seen) -> None:
    assert holds(seen.apns, seen.push.box), "the push is not there at all"
    assert seen.queue.notifier is not None
    address = decode_address(seen.world.smp_address)
    for identity in (
        seen.queue.notifier.notifier_id,
        seen.queue.rcv_id,
        seen.queue.snd_id,
        address.fingerprint,
    ):
        assert not holds(seen.apns, identity)
        assert not holds(seen.push.box, identity)
    assert b"smp://" not in seen.apns


def test_the_provider_sees_no_metadata(seen: Seen) -> None:
    assert seen.info.msg_id is not None
    for secret in (seen.info.msg_id, seen.entry.meta, seen.entry.nonce, seen.token_secret):
        assert not holds(seen.apns, secret)


def test_the_provider_sees_no_content(seen: Seen) -> None:
    assert not holds(seen.apns, MARK.encode())
    assert not holds(seen.apns, seen.body)
    sizes = {len(push.box) for push in messages(seen.world, None)}
    assert len(sizes) == 1, "sizes tell messages apart"


# The recipient.


def test_the_recipient_sees_the_queue(seen: Seen) -> None:
    assert seen.queue.notifier is not None
    assert seen.entry.queue.notifier_id == seen.queue.notifier.notifier_id
    assert seen.info.conn_id == seen.queue.conn_id


def test_the_recipient_sees_metadata(seen: Seen) -> None:
    assert seen.info.msg_ts is not None
    assert opens(seen.queue.notifier.dh_secret if seen.queue.notifier else b"", seen.entry)


def test_the_recipient_sees_the_content(seen: Seen) -> None:
    assert decode_body(seen.body) == Text(MARK)


def every_byte(directory: Path) -> bytes:
    files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
    assert files
    return b"\n".join(file.read_bytes() for file in files)


def holds(haystack: bytes, needle: bytes) -> bool:
    """In any of the forms that it could be written in."""
    assert len(needle) >= 16
    url = base64.urlsafe_b64encode(needle)
    forms = (needle, needle.hex().encode(), url, url.rstrip(b"="), base64.b64encode(needle))
    return any(form in haystack for form in forms)


def opens(secret: bytes, entry: PNMessageData) -> bool:
    try:
        open_box_padded(secret, entry.nonce, entry.meta)
    except (CryptoError, ValueError):
        return False
    return True


def messages(world: World, token: str | None) -> list[MessagePush]:
    entries = map(json.loads, world.apns.record.read_text().splitlines())
    pushes = [
        decode_push(entry["body"].encode())
        for entry in entries
        if entry["accepted"] and token in (None, entry["token"])
    ]
    return [push for push in pushes if isinstance(push, MessagePush)]


def conn(phone: object) -> str:
    store = Path(phone.directory) / "device.db"  # type: ignore[attr-defined]
    with closing(sqlite3.connect(store)) as database:
        [[conn_id]] = database.execute("SELECT conn_id FROM contacts").fetchall()
    return str(conn_id)


async def until_received(app: object) -> None:
    """Bob's greeting, by GET."""
    agent = app.agent  # type: ignore[attr-defined]
    [conn_id] = await agent.connections()

    async def is_so() -> bool:
        message = await agent.get_message(conn_id)
        if message is not None:
            await agent.ack(conn_id, message.message_id)
        return message is not None

    await eventually(is_so)
