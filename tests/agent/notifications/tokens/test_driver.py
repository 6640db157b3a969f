"""The token over real routers: registration, replacement, deletion, modes, restarts."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.agent.errors import BadNotification, Prohibited, RouterError
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.records import SubAction, TokenAction
from heliograph.agent.records import TokenInfo
from heliograph.ntf.router import NtfRouter
from heliograph.push.provider import Provider
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.ntf.tokens import (
    FcmDeviceToken,
    PushProvider,
    SubscriptionState,
    TokenStatus,
)
from tests.agent.notifications.settings import SETTINGS
from tests.agent.notifications.support import INSTANT, OFF, PERIODIC, AgentWorld, Rig, agent_world
from tests.agent.places import BOTH_STORES, stored_bytes
from tests.ntf.support import a_device
from tests.smp.support import identity
from tests.waiting import eventually

pytestmark = BOTH_STORES

S = TokenStatus


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    async with agent_world(tmp_path) as running:
        yield running


async def tokens_at_router(rig: Rig) -> list[tuple[bytes, str, int]]:
    rows = await rig.world.read(
        lambda tx: tx.query("SELECT token_id, status, cron_minutes FROM tokens")
    )
    return [(bytes(token_id), status, cron) for token_id, status, cron in rows]


async def until_router_has(rig: Rig, count: int) -> None:
    async def is_so() -> bool:
        return len(await tokens_at_router(rig)) == count

    await eventually(is_so)


async def until_all_deleted(rig: Rig) -> None:
    async def is_so() -> bool:
        return await rig.store.read(ntf_store.routers_to_delete_at) == []

    await eventually(is_so)


async def test_a_token_is_registered_verified_and_checked(world: AgentWorld) -> None:
    rig = await world.rig()
    assert await rig.ntf.token_info() is None
    assert await rig.ask() is S.REGISTERED
    assert await rig.verify() is S.ACTIVE
    assert await rig.ntf.check_token() is S.ACTIVE
    info = await rig.ntf.token_info()
    assert info is not None
    assert info.token_id
    expected = TokenInfo(rig.device, S.ACTIVE, INSTANT, rig.world.address, info.token_id)
    assert info == expected
    assert rig.heard[-1] == info
    assert await rig.ask() is S.ACTIVE  # as an app does whenever it starts


async def test_a_token_that_waits_is_registered_again_for_another_push(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.ask()
    await rig.pushed()
    before = (await rig.token()).token_id
    assert await rig.ask() is S.REGISTERED
    assert (await rig.token()).token_id == before
    assert await rig.verify() is S.ACTIVE
    assert len(await tokens_at_router(rig)) == 1


async def test_a_wrong_code_is_refused_and_the_right_one_still_works(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.ask()
    push = await rig.pushed()
    with pytest.raises(BadNotification, match="cannot be decrypted"):
        await rig.ntf.verify_token(push.nonce, push.box[:-1] + bytes([push.box[-1] ^ 1]))
    device, rig.device = rig.device, a_device()
    await rig.ask()  # TRPL: the code of the first push is void
    with pytest.raises(RouterError, match="refused the code") as caught:
        await rig.ntf.verify_token(push.nonce, push.box)
    assert not caught.value.temporary
    token = await rig.token()
    assert (token.action, token.code) == (None, None)
    assert await rig.verify() is S.ACTIVE
    assert device != rig.device


async def test_what_needs_a_token_says_so(world: AgentWorld) -> None:
    rig = await world.rig()
    for ask in (
        rig.ntf.check_token(),
        rig.ntf.delete_token(),
        rig.ntf.verify_token(bytes(24), bytes(48)),
        rig.ntf.set_mode(INSTANT),
    ):
        with pytest.raises(Prohibited, match="register one first"):
            await ask
    assert await rig.ntf.set_mode(OFF) is None


async def test_a_token_that_the_router_does_not_serve(world: AgentWorld) -> None:
    rig = await world.rig()
    device = FcmDeviceToken("a-registration-token")
    with pytest.raises(RouterError, match="refused the device token") as caught:
        await rig.ntf.register_token(device, INSTANT, rig.world.address)
    assert not caught.value.temporary
    await rig.register()


async def test_another_device_token_takes_the_place_of_the_first(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    before, sub = await rig.token(), await rig.sub(conn_id)
    rig.device = a_device()
    assert await rig.ask() is S.REGISTERED
    assert await rig.verify() is S.ACTIVE
    after = await rig.token()
    assert (after.token_id, after.dh_secret) == (before.token_id, before.dh_secret)
    assert await rig.sub(conn_id) == sub
    await rig.notified(conn_id)


async def test_a_replacement_the_router_knows_nothing_of_is_a_new_token(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    before = await rig.token()
    await world.lose_ntf_data()
    rig.device = a_device()
    assert await rig.ask() is S.REGISTERED
    assert await rig.verify() is S.ACTIVE
    assert (await rig.token()).token_id != before.token_id
    await rig.until_active(1)
    await rig.notified(conn_id)


async def test_registration_goes_on_once_the_router_can_be_reached(world: AgentWorld) -> None:
    rig = await world.rig()
    await world.stop_ntf()
    with pytest.raises(RouterError) as caught:
        await rig.ask()
    assert caught.value.temporary
    info = await rig.ntf.token_info()
    assert info is not None
    assert info.status is S.NEW
    await world.start_ntf()
    assert await rig.verify() is S.ACTIVE


# Restarts at each pending action.


async def test_restart_while_it_is_to_be_registered(world: AgentWorld) -> None:
    rig = await world.rig()
    await world.stop_ntf()
    with pytest.raises(RouterError):
        await rig.ask()
    keys = (await rig.token()).auth_keys
    await rig.close()
    await world.start_ntf()
    await rig.open()
    assert await rig.verify() is S.ACTIVE
    assert (await rig.token()).auth_keys == keys


async def test_restart_while_it_waits_for_its_push(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.ask()
    await rig.restart()
    assert await rig.verify() is S.ACTIVE


async def test_restart_while_it_is_to_be_verified(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.ask()
    push = await rig.pushed()
    await world.stop_ntf()
    with pytest.raises(RouterError):
        await rig.ntf.verify_token(push.nonce, push.box)
    token = await rig.token()
    assert (token.status, token.action) == (S.CONFIRMED, TokenAction.VERIFY)
    await rig.close()
    await world.start_ntf()
    await rig.open()
    await rig.until_status(S.ACTIVE)


async def test_restart_of_an_active_token(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    await rig.close()
    rig.heard.clear()
    await rig.open(start=False)
    [conn_id] = await rig.connect(router)
    await rig.restart()
    await rig.until_subscribed([conn_id])
    await rig.notified(conn_id)


async def test_deletion_survives_a_restart(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    await world.stop_ntf()
    await rig.ntf.delete_token()
    assert await rig.ntf.token_info() is None
    await rig.restart()
    await rig.until_none([conn_id])
    assert (await rig.queue(conn_id)).notifier is None
    await world.start_ntf()
    await until_router_has(rig, 0)
    await until_all_deleted(rig)


async def test_a_token_is_deleted_at_once_where_the_router_runs(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.register()
    await rig.ntf.delete_token()
    assert rig.heard[-1] is None
    await until_router_has(rig, 0)
    await rig.register()  # and again
    assert len(await tokens_at_router(rig)) == 1


async def test_deleting_what_the_router_does_not_know_ends(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.register()
    await world.lose_ntf_data()
    await rig.ntf.delete_token()
    await until_all_deleted(rig)


# Modes.


async def test_modes(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register(PERIODIC)
    [conn_id] = await rig.connect(router)
    await rig.ntf.commands_stored()
    assert await rig.ntf.subscriptions() == []
    assert [cron for _, _, cron in await tokens_at_router(rig)] == [20]

    assert await rig.ntf.set_mode(INSTANT) is S.ACTIVE
    await rig.until_subscribed([conn_id])
    assert [cron for _, _, cron in await tokens_at_router(rig)] == [20], "a safety net"
    await rig.notified(conn_id)

    assert await rig.ntf.set_mode(PERIODIC) is S.ACTIVE
    await rig.until_none([conn_id])
    assert await rig.count_at_router() == 0
    assert (await rig.queue(conn_id)).notifier is None
    assert [cron for _, _, cron in await tokens_at_router(rig)] == [20]

    assert await rig.ntf.set_mode(INSTANT) is S.ACTIVE
    await rig.until_subscribed([conn_id])
    assert await rig.ntf.set_mode(OFF) is None
    assert await rig.ntf.token_info() is None
    await rig.until_none([conn_id])
    await until_router_has(rig, 0)

    assert await rig.ntf.set_mode(INSTANT) is S.REGISTERED  # the same device as before
    assert await rig.verify() is S.ACTIVE
    await rig.until_subscribed([conn_id])
    await rig.notified(conn_id)


@pytest.mark.parametrize("status", [S.INVALID, S.EXPIRED])
async def test_an_invalid_token_is_replaced_by_itself(world: AgentWorld, status: S) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    before = await rig.token()

    await world.stop_ntf()
    with sqlite3.connect(world.directory / "ntf" / "ntf.db") as database:
        database.execute("UPDATE tokens SET status = ?", (status.value,))
    database.close()
    await world.start_ntf()
    assert await rig.ntf.check_token() is status, "a young token is not replaced again and again"
    assert (await rig.token()).token_id == before.token_id
    rig.clock.ahead += rig.settings.replace_token_after
    assert await rig.ntf.check_token() is S.REGISTERED
    assert (await rig.token()).token_id != before.token_id
    assert await rig.verify() is S.ACTIVE
    await rig.until_subscribed([conn_id])
    await rig.notified(conn_id)


async def test_a_token_is_checked_from_time_to_time(world: AgentWorld) -> None:
    rig = await world.rig(settings=replace(SETTINGS, check_token_after=0.2))
    await rig.register()
    checked_at = (await rig.token()).checked_at

    async def is_checked() -> bool:
        return (await rig.token()).checked_at > checked_at

    rig.clock.ahead += 1.0
    await eventually(is_checked)


async def test_a_mode_set_while_the_router_is_away_holds_when_it_is_back(
    world: AgentWorld,
) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    await world.stop_ntf()
    with pytest.raises(RouterError):
        await rig.ntf.set_mode(PERIODIC)
    await rig.restart()
    await world.start_ntf()
    await rig.until_none([conn_id])

    async def is_set() -> bool:
        return [cron for _, _, cron in await tokens_at_router(rig)] == [20]

    await eventually(is_set)


async def test_registering_with_notifications_off_is_turning_them_off(world: AgentWorld) -> None:
    rig = await world.rig()
    await rig.register()
    await rig.ask(OFF)
    assert await rig.ntf.token_info() is None


# Statuses.


@pytest.mark.parametrize("status", S)
async def test_every_status(world: AgentWorld, status: S) -> None:
    """The router says so; the app sees it, and registering again makes it good."""
    rig = await world.rig()
    await rig.register()
    await world.stop_ntf()
    with sqlite3.connect(world.directory / "ntf" / "ntf.db") as database:
        database.execute("UPDATE tokens SET status = ?", (status.value,))
    database.close()
    await world.start_ntf()
    assert await rig.ntf.check_token() is status
    info = await rig.ntf.token_info()
    assert info is not None
    assert info.status is status
    assert (await rig.token()).is_instant == (status is S.ACTIVE)
    world.ntf.apns.skip(rig.device)
    if await rig.ask() is not S.ACTIVE:
        assert await rig.verify() is S.ACTIVE


async def test_a_token_that_the_router_lost_comes_back_when_it_is_checked(
    world: AgentWorld,
) -> None:
    rig = await world.rig()
    await rig.register()
    before = await rig.token()
    await world.lose_ntf_data()
    assert await rig.ntf.check_token() is S.REGISTERED
    assert await rig.verify() is S.ACTIVE
    assert (await rig.token()).token_id != before.token_id


async def test_a_notification_router_that_moved(world: AgentWorld) -> None:
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    await world.stop_ntf()
    world.ntf.port = 0
    await world.start_ntf()
    before = await rig.sub(conn_id)
    assert before is not None
    assert await rig.ask() is S.ACTIVE
    await rig.ntf.commands_stored()
    sub = await rig.sub(conn_id)
    assert sub is not None
    assert sub.ntf_address == world.ntf.address
    assert sub.subscription_id == before.subscription_id
    await rig.until_active(1)
    await rig.notified(conn_id)
    rig.clock.ahead = 86_400.0
    await rig.ntf.wake_pending()

    async def is_checked() -> bool:
        return await rig.states() == [SubscriptionState.ACTIVE]

    await eventually(is_checked)


@asynccontextmanager
async def another_ntf(world: AgentWorld) -> AsyncIterator[tuple[NtfRouter, ServerAddress]]:
    providers: dict[PushProvider, Provider] = {
        PushProvider.APNS_TEST: world.ntf.apns.new_provider()
    }
    url = f"sqlite:///{world.directory}/another-ntf.db"
    router = await NtfRouter.start(url, providers, world.ntf.settings)
    listener = Listener(NTF, identity("another NTF CA"), router)
    port = await listener.start("127.0.0.1", 0)
    fingerprint = identity("another NTF CA").fingerprint
    try:
        host = decode_host("127.0.0.1")
        yield router, ServerAddress(Scheme.NTF, (host,), str(port), fingerprint)
    finally:
        await listener.close()
        await router.close()


async def test_another_notification_router(world: AgentWorld) -> None:
    """The old one forgets the token, the new one gets it and all subscriptions."""
    router, rig = await world.smp(), await world.rig()
    await rig.register()
    conn_ids = await rig.connect(router, 3)
    await rig.until_subscribed(conn_ids)
    async with another_ntf(world) as (new, address):
        status = await rig.ntf.register_token(rig.device, INSTANT, address)
        assert status is S.REGISTERED
        assert await rig.verify() is S.ACTIVE
        await until_router_has(rig, 0)

        async def are_active() -> bool:
            [[count]] = await new.store.read(
                lambda tx: tx.query("SELECT COUNT(*) FROM subscriptions WHERE status = 'ACTIVE'")
            )
            return int(count) == len(conn_ids)

        await eventually(are_active)
        await rig.until_action(conn_ids, SubAction.NTF_CHECK)
        await rig.notified(conn_ids[0])
        await rig.close()


# The store.


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
async def test_secrets_at_rest(world: AgentWorld, passphrase: str | None) -> None:
    router = await world.smp()
    rig = await world.rig(passphrase=passphrase)
    await rig.register()
    [conn_id] = await rig.connect(router)
    await rig.until_subscribed([conn_id])
    token, queue = await rig.token(), await rig.queue(conn_id)
    await rig.restart()
    assert await rig.token() == token
    await rig.ntf.check_token()
    await rig.close()
    content = stored_bytes(rig.directory)
    assert queue.notifier is not None
    assert token.dh_secret is not None
    secrets = (
        token.auth_keys.private,
        token.dh_keys.private,
        token.dh_secret,
        rig.device.token,
        queue.notifier.auth_key,
    )
    for secret in secrets:
        assert (secret in content) == (passphrase is None)


async def test_two_processes_share_one_token(world: AgentWorld) -> None:
    """An extension verifies; what that stores, the app goes on with."""
    router, app = await world.smp(), await world.rig()
    await app.ask()
    [conn_id] = await app.connect(router)
    extension = world.new_rig(app.directory, device=app.device)
    await extension.open(start=False)
    assert await extension.verify() is S.ACTIVE
    await extension.close()
    await app.until_action([conn_id], SubAction.SMP_KEY)
    await app.ntf.wake_pending()
    await app.until_subscribed([conn_id])
