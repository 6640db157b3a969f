"""Received bodies become stored items, and what is worth telling."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.agent.keys import KEY_SIZE, Vault
from heliograph.device.chats import store as chats, users
from heliograph.device.chats.body import Body, Call, Greeting, Text, encode_body
from heliograph.device.chats.content import build
from heliograph.device.chats.model import (
    CallInvited,
    CallMedia,
    ConnectionEntity,
    ConnectionPurpose,
    ContactConnected,
    ContactRequested,
    Loaded,
    MessageReceived,
)
from heliograph.device.chats.store import ContactStage
from heliograph.device.states import PreviewMode
from heliograph.device.store import PUSHES_KEPT, DeviceStore

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
    await store.write(lambda tx: users.add_user(tx, "me"))
    await store.write(lambda tx: chats.add_contact(tx, 1, "c", "Alice", ContactStage.INVITED))
    yield Phone(store)
    await store.close()


async def test_a_hello_connects_and_is_answered(phone: Phone) -> None:
    processed = await phone.receive(Greeting("Al"))
    event = processed.got.event
    assert isinstance(event, ContactConnected)
    assert event.contact.name == "Alice", "the user's own name for a contact stays"
    assert processed.replies == (Greeting("me", answer=True),)
    [row] = await phone.store.read(lambda tx: chats.contacts(tx, 1))
    assert row.stage is ContactStage.CONNECTED


async def test_a_contact_without_a_name_gets_its_own(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.add_contact(tx, 1, "d", None, ContactStage.JOINED))
    entity = await phone.store.read(lambda tx: chats.entity_of(tx, "d"))
    assert entity is not None
    assert entity[1] == ConnectionEntity(ConnectionPurpose.DIRECT)
    processed = await phone.receive(Greeting("Dora", answer=True), "d")
    assert processed.replies == ()
    assert isinstance(processed.got.event, ContactConnected)
    entity = await phone.store.read(lambda tx: chats.entity_of(tx, "d"))
    assert entity is not None
    assert entity[1].contact is not None
    assert entity[1].contact.name == "Dora"


async def test_a_repeated_hello_is_answered_but_reported_once(phone: Phone) -> None:
    first = await phone.receive(Greeting("Al"))
    await phone.store.write(lambda tx: chats.set_shown(tx, "c", 100))
    again = await phone.again(Greeting("Al"))
    assert again.replies == first.replies
    assert again.got.event is None
    another = await phone.receive(Greeting("Al"))
    assert another.got.event is None


async def test_joining_a_link_that_asks_makes_a_request(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.add_contact(tx, 1, "d", None, ContactStage.ASKING))
    entity = await phone.store.read(lambda tx: chats.entity_of(tx, "d"))
    assert entity is not None
    assert entity[1].purpose is ConnectionPurpose.CONTACT_ADDRESS
    processed = await phone.receive(Greeting("Mallory"), "d")
    event = processed.got.event
    assert isinstance(event, ContactRequested)
    assert (event.request.name, processed.replies) == ("Mallory", ())
    chat_id = event.request.chat_id
    row = await phone.store.write(lambda tx: chats.accept_request(tx, chat_id))
    assert row is not None
    assert row.conn_id == "d"
    assert await phone.store.write(lambda tx: chats.accept_request(tx, chat_id)) is None


async def test_a_message_is_stored_once_and_reported_until_it_is_shown(phone: Phone) -> None:
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


async def test_muted_chats_and_users_are_stored_but_not_reported(phone: Phone) -> None:
    await phone.store.write(lambda tx: chats.set_muted(tx, "@1", True))
    assert (await phone.receive(Text("hi"))).got.event is None
    await phone.store.write(lambda tx: chats.set_muted(tx, "@1", False))
    await phone.receive(Text("hi", group="G"))
    await phone.store.write(lambda tx: chats.set_muted(tx, "#1", True))
    assert (await phone.receive(Text("hi", group="G"))).got.event is None
    await phone.store.write(lambda tx: users.set_show_notifications(tx, 1, False))
    assert (await phone.receive(Text("hi"))).got.event is None
    assert await phone.store.get("badge") == "4"


async def test_the_badge_counts_all_users(phone: Phone) -> None:
    await phone.store.write(lambda tx: users.add_user(tx, "other me", show_notifications=False))
    await phone.store.write(
        lambda tx: chats.add_contact(tx, 2, "d", "Dora", ContactStage.CONNECTED)
    )
    for conn in ("c", "c", "d"):
        await phone.receive(Text("hi"), conn)
    found = await phone.store.read(users.users)
    assert [user.unread for user in found] == [2, 1]
    await phone.store.set("badge", "77")  # the extension lost count
    assert await phone.store.write(users.count_unread) == 3
    assert await phone.store.write(lambda tx: chats.read_chat(tx, "@1")) == 1
    assert await phone.store.write(users.count_unread) == 1
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
    await phone.store.write(lambda tx: chats.add_contact(tx, 1, "d", None, ContactStage.ASKING))
    await phone.receive(Greeting("Mallory"), "d")
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
