"""What changes in the life of a phone: its mode, token, contacts, provider and router."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.cli.device import token
from heliograph.device.app.manager import NotificationAction, Response
from heliograph.device.chats import store as chats
from heliograph.device.chats.body import Text
from heliograph.device.chats.content import Category
from heliograph.device.chats.store import ContactStage
from heliograph.phone import sources as phone_sources
from heliograph.phone.phone import SOURCE, Phone, PhoneError
from heliograph.phone.push import DeliveredPush, PushSource, WebPushSource, opened
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.ntf.push import CheckMessagesPush, MessagePush
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode as Mode, TokenStatus
from tests.e2e.support import SETTINGS, TIMEOUT, Watching, World, connect, register, watching
from tests.faults.processes import Process, init
from tests.waiting import eventually

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

    def __init__(self, source: PushSource, delivered: DeliveredPush) -> None:
        self._source = source
        self._delivered = delivered

    @property
    def device(self) -> DeviceToken:
        return self._source.device

    async def pushes(self) -> AsyncIterator[DeliveredPush]:
        yield self._delivered
        await asyncio.Event().wait()

    async def handled(self, push_id: str) -> None: ...

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
    check = OnePush(await world.source(alice), DeliveredPush("check", CheckMessagesPush()))
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
        await watch.app.respond(Response(content, NotificationAction.ACCEPT_CONTACT.value))
        await watch.app.open()

        async def is_connected() -> bool:
            [row] = await alice.store.read(lambda tx: chats.contacts(tx, 1))
            return row.stage is ContactStage.CONNECTED

        await eventually(is_connected)
    async with bob.app() as app:
        await app.agent.subscribe()
        async for message in app.agent.messages():
            assert b'"name": "alice"' in message.body
            break


async def test_a_web_push_endpoint_of_the_phone_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It also verifies for a command that cannot have its port meanwhile."""
    directory = tmp_path / "alice"
    directory.mkdir()
    source = WebPushSource(directory)
    await source.endpoint.start()
    smp, ntf = tmp_path / "smp", tmp_path / "ntf"
    await asyncio.gather(init("smp", smp), init("ntf", ntf))
    environment = {"HELIOGRAPH_NTF_PUSH_WEBPUSH_CA_FILE": str(directory / "ca.crt")}
    fast = {"HELIOGRAPH_SMP_NOTIFICATIONS_DELIVERY_INTERVAL": "0.05"}
    messaging = Process(smp, "smp", "start", environment=fast)
    notifying = Process(ntf, "ntf", "start", environment=environment)
    try:
        await asyncio.gather(messaging.start(), notifying.start())
        routers = ([messaging.ready], [notifying.ready])
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
            await alice.store.set(SOURCE, f"webpush 127.0.0.1 {source.endpoint.port}")
            async with alice.app() as app:
                assert await app.set_mode(Mode.OFF) is None
                with pytest.raises(OSError, match="in use"):
                    async with opened(await phone_sources.load(alice)):
                        pass
                assert await token.change_mode(alice, app, Mode.INSTANT) == 0
            assert "instant; the token is ACTIVE" in capsys.readouterr().out
            await send(bob, "by Web Push again")
            await watch.until("bob", "by Web Push again")
        finally:
            await watch.stop()
        await alice.close()
        await bob.close()
    finally:
        await messaging.kill()
        await notifying.kill()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_the_messaging_router_moves(
    world: World, alice: Phone, bob: Phone, host: str
) -> None:
    """The same identity at another port, or at the same port of another host."""
    await connect(world, alice, bob)
    await world.smp.kill()
    before, port = world.smp_address.rsplit(":", 1)
    world.smp.options = ("--host", host, "--port", "0" if host == "127.0.0.1" else port)
    await world.smp.start()
    assert world.smp_address.rsplit(":", 1)[0] == before.replace("127.0.0.1", host)
    assert world.smp_address != f"{before}:{port}"
    for phone in (alice, bob):
        async with phone.app() as app:
            assert await app.move_router(world.smp_address)
    async with watching(world, alice) as watch:
        await send(bob, "from the new place")
        await watch.until("bob", "from the new place")
    carol = await world.new_phone("carol")
    await connect(world, alice, carol)
    assert [str(address) for address in await routers(alice)].count(world.smp_address) == 1
    await carol.close()


async def routers(phone: Phone) -> list[ServerAddress]:
    async with phone.app() as app:
        return await app.agent.routers()


async def test_the_notification_router_moves(world: World, alice: Phone, bob: Phone) -> None:
    """Its token and its subscriptions are the same there."""
    await connect(world, alice, bob)
    await world.ntf.kill()
    before = world.ntf_address
    world.ntf.options = ("--host", "127.0.0.2", "--port", before.rsplit(":", 1)[1])
    await world.ntf.start()
    async with alice.app() as app:
        assert await app.move_router(world.ntf_address)
        info = await app.agent.token_info()
        assert info is not None
        assert info.status is TokenStatus.ACTIVE
        with pytest.raises(PhoneError, match="knows no router of that identity"):
            await app.move_router(world.smp_address.replace("smp://", "ntf://"))
    async with watching(world, alice) as watch:
        await send(bob, "by the new place")
        await watch.until("bob", "by the new place")


async def message_pushes(world: World, phone: Phone, count: int) -> list[DeliveredPush]:
    """The first so many about messages."""
    source, found = await world.source(phone), []
    try:
        async with asyncio.timeout(TIMEOUT):
            async for delivered in source.pushes():
                if isinstance(delivered.push, MessagePush):
                    found.append(delivered)
                    if len(found) == count:
                        break
    finally:
        await source.close()
    return found


async def test_a_phone_that_was_off_gets_only_the_last_push(world: World, alice: Phone) -> None:
    """It is about both contacts, and becomes one notification."""
    contacts = [await world.new_phone(name) for name in ("bob", "carol")]
    async with watching(world, alice) as watch:
        for phone in contacts:
            name = phone.directory.name
            async with alice.app() as app:
                link = await app.invite(name)
            async with phone.app() as app:
                await app.accept(link, "alice")
            await watch.until(f"{name} is connected!", f"You can now send messages to {name}")
    await asyncio.sleep(1.1)  # routers' times are in seconds, and only what is later is news
    for phone in contacts:
        async with phone.app() as app:
            await app.send("alice", Text("are you there?"))
        await phone.close()
    push = await push_about_two(world, alice)
    extension = alice.extension()
    content = await extension.receive(push)
    assert (content.title, content.body) == ("New messages", "From: bob and carol")
    assert (content.category, content.badge) == (Category.MANY_EVENTS, 2)
    await extension.close()


async def push_about_two(world: World, alice: Phone) -> MessagePush:
    source, core = await world.source(alice), alice.core()
    await core.open()
    try:
        async with asyncio.timeout(TIMEOUT):
            async for delivered in source.pushes():
                push = delivered.push
                if isinstance(push, MessagePush):
                    found = await core.read_push(push.nonce, push.box)
                    if sum(not item.is_old for item in found) == 2:
                        return push
    finally:
        await core.close()
        await source.close()
    raise AssertionError("no such push came")


async def test_an_extension_that_is_killed_before_it_shows(
    world: World, alice: Phone, bob: Phone
) -> None:
    """The message is stored and acknowledged: the same push shows it all the same, and once."""
    await connect(world, alice, bob)
    [greeting] = await message_pushes(world, alice, 1)
    await send(bob, "do not lose me")
    push = (await message_pushes(world, alice, 2))[-1].push
    assert isinstance(push, MessagePush)
    assert isinstance(greeting.push, MessagePush)
    killed = alice.core()
    await killed.open()
    [connection] = await killed.read_push(push.nonce, push.box)
    assert connection.expected is not None
    got = await killed.fetch(connection.conn_id, connection.expected)
    while got is not None and got.msg_id != connection.expected.msg_id:
        got = await killed.fetch(connection.conn_id, connection.expected)
    assert got is not None
    await killed.close()
    extension = alice.extension()
    assert (await extension.receive(push)).body == "do not lose me"
    assert not (await extension.receive(push)).is_shown
    assert not (await extension.receive(greeting.push)).is_shown, "it is older"
    await extension.close()


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
