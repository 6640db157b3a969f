"""Message sent, push recorded, phone shows the right preview: on real processes, in each mode."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from heliograph.device.chats import users
from heliograph.device.chats.body import Body, Call, Text
from heliograph.device.chats.content import Category
from heliograph.device.chats.model import CallMedia
from heliograph.device.extension.entity import MORE_FETCHES
from heliograph.device.states import AppState, PreviewMode
from heliograph.phone.phone import Phone
from tests.e2e.support import Watching, World, connect, register, watching
from tests.waiting import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

M = PreviewMode


@dataclass
class Two:
    world: World
    alice: Phone
    bob: Phone
    watch: Watching

    async def send(self, body: Body) -> None:
        async with self.bob.app() as app:
            assert await app.send("alice", body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(shared_world: World) -> AsyncIterator[Two]:
    """Alice, who is watched, and Bob."""
    alice, bob = await shared_world.new_phone("alice"), await shared_world.new_phone("bob")
    await register(shared_world, alice)
    await connect(shared_world, alice, bob)
    async with watching(shared_world, alice) as watch:
        connected = await watch.next()
        assert connected.title == "bob is connected!"
        assert connected.category is Category.CONTACT_CONNECTED
        yield Two(shared_world, alice, bob, watch)
    await alice.close()
    await bob.close()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def messages_are_previewed(two: Two) -> None:
    """Whatever mode the test before this one left."""
    await two.alice.shared.set_preview(M.MESSAGE)


@pytest.mark.parametrize(
    ("mode", "title", "body"),
    [
        (M.MESSAGE, "bob", "the code is ..."),
        (M.CONTACT, "bob", "New message"),
        (M.HIDDEN, "SimpleX", "New message"),
    ],
)
async def test_a_message_in_each_mode(two: Two, mode: PreviewMode, title: str, body: str) -> None:
    before = await two.alice.shared.badge()
    pushes = await recorded(two)
    await two.alice.shared.set_preview(mode)
    await two.send(Text("the code is #1234#"))
    content = await two.watch.next()
    assert (content.title, content.body) == (title, body)
    assert content.category is Category.MESSAGE_RECEIVED
    assert content.badge == before + 1 == two.watch.screen.badge
    assert await recorded(two) > pushes


@pytest.mark.parametrize("mode", M)
async def test_a_call_in_each_mode(two: Two, mode: PreviewMode) -> None:
    await two.alice.shared.set_preview(mode)
    await two.send(Call(CallMedia.VIDEO))
    content = await two.watch.next()
    assert content.title == ("SimpleX" if mode is M.HIDDEN else "bob")
    assert content.body == "Incoming video call"
    assert content.category is Category.CALL_INVITATION


@pytest.mark.parametrize("mode", M)
async def test_a_group_in_each_mode(two: Two, mode: PreviewMode) -> None:
    await two.alice.shared.set_preview(mode)
    await two.send(Text("up we go", group="Climbing"))
    content = await two.watch.next()
    assert content.title == ("SimpleX" if mode is M.HIDDEN else "#Climbing bob")
    assert content.body == ("up we go" if mode is M.MESSAGE else "New message")
    assert content.thread.startswith("#")


async def test_a_muted_user_is_shown_nothing(two: Two) -> None:
    await two.send(Text("before"))  # no push of an earlier message comes after that of this one
    await two.watch.until("bob", "before")
    shown, pushes = len(two.watch.screen.shown), await recorded(two)
    await two.alice.store.write(lambda tx: users.set_show_notifications(tx, 1, False))
    await two.send(Text("not now"))

    async def is_pushed() -> bool:
        return await recorded(two) > pushes

    await eventually(is_pushed)
    await all_seen(two, await recorded(two))
    assert len(two.watch.screen.shown) == shown
    await two.alice.store.write(lambda tx: users.set_show_notifications(tx, 1, True))
    await two.send(Text("now"))
    await two.watch.until("bob", "now")  # a late push may show "not now" before it


async def test_a_quiet_message_causes_no_push_but_is_read(two: Two) -> None:
    async with two.bob.app() as app:
        assert await app.send("alice", Text("psst"), notification=False)
    before = await two.alice.shared.badge()
    await two.send(Text("loud"))
    content = await two.watch.next()
    assert content.body == "loud"
    assert content.badge == before + 2


async def test_many_messages_each_push_in_its_turn(two: Two) -> None:
    """Whatever the router joins into one push, the last is shown last, and all are counted.

    Four, as that is what an extension fetches for one push.
    """
    before = await two.alice.shared.badge()
    async with two.bob.app() as app:
        for number in range(1 + MORE_FETCHES):
            assert await app.send("alice", Text(f"number {number}"))
    await two.watch.until("bob", f"number {MORE_FETCHES}")
    assert await two.alice.shared.badge() == before + 1 + MORE_FETCHES
    shown = [item.body for item in two.watch.screen.shown if item.body.startswith("number")]
    assert shown == sorted(shown)


async def test_a_stopped_app_says_so(two: Two) -> None:
    await two.alice.shared.set_app_state(AppState.STOPPED)
    before = await two.alice.shared.badge()
    await two.send(Text("while stopped"))
    content = await two.watch.next()
    assert content.title == "Encrypted message: app is stopped"
    assert content.badge == before + 1
    await two.alice.shared.set_app_state(AppState.SUSPENDED)
    await two.send(Text("again"))
    assert (await two.watch.next()).body == "again"


async def test_an_active_app_receives_by_itself(two: Two) -> None:
    """The database is handed over: the extension closes it, and passes pushes through."""
    shown = len(two.watch.screen.shown)
    await two.watch.app.open()
    assert await two.alice.shared.app_state() is AppState.ACTIVE
    await two.send(Text("face to face"))
    content = await two.watch.next()
    assert (content.title, content.body) == ("bob", "face to face")
    await two.watch.app.leave()
    assert await two.alice.shared.app_state() is AppState.SUSPENDED
    await two.send(Text("in the pocket"))
    assert (await two.watch.until("bob", "in the pocket")).badge is not None
    assert len(two.watch.screen.shown) == shown + 2


async def recorded(two: Two) -> int:
    """Pushes that the provider took for Alice."""
    url = f"{two.world.apns.control}/devices/{await two.alice.token()}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return len(await answer.json())


async def all_seen(two: Two, count: int) -> None:
    def seen(tx: object) -> bool:
        [[number]] = tx.query("SELECT COUNT(*) FROM pushes")  # type: ignore[attr-defined]
        return bool(number >= count - 1)  # the verification was seen by another

    async def is_so() -> bool:
        return await two.alice.store.read(seen)

    await eventually(is_so)
    await asyncio.sleep(0)
