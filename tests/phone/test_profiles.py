"""Profiles: each answers as itself, and what is deleted leaves nothing behind."""

from collections.abc import Awaitable, Callable

import pytest

from heliograph.device.app.manager import NotificationAction, Response
from heliograph.device.chats import store as chats
from heliograph.device.chats.body import Call, Text
from heliograph.device.chats.content import Category, Content
from heliograph.device.chats.store import ContactStage
from heliograph.phone.errors import PhoneError
from heliograph.phone.phone import Phone
from heliograph.phone.watch import Screen
from tests.agent.notifications.support import TIMEOUT
from tests.phone.world import PhoneWorld
from tests.waiting import eventually

Condition = Callable[[Screen], Awaitable[object]]


async def receive(phone: Phone, condition: Condition) -> Screen:
    """Keep the app open until a condition holds, leave it, and send what it had not sent yet."""
    screen = Screen()
    app = phone.foreground(screen)
    await app.launch()
    await app.open()
    await eventually(lambda: condition(screen), TIMEOUT)
    await app.close()
    await eventually(phone.catch_up, TIMEOUT)
    return screen


def in_stage(phone: Phone, stage: ContactStage, user_id: int = 1) -> Condition:
    """Return whether the profile's only contact has reached a stage."""

    async def is_there(_: Screen) -> bool:
        rows = await phone.store.read(lambda tx: chats.contacts(tx, user_id))
        return [row.stage for row in rows] == [stage]

    return is_there


def has_unread(phone: Phone) -> Condition:
    async def is_there(_: Screen) -> bool:
        query = "SELECT 1 FROM items WHERE is_read = 0"
        return bool(await phone.store.read(lambda tx: tx.query(query)))

    return is_there


def shows(text: str) -> Condition:
    async def is_shown(screen: Screen) -> bool:
        return any(text in content.body for content in screen.shown)

    return is_shown


async def name_of_contact(phone: Phone, user_id: int = 1) -> list[str]:
    rows = await phone.store.read(lambda tx: chats.contacts(tx, user_id))
    return [row.contact.name for row in rows if row.stage is ContactStage.CONNECTED]


async def ask_private(alice: Phone, bob: Phone) -> None:
    """Bob joins a link of Alice's second profile, and waits to be accepted."""
    await alice.profiles.create("Private")
    async with alice.app("Private") as app:
        link = await app.invite(ask=True)
    async with bob.app() as app:
        await app.accept(link)
    await receive(alice, in_stage(alice, ContactStage.REQUESTED, 2))


@pytest.mark.parametrize("way", ["session", "notification", "respond", "respond as any"])
async def test_a_request_is_answered_by_the_profile_it_was_made_to(
    world: PhoneWorld, way: str
) -> None:
    alice, bob = await world.phone("Work"), await world.phone("bob")
    await ask_private(alice, bob)
    [row] = await alice.store.read(lambda tx: chats.contacts(tx, 2))
    assert (row.stage, row.name) == (ContactStage.REQUESTED, "bob")
    if way == "session":
        async with alice.app("Private") as app:
            await app.accept_request("bob")
    elif way == "respond":
        async with alice.app("Private") as app:
            assert await app.respond("bob", True) == "request"
    elif way == "respond as any":
        async with alice.app() as app:
            with pytest.raises(PhoneError, match="there is no contact"):
                await app.respond("bob", True)
            assert await app.respond("bob", True, any_profile=True) == "request"
    else:
        info: dict[str, str | int] = {"chatId": row.request.chat_id, "userId": row.user_id}
        content = Content(Category.CONTACT_REQUEST, "bob wants to connect!", info=info)
        app_service = alice.foreground(Screen())
        await app_service.launch()
        await app_service.open()
        await app_service.respond(Response(content, NotificationAction.ACCEPT_CONTACT.value))
        await app_service.close()
    await alice.catch_up()
    await receive(bob, in_stage(bob, ContactStage.CONNECTED))
    assert await name_of_contact(bob) == ["Private"], "Bob must not learn of the profile Work"
    active = await alice.profiles.active()
    assert active is not None
    assert active.name == ("Work" if way == "session" else "Private"), "a response switches"


async def test_a_rejected_request_is_forgotten(world: PhoneWorld) -> None:
    alice, bob = await world.phone("Work"), await world.phone("bob")
    await ask_private(alice, bob)
    async with alice.app("Private") as app:
        assert await app.respond("bob", False) == "request"
        assert await app.agent.connections() == []
        with pytest.raises(PhoneError, match="there is no contact"):
            await app.respond("bob", True)


async def test_contacts_of_one_profile_are_not_those_of_another(world: PhoneWorld) -> None:
    alice, bob = await world.phone("Work"), await world.phone("bob")
    await ask_private(alice, bob)
    async with alice.app() as app:
        with pytest.raises(PhoneError, match="there are: none"):
            await app.find("bob")
    assert [row.name for row in (await alice.status("Private")).contacts] == ["bob"]
    assert (await alice.status()).contacts == []


async def test_a_call_is_answered(world: PhoneWorld) -> None:
    alice, bob = await world.phone("alice"), await world.phone("bob")
    async with alice.app() as app:
        link = await app.invite("bob")
    async with bob.app() as app:
        await app.accept(link, "alice")
    await receive(alice, in_stage(alice, ContactStage.CONNECTED))
    await receive(bob, in_stage(bob, ContactStage.CONNECTED))
    for accept, said in ((True, "Call accepted"), (False, "Call declined")):
        async with bob.app() as app:
            await app.send("alice", Call())
        await receive(alice, has_unread(alice))
        async with alice.app() as app:
            assert await app.respond("bob", accept) == "call"
            with pytest.raises(PhoneError, match="has no pending request or call"):
                await app.respond("bob", accept)
        await receive(bob, shows(said))


async def test_deleting_a_profile_deletes_its_connections_and_the_last_one_the_token(
    world: PhoneWorld,
) -> None:
    alice, bob = await world.registered("Work"), await world.phone("bob")
    async with alice.app() as app:
        work = await app.invite("carol")
    await ask_private(alice, bob)
    async with alice.app() as app:
        assert len(await app.agent.connections()) == 2
        await alice.profiles.delete(app.agent, "Private")
        [left] = await app.agent.connections()
        assert (await app.find("carol")).conn_id == left
        assert await app.agent.token_info() is not None
        await alice.profiles.delete(app.agent, "Work")
        assert await app.agent.connections() == []
        assert await app.agent.token_info() is None
    async with alice.app() as app:
        with pytest.raises(PhoneError, match="device user create"):
            await app.invite("dora")
    assert (await alice.status()).name is None
    assert await alice.shared.badge() == 0
    await alice.profiles.create("New")
    active = await alice.profiles.active()
    assert active is not None
    assert active.name == "New"
    assert work


async def test_a_hidden_profile_needs_its_password(world: PhoneWorld) -> None:
    alice, bob = await world.phone("Work"), await world.phone("bob")
    await ask_private(alice, bob)
    profiles = alice.profiles
    with pytest.raises(PhoneError, match="active profile"):
        await profiles.hide("Work", "secret")
    with pytest.raises(PhoneError, match="empty"):
        await profiles.hide("Private", "")
    await profiles.hide("Private", "open sesame")
    assert [user.name for user in await profiles.list()] == ["Work"]
    assert [user.name for user in (await alice.status()).users] == ["Work"]
    for password in (None, "wrong"):
        with pytest.raises(PhoneError, match="there are: Work"):
            await profiles.find("Private", password)
        with pytest.raises(PhoneError, match="there are: Work"):
            async with alice.app("Private", password):
                pass
    with pytest.raises(PhoneError, match="already"):
        await profiles.create("Private")
    async with alice.app("Private", "open sesame") as app:
        await app.accept_request("bob")
    await receive(bob, in_stage(bob, ContactStage.CONNECTED))
    async with bob.app() as app:
        await app.send("Private", Text("seen by nobody"))
    screen = await receive(alice, has_unread(alice))
    assert screen.shown == [], "a hidden profile notifies of nothing"
    assert screen.badge == 1, "the badge counts all profiles"
    await profiles.unhide("Private", "open sesame")
    assert [user.name for user in await profiles.list()] == ["Work", "Private"]


async def test_names_of_profiles(world: PhoneWorld) -> None:
    alice = await world.phone("alice")
    with pytest.raises(PhoneError, match="already"):
        await alice.profiles.create("alice")
    with pytest.raises(PhoneError, match="there are: alice"):
        await alice.profiles.switch("nobody")
    await alice.profiles.create("Work")
    await alice.profiles.switch("Work")
    async with alice.app() as app:
        assert app.user.name == "Work"
