"""What changes in the life of a phone: its mode, token, contacts, provider and router."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.device import chats
from heliograph.device.body import Text
from heliograph.device.chats import Stage
from heliograph.device.content import Category
from heliograph.device.manager import Action, Response
from heliograph.device.states import NotificationsMode as Mode
from heliograph.sim.phone import Phone
from heliograph.sim.phone_push import Delivered, PushSource, WebPushSource
from heliograph.wire.push import CheckMessagesPush
from heliograph.wire.tokens import DeviceToken, TokenStatus
from tests.e2e.support import (
    SETTINGS,
    TIMEOUT,
    Watching,
    World,
    connect,
    eventually,
    register,
    watching,
)
from tests.faults.processes import Process, init

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
async def alice(world: World) -> AsyncIterator[Phone]:
    phone = await world.new_phone("alice")
    await register(world, phone)
    yield phone
    await phone.close()


@pytest.fixture
async def bob(world: World) -> AsyncIterator[Phone]:
    phone = await world.new_phone("bob")
    yield phone
    await phone.close()


async def send(bob: Phone, text: str) -> None:
    async with bob.app() as app:
        assert await app.send("alice", Text(text))


async def until_subscriptions(phone: Phone, count: int) -> None:
    async with phone.app() as app:

        async def is_so() -> bool:
            return len(await app.agent.notifications.subscriptions()) == count

        await eventually(is_so)


class OnePush:
    """A provider that delivers one push, and no more."""

    def __init__(self, source: PushSource, delivered: Delivered) -> None:
        self._source = source
        self._delivered = delivered

    @property
    def device(self) -> DeviceToken:
        return self._source.device

    async def pushes(self) -> AsyncIterator[Delivered]:
        yield self._delivered
        await asyncio.Event().wait()

    async def close(self) -> None:
        await self._source.close()


async def test_modes(world: World, alice: Phone, bob: Phone) -> None:
    """Instant, then periodic, then off, then instant: each message is shown, or waits."""
    await connect(world, alice, bob)
    async with watching(world, alice) as watch:
        await watch.next()
        await send(bob, "instantly")
        await watch.until("bob", "instantly")
    async with alice.app() as app:
        assert await app.set_mode(Mode.PERIODIC) is TokenStatus.ACTIVE
    await until_subscriptions(alice, 0)
    await send(bob, "some time")
    # The router wakes the phone from time to time, and so does the platform.
    check = OnePush(await world.source(alice), Delivered("check", CheckMessagesPush()))
    phone = Watching(alice, check, await alice.shared.app_state())
    await phone.start()
    try:
        await phone.app.set_mode(Mode.PERIODIC)
        assert phone.screen.due_at is not None
        await phone.until("bob", "some time")
        await eventually(lambda: completed(phone))
    finally:
        await phone.stop()
    async with alice.app() as app:
        assert await app.set_mode(Mode.OFF) is None
        assert await app.agent.token_info() is None
    await send(bob, "some day")
    async with alice.app() as app:
        await app.set_mode(Mode.INSTANT)
        source = await world.source(alice)
        status = await app.register_and_verify(source, Mode.INSTANT, TIMEOUT)
        assert status is TokenStatus.ACTIVE
        await source.close()
        [conn_id] = await app.agent.connections()
        assert await app.until_subscribed(conn_id)
    async with watching(world, alice) as watch:
        await send(bob, "instantly again")
        content = await watch.until("bob", "instantly again")
        assert content.badge == 4, "the one that waited is counted"


async def completed(phone: Watching) -> bool:
    return phone.screen.completed == [True]


async def test_another_device_token(world: World, alice: Phone, bob: Phone) -> None:
    """TRPL: subscriptions stay, and pushes go to the new token."""
    await connect(world, alice, bob)
    old = await alice.token()
    new = await alice.renew_token()
    assert old != new
    await register(world, alice)
    await send(bob, "to the new one")
    async with watching(world, alice) as watch:
        await watch.until("bob", "to the new one")


async def test_a_contact_request_is_accepted_from_its_notification(
    world: World, alice: Phone, bob: Phone
) -> None:
    async with alice.app() as app:
        link = await app.invite(ask=True)
    async with bob.app() as app:
        await app.accept(link, "alice")
    async with watching(world, alice) as watch:
        content = await watch.next()
        assert content.title == "bob wants to connect!"
        assert content.category is Category.CONTACT_REQUEST
        await watch.app.respond(Response(content, Action.ACCEPT_CONTACT.value))
        await watch.app.open()

        async def is_connected() -> bool:
            [row] = await alice.store.read(chats.contacts)
            return row.stage is Stage.CONNECTED

        await eventually(is_connected)
    async with bob.app() as app:
        await app.agent.subscribe()
        async for message in app.agent.messages():
            assert b'"name": "alice"' in message.body
            break


async def test_a_web_push_endpoint_of_the_phone_itself(tmp_path: Path) -> None:
    directory = tmp_path / "alice"
    directory.mkdir()
    source = WebPushSource(directory)
    await source.start()
    smp, ntf = tmp_path / "smp", tmp_path / "ntf"
    await asyncio.gather(init("smp", smp), init("ntf", ntf))
    environment = {"HELIOGRAPH_NTF_PUSH_WEBPUSH_CA_FILE": str(directory / "ca.crt")}
    fast = {"HELIOGRAPH_SMP_NOTIFICATIONS_DELIVERY_INTERVAL": "0.05"}
    messaging = Process(smp, "smp", "start", environment=fast)
    notifying = Process(ntf, "ntf", "start", environment=environment)
    try:
        await asyncio.gather(messaging.start(), notifying.start())
        routers = ([messaging.ready], notifying.ready)
        alice = await Phone.create(directory, "alice", *routers, settings=SETTINGS)
        bob = await Phone.create(tmp_path / "bob", "bob", *routers, settings=SETTINGS)
        async with alice.app() as app:
            status = await app.register_and_verify(source, Mode.INSTANT, TIMEOUT)
            assert status is TokenStatus.ACTIVE
            link = await app.invite("bob")
        async with bob.app() as app:
            await app.accept(link, "alice")
        watch = Watching(alice, source, await alice.shared.app_state())
        await watch.start()
        try:
            await send(bob, "by Web Push")
            await watch.until("bob", "by Web Push")
        finally:
            await watch.stop()
        await alice.close()
        await bob.close()
    finally:
        await messaging.kill()
        await notifying.kill()


async def test_the_messaging_router_moves(world: World, alice: Phone, bob: Phone) -> None:
    """The same identity at another port: phones are told its new address."""
    await connect(world, alice, bob)
    await world.smp.kill()
    world.smp._options = ("--port", "0")
    await world.smp.start()
    for phone in (alice, bob):
        async with phone.app() as app:
            await app.agent.move_router(world.smp_address)
            for conn_id in await app.agent.connections():
                await app.until_subscribed(conn_id)
    async with watching(world, alice) as watch:
        await send(bob, "from the new place")
        await watch.until("bob", "from the new place")


async def test_a_push_for_another_phone(world: World, alice: Phone, bob: Phone) -> None:
    """It opens with no key of this phone, so it is shown as it came."""
    stranger = await world.new_phone("stranger")
    await register(world, stranger)
    await connect(world, stranger, bob)
    watch = Watching(alice, await world.source(stranger), await alice.shared.app_state())
    await watch.start()
    try:
        content = await watch.next()
        assert content.body == "Encrypted message or another app event"
    finally:
        await watch.stop()
        await stranger.close()
