"""Phones over real routers: what is left to do when a command ends, or a router is down."""

import asyncio
import sqlite3
from argparse import Namespace

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.errors import Prohibited, RouterError
from heliograph.agent.messages import store as messages
from heliograph.agent.notifications import records as ntf_records
from heliograph.agent.store import FILE, AgentStore
from heliograph.cli.device import token as token_commands
from heliograph.cli.device.screen import describe
from heliograph.device.chats.body import Text
from heliograph.phone import sources as phone_sources
from heliograph.phone.phone import Phone, PhoneError, SendRefused
from heliograph.wire.ntf.tokens import NotificationsMode as Mode, TokenStatus
from tests.agent.notifications.support import TIMEOUT
from tests.db.postgres import shared_postgres
from tests.phone.world import SOON, PhoneWorld
from tests.waiting import eventually, until

COUNT_SUBSCRIPTIONS = "SELECT COUNT(*) FROM subscriptions"


async def connected(alice: Phone, bob: Phone) -> None:
    async with alice.app() as app:
        link = await app.invite("bob")
    async with bob.app() as app:
        await app.accept(link, "alice")


async def modes(phone: Phone) -> tuple[Mode, Mode | None]:
    """As the phone's store has it, and the agent's; looked at without waking anything."""
    core = phone.core()
    await core.open()
    try:
        info = await core.agent.token_info()
        return await phone.shared.mode(), None if info is None else info.mode
    finally:
        await core.close()


async def until_subscribed(phone: Phone, count: int) -> None:
    """As the store has it."""
    core = phone.core()
    await core.open()
    created = ntf_records.SubscriptionStage.CREATED

    async def is_so() -> bool:
        found = await core.agent.notifications.subscriptions()
        return [item.stage for item in found] == [created] * count

    try:
        await eventually(is_so, TIMEOUT)
    finally:
        await core.close()


# Modes.


async def test_a_mode_is_recorded_while_the_router_is_down(
    world: PhoneWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    alice, bob = await world.registered("alice"), await world.phone("bob")
    await connected(alice, bob)
    await world.routers.stop_ntf()
    try:
        async with alice.app() as app:
            with pytest.raises(RouterError) as caught:
                await app.set_mode(Mode.PERIODIC)
        assert caught.value.temporary
        assert await modes(alice) == (Mode.PERIODIC, Mode.PERIODIC)
        async with alice.app() as app:
            assert await token_commands.change_mode(alice, app, Mode.PERIODIC) == 0
        assert "once the router can be reached" in capsys.readouterr().out
    finally:
        await world.routers.start_ntf()
    async with world.watched(alice):
        await until_subscribed(alice, 0)

        async def is_periodic() -> bool:
            rows = await world.routers.ntf.read(
                lambda tx: tx.query("SELECT cron_minutes FROM tokens")
            )
            return [tuple(row) for row in rows] == [(20,)]

        await eventually(is_periodic, TIMEOUT)


async def test_a_mode_that_cannot_be_is_not_recorded(world: PhoneWorld) -> None:
    alice = await world.phone("alice")
    async with alice.app() as app:
        with pytest.raises(Prohibited):
            await app.set_mode(Mode.INSTANT)
    assert await modes(alice) == (Mode.OFF, None)


async def test_a_watch_subscribes_again_after_off(world: PhoneWorld) -> None:
    alice, bob = await world.registered("alice"), await world.phone("bob")
    await connected(alice, bob)
    async with alice.app() as app:
        assert await app.set_mode(Mode.OFF) is None
        assert await app.wait_idle()
        assert await app.agent.notifications.subscriptions() == []
    async with world.watched(alice) as screen:
        async with alice.app() as app:
            assert await app.set_mode(Mode.INSTANT) is TokenStatus.REGISTERED
        await until_subscribed(alice, 1)
        async with bob.app() as app:
            assert await app.send("alice", Text("again"))

        async def is_shown() -> bool:
            return any(content.body == "again" for content in screen.shown)

        await eventually(is_shown, TIMEOUT)


async def test_the_mode_command_verifies_and_subscribes(
    world: PhoneWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    alice, bob = await world.registered("alice"), await world.phone("bob")
    await connected(alice, bob)
    for mode, token, subscribed in (("off", "deleted", 0), ("instant", "ACTIVE", 1)):
        async with alice.app() as app:
            assert await token_commands.change_mode(alice, app, Mode(mode)) == 0
        out = capsys.readouterr().out
        assert out == f"Notifications are {mode}; the token is {token}.\n"
        assert (await alice.status()).subscribed == subscribed


async def test_the_mode_command_says_what_is_next(
    world: PhoneWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pushes of a token that a real device has are not seen here."""
    alice = await world.registered("alice")
    async with alice.app() as app:
        await app.set_mode(Mode.OFF)
    await phone_sources.save_none(alice)
    async with alice.app() as app:
        assert await token_commands.change_mode(alice, app, Mode.INSTANT) == 1
    assert "heliograph device verify --push" in capsys.readouterr().out


# What is left to do.


async def test_a_token_is_registered_later_if_the_router_is_down(world: PhoneWorld) -> None:
    alice = await world.phone("alice")
    await world.routers.stop_ntf()
    try:
        options = Namespace(
            dir=alice.directory,
            passphrase_file=None,
            user=None,
            user_password_file=None,
            token=None,
            apns=world.control_url,
            mode="instant",
            timeout=TIMEOUT,
        )
        with pytest.raises(PhoneError, match="until the router can be reached, while"):
            await token_commands.register(options)
    finally:
        await world.routers.start_ntf()
    assert await modes(alice) == (Mode.INSTANT, Mode.INSTANT)
    core = alice.core()
    await core.open()

    async def is_active() -> bool:
        info = await core.agent.token_info()
        return info is not None and info.status is TokenStatus.ACTIVE

    try:
        async with world.watched(alice):
            await eventually(is_active, TIMEOUT)
    finally:
        await core.close()


async def test_the_safety_net_of_instant_mode(world: PhoneWorld) -> None:
    """The router wakes the app every 20 minutes, which finds what no push was about."""
    alice, bob = await world.registered("alice"), await world.phone("bob")
    await connected(alice, bob)
    await until_subscribed(alice, 1)
    await world.routers.stop_ntf()
    with sqlite3.connect(world.routers.directory / "ntf" / "ntf.db") as database:
        database.execute("DELETE FROM subscriptions")
        assert database.execute("SELECT cron_minutes FROM tokens").fetchall() == [(20,)]
    database.close()
    await world.routers.start_ntf()
    async with world.watched(alice) as screen:
        async with bob.app() as app:
            assert await app.send("alice", Text("unpushed"))
        store = world.routers.ntf.router.store
        await store.database.write(lambda tx: tx.execute("UPDATE tokens SET cron_due_at = 1", ()))

        async def is_shown() -> bool:
            return any(content.body == "unpushed" for content in screen.shown)

        await eventually(is_shown, TIMEOUT)


async def test_a_muted_contact_is_not_pushed_for(world: PhoneWorld) -> None:
    alice, bob = await world.registered("alice"), await world.phone("bob")
    await connected(alice, bob)
    await until_subscribed(alice, 1)
    for muted in (True, False):
        expected = 0 if muted else 1
        async with alice.app() as app:
            await app.mute("bob", muted)
            await until_subscribed(alice, expected)  # the app retries what a slow router refused

        async def is_so(expected: int = expected) -> bool:
            rows = await world.routers.ntf.read(lambda tx: tx.query(COUNT_SUBSCRIPTIONS))
            return bool(rows == [(expected,)])

        await eventually(is_so, TIMEOUT)


async def test_a_watch_ends_though_closing_an_app_outlasts_its_cancellation(
    world: PhoneWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await world.registered("alice")
    began = asyncio.Event()

    async def closing() -> bool:
        is_first = not began.is_set()
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not is_first:
                raise
        return True

    monkeypatch.setattr(alice, "catch_up", closing)
    async with asyncio.timeout(TIMEOUT):
        async with world.watched(alice):
            await began.wait()


async def test_kept_messages_leave_while_a_phone_is_watched(world: PhoneWorld) -> None:
    alice, bob = await world.registered("alice"), await world.phone("bob")
    await connected(alice, bob)
    await world.smp.stop()
    async with bob.app() as app:
        row = await app.find("alice")
        await app.agent.send(row.conn_id, b"{}")
        assert not await app.until_sent(row.conn_id, SOON)
        assert not await app.wait_idle(SOON)
    await world.smp.start()
    store = await AgentStore.open(bob.directory)
    try:
        async with world.watched(bob):

            async def has_left() -> bool:
                return await store.read(lambda tx: messages.count_outgoing(tx, row.conn_id)) == 0

            await eventually(has_left, TIMEOUT)
    finally:
        await store.close()


async def test_what_waits_for_a_contact_is_not_left_to_do(world: PhoneWorld) -> None:
    alice = await world.registered("alice")
    async with alice.app() as app:
        await app.invite("bob")
        assert not await app.send("bob", Text("when you come"))
        assert await app.wait_idle()


# Refusals.


async def test_a_link_that_was_used_is_refused(world: PhoneWorld) -> None:
    alice, bob, carol = [await world.phone(name) for name in ("alice", "bob", "carol")]
    async with alice.app() as app:
        link = await app.invite("bob", full=True)
    async with bob.app() as app:
        await app.accept(link, "alice")
    async with carol.app() as app:
        with pytest.raises(SendRefused, match="refused: this link was used already"):
            await app.accept(link, "alice")
        with pytest.raises(SendRefused, match="ask for a new link"):
            await app.send("alice", Text("hello?"))
    assert dict(describe(await carol.status()))["contacts"] == ["alice (refused)"]
    assert dict(describe(await bob.status()))["contacts"] == ["alice (joined)"]

    async with alice.app() as app:
        link = await app.invite("carol")
    async with carol.app() as app:
        await app.accept(link, "alice")
        assert await app.send("alice", Text("hello")), "the one that was refused is passed over"


async def test_a_chat_that_the_contact_deleted_is_refused(world: PhoneWorld) -> None:
    alice, bob = await world.phone("alice"), await world.phone("bob")
    await connected(alice, bob)
    async with alice.app() as app:
        [conn_id] = await app.agent.connections()
        await app.agent.delete_connection(conn_id)

        async def is_deleted() -> bool:
            vault = app.agent.store.vault
            return not await app.agent.store.read(
                lambda tx: queues.rcv_queues_of(tx, vault, [conn_id])
            )

        await eventually(is_deleted, TIMEOUT)
    async with bob.app() as app:
        with pytest.raises(SendRefused, match="deleted the chat"):
            await app.send("alice", Text("still there?"))
    assert dict(describe(await bob.status()))["contacts"] == ["alice (refused)"]


# The provider.


async def test_the_address_of_the_provider_is_not_its_control(world: PhoneWorld) -> None:
    simulator = world.routers.ntf.apns.simulator
    await phone_sources.check_apns(simulator.control_url)
    for url in (simulator.url, "http://127.0.0.1:9", "http://", f"{simulator.control_url}/x"):
        with pytest.raises(PhoneError, match="prints after the word control"):
            await phone_sources.check_apns(url)


# PostgreSQL.


async def test_phones_whose_agents_are_in_postgresql(world: PhoneWorld) -> None:
    server = shared_postgres()
    alice = await world.registered("alice", server.new_url())
    bob = await world.phone("bob", server.new_url())
    assert not (alice.directory / FILE).exists()
    await connected(alice, bob)
    async with world.watched(alice) as screen:
        async with bob.app() as app:
            await app.send("alice", Text("Meet at noon."))
        await until(lambda: "Meet at noon." in [item.body for item in screen.shown])
    again = await Phone.open(alice.directory)
    assert again.place == alice.place
    await again.close()
