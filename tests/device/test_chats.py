"""Received bodies become stored items, and what is worth telling."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from heliograph.agent.keys import KEY_SIZE, Vault
from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.device import chats
from heliograph.device.body import Body, Call, Hello, Text, encode_body
from heliograph.device.chat import (
    CallInvited,
    CallMedia,
    ConnectionEntity,
    ContactConnected,
    ContactRequested,
    MessageReceived,
    Purpose,
)
from heliograph.device.chats import Stage
from heliograph.device.content import build
from heliograph.device.manager import Loaded
from heliograph.device.schema import MIGRATIONS
from heliograph.device.states import PreviewMode
from heliograph.device.store import FILE, PUSHES_KEPT, DeviceStore

T = TypeVar("T")
SEAL = Vault(None)


class Phone:
    def __init__(self, store: DeviceStore) -> None:
        self.store = store
        self.messages = 0

    async def receive(self, body: Body | bytes, conn: str = "c", at: int = 100) -> chats.Processed:
        self.messages += 1
        return await self.again(body, conn, at)

    async def again(self, body: Body | bytes, conn: str = "c", at: int = 100) -> chats.Processed:
        data = body if isinstance(body, bytes) else encode_body(body)
        msg_id = f"m{self.messages}".encode()
        return await self.store.write(lambda tx: chats.process(tx, SEAL, conn, msg_id, at, data))


@pytest.fixture
async def phone(tmp_path: Path) -> AsyncIterator[Phone]:
    store = await DeviceStore.open(tmp_path)
    await store.write(lambda tx: chats.add_user(tx, "me"))
    await store.write(lambda tx: chats.add_contact(tx, 1, "c", "Alice", Stage.INVITED))
    yield Phone(store)
    await store.close()


async def test_a_hello_connects_and_is_answered(phone: Phone) -> None:
    processed = await phone.receive(Hello("Al"))
    event = processed.got.event
    assert isinstance(event, ContactConnected)
    assert event.contact.name == "Alice", "the user's own name for a contact stays"
    assert processed.replies == (Hello("me", answer=True),)
    [row] = await phone.store.read(chats.contacts)
    assert row.stage is Stage.CONNECTED


async def test_a_contact_without_a_name_gets_its_own(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.add_contact(tx, 1, "d", None, Stage.JOINED))
    entity = await phone.store.read(lambda tx: chats.entity_of(tx, "d"))
    assert entity is not None
    assert entity[1] == ConnectionEntity(Purpose.DIRECT)
    processed = await phone.receive(Hello("Dora", answer=True), "d")
    assert processed.replies == ()
    assert isinstance(processed.got.event, ContactConnected)
    entity = await phone.store.read(lambda tx: chats.entity_of(tx, "d"))
    assert entity is not None
    assert entity[1].contact is not None
    assert entity[1].contact.name == "Dora"


async def test_a_hello_that_comes_again_is_answered_but_told_once(phone: Phone) -> None:
    first = await phone.receive(Hello("Al"))
    await phone.store.write(lambda tx: chats.set_shown(tx, "c", 100))
    again = await phone.again(Hello("Al"))
    assert again.replies == first.replies
    assert again.got.event is None
    another = await phone.receive(Hello("Al"))
    assert another.got.event is None


async def test_whoever_joins_a_link_that_asks_is_a_request(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.add_contact(tx, 1, "d", None, Stage.ASKING))
    entity = await phone.store.read(lambda tx: chats.entity_of(tx, "d"))
    assert entity is not None
    assert entity[1].purpose is Purpose.CONTACT_ADDRESS
    processed = await phone.receive(Hello("Mallory"), "d")
    event = processed.got.event
    assert isinstance(event, ContactRequested)
    assert (event.request.name, processed.replies) == ("Mallory", ())
    chat_id = event.request.chat_id
    row = await phone.store.write(lambda tx: chats.accept_request(tx, chat_id))
    assert row is not None
    assert row.conn_id == "d"
    assert await phone.store.write(lambda tx: chats.accept_request(tx, chat_id)) is None


async def test_a_message_is_stored_once_and_told_until_it_is_shown(phone: Phone) -> None:
    first = await phone.receive(Text("hi #there#"))
    assert isinstance(first.got.event, MessageReceived)
    assert build(first.got.event, PreviewMode.MESSAGE).body == "hi ..."
    assert await phone.again(Text("hi #there#")) == first
    assert await phone.store.get("badge") == "1"
    await phone.store.write(lambda tx: chats.set_shown(tx, "c", 99))
    assert (await phone.again(Text("hi"))).got.event is not None
    await phone.store.write(lambda tx: chats.set_shown(tx, "c", 100))
    assert (await phone.again(Text("hi"))).got.event is None


async def test_groups_and_calls(phone: Phone) -> None:
    event = (await phone.receive(Text("up", group="Climbing", member="Zoe"))).got.event
    assert isinstance(event, MessageReceived)
    assert build(event, PreviewMode.MESSAGE).title == "#Climbing Zoe"
    event = (await phone.receive(Text("up", group="Climbing"))).got.event
    assert event is not None
    assert build(event, PreviewMode.MESSAGE).title == "#Climbing Alice"
    call = (await phone.receive(Call(CallMedia.VIDEO))).got.event
    assert isinstance(call, CallInvited)
    assert call.invitation.media is CallMedia.VIDEO


async def test_what_cannot_be_read_is_no_event(phone: Phone) -> None:
    assert (await phone.receive(b"\x00")).got.event is None
    assert (await phone.receive(Text("hi"), "unknown")).got.event is None
    assert await phone.store.read(lambda tx: chats.entity_of(tx, "unknown")) is None


async def test_muted_chats_and_users_are_stored_but_not_told(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.set_muted(tx, "@1", True))
    assert (await phone.receive(Text("hi"))).got.event is None
    await phone.store.write(lambda tx: chats.set_muted(tx, "@1", False))
    await phone.receive(Text("hi", group="G"))
    await phone.store.write(lambda tx: chats.set_muted(tx, "#1", True))
    assert (await phone.receive(Text("hi", group="G"))).got.event is None
    await phone.store.write(lambda tx: chats.set_show_notifications(tx, 1, False))
    assert (await phone.receive(Text("hi"))).got.event is None
    assert await phone.store.get("badge") == "4"


async def test_the_badge_counts_all_users(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.add_user(tx, "other me", show_notifications=False))
    await phone.store.write(lambda tx: chats.add_contact(tx, 2, "d", "Dora", Stage.CONNECTED))
    for conn in ("c", "c", "d"):
        await phone.receive(Text("hi"), conn)
    users = await phone.store.read(chats.users)
    assert [user.unread for user in users] == [2, 1]
    await phone.store.set("badge", "77")  # the extension lost count
    assert await phone.store.write(chats.count_unread) == 3
    assert await phone.store.write(lambda tx: chats.read_chat(tx, "@1")) == 1
    assert await phone.store.write(chats.count_unread) == 1
    assert await phone.store.change_badge(-5) == 0


async def test_a_push_is_new_once(phone: Phone) -> None:
    assert not await phone.store.has_seen_push("x")
    assert await phone.store.see_push("x", 1)
    assert not await phone.store.see_push("x", 2)
    assert await phone.store.has_seen_push("x")
    for number in range(PUSHES_KEPT + 5):
        if number % 100 == 0:
            await phone.store.see_push(str(number), 3)
    assert await phone.store.has_seen_push("x"), "it is not forgotten soon"


async def test_two_processes_count_together(phone: Phone, tmp_path: Path) -> None:
    other = await DeviceStore.open(tmp_path)
    try:
        for _ in range(5):
            await other.change_badge(1)
            await phone.store.change_badge(1)
        assert await other.get("badge") == "10"
    finally:
        await other.close()


async def test_what_waits_for_an_answer(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.add_contact(tx, 1, "d", None, Stage.ASKING))
    await phone.receive(Hello("Mallory"), "d")
    await phone.receive(Call(), at=50)
    assert await phone.store.read(lambda tx: chats.waiting(tx, 40)) == Loaded({"<@2"}, {"@1"})
    assert await phone.store.read(lambda tx: chats.waiting(tx, 51)) == Loaded({"<@2"}, frozenset())


def all_of(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


async def test_what_messages_say_is_sealed(phone: Phone, tmp_path: Path) -> None:
    seal = Vault(bytes(KEY_SIZE))
    data = encode_body(Text("Meet at noon.", "map.png", "walkers", "Dora"))
    processed = await phone.store.write(lambda tx: chats.process(tx, seal, "c", b"m", 100, data))
    event = processed.got.event
    assert isinstance(event, MessageReceived)
    assert (event.item.text, event.item.file_name) == ("Meet at noon.", "map.png")
    assert event.item.member == "Dora"
    assert await phone.store.read(lambda tx: chats.unshown(tx, seal, "c", b"m")) == event
    for said in (b"noon", b"map.png", b"Dora"):
        assert said not in all_of(tmp_path)


async def test_texts_of_a_store_that_did_not_seal_them(tmp_path: Path) -> None:
    """As one that was made before there was a seal: they are sealed, and no trace is left."""
    before = await Database.open(f"sqlite:///{tmp_path / FILE}", MIGRATIONS[:1])
    long = "Meet at noon. " * 1000  # more than a page of the file

    def add(tx: Transaction) -> None:
        chats.add_user(tx, "me")
        chats.add_contact(tx, 1, "c", "Alice", Stage.CONNECTED)
        for number, text in enumerate(("Meet at noon.", long)):
            tx.execute(
                "INSERT INTO items (conn_id, msg_id, received_at, user_id, chat_id, kind, text,"
                " file_name, member, is_read, is_shown)"
                " VALUES ('c', ?, 100, 1, '@1', 'message', ?, 'map.png', '', 0, 0)",
                (b"m%d" % number, text),
            )

    await before.write(add)
    await before.close()
    assert b"noon" in all_of(tmp_path)
    store, seal = await DeviceStore.open(tmp_path), Vault(bytes(KEY_SIZE))
    assert await store.read(chats.has_unsealed)
    await store.write(lambda tx: chats.seal_texts(tx, seal))
    assert not await store.read(chats.has_unsealed)
    for msg_id, text in ((b"m0", "Meet at noon."), (b"m1", long)):
        event = await store.read(lambda tx: chats.unshown(tx, seal, "c", msg_id))  # noqa: B023
        assert isinstance(event, MessageReceived)
        assert (event.item.text, event.item.file_name) == (text, "map.png")
    await store.close()
    assert b"noon" not in all_of(tmp_path)
    assert b"map.png" not in all_of(tmp_path)
