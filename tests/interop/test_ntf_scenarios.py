"""The scenarios that the reference tests, one test each, on real sockets.

Each runs with both kinds of store, and with three processes that are one router; beside our
messaging router and a simulated APNs.
"""

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.sim.providers.script import ScriptRule
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.errors import HandshakeFailed
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import CheckMessagesPush, PNMessageData, VerificationPush
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from heliograph.wire.versions import SMP_DELETED_EVENT, SMP_SERVICE_CERTS, VersionRange
from tests.ntf.support import AUTH, OK, SETTINGS, NtfWorld, Phone, a_device, ask_many
from tests.smp.support import create, create_notified, keys
from tests.waiting import until

ACTIVE = SubscriptionState.ACTIVE


# Registration.


async def test_register_and_verify_a_token(world: NtfWorld) -> None:
    phone = await world.phone()
    answer = await phone.tnew()
    assert len(answer.token_id) == 24
    code = await phone.code()
    assert len(code) == 32
    await phone.until_status(TokenStatus.CONFIRMED)
    assert await phone.tvfy(code) == OK
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_repeat_a_registration_with_the_same_keys(world: NtfWorld) -> None:
    phone = await world.phone()
    first = await phone.tnew()
    code = await phone.code()
    assert await phone.tnew() == first
    assert await phone.code() == code
    assert await phone.tvfy(code) == OK
    assert await phone.tnew() == first
    assert await phone.code() == code
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_a_second_registration_with_other_keys_deletes_the_first_when_verified(
    world: NtfWorld,
) -> None:
    first = await world.registered()
    queue = await world.queue()
    subscription = await first.subscribe(queue)
    second = await world.phone(first.device)
    assert (await second.tnew()).token_id != first.token_id
    assert await first.tchk() is TokenStatus.ACTIVE
    assert await second.tvfy(await second.code()) == OK
    assert await first.ask(ntf.TCHK(), first.token_id) == AUTH
    assert await first.schk(subscription) == AUTH
    # The queue is free for the new registration.
    await second.subscribe(queue)
    await world.send(queue)
    await second.notified_of(queue)


async def test_verify_after_a_restart(world: NtfWorld) -> None:
    phone = await world.phone()
    await phone.tnew()
    code = await phone.code()
    await world.restart_ntf(phone)
    assert await phone.tvfy(code) == OK
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_verify_again_after_a_restart(world: NtfWorld) -> None:
    phone = await world.phone()
    await phone.tnew()
    code = await phone.code()
    assert await phone.tvfy(code) == OK
    await world.restart_ntf(phone)
    assert await phone.tvfy(code) == OK
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_verify_again_when_the_first_answer_was_lost(world: NtfWorld) -> None:
    phone = await world.phone()
    await phone.tnew()
    code = await phone.code()
    lost = asyncio.create_task(phone.tvfy(code))
    await asyncio.sleep(0)
    await world.restart_ntf(phone)
    await asyncio.gather(lost, return_exceptions=True)
    assert await phone.tvfy(code) == OK
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_register_again_after_a_restart(world: NtfWorld) -> None:
    phone = await world.phone()
    first = await phone.tnew()
    await phone.code()
    await world.restart_ntf(phone)
    assert await phone.tnew() == first
    assert await phone.tvfy(await phone.code()) == OK


async def test_register_again_when_the_first_answer_was_lost(world: NtfWorld) -> None:
    phone = await world.phone()
    lost = asyncio.create_task(phone.tnew())
    await phone.world.apns.push(phone.device)
    await world.restart_ntf(phone)
    await asyncio.gather(lost, return_exceptions=True)
    assert isinstance(await phone.tnew(), ntf.IDTKN)
    assert await phone.tvfy(await phone.code()) == OK
    [[count]] = await world.read(lambda tx: tx.query("SELECT COUNT(*) FROM tokens"))
    assert count == 1


async def test_an_active_token_works_until_it_is_replaced(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    other = await world.phone(phone.device)
    await other.tnew()
    await world.apns.push(phone.device)
    await world.send(queue)
    await phone.notified_of(queue)
    assert await phone.tchk() is TokenStatus.ACTIVE


@pytest.mark.parametrize("restart", [False, True])
async def test_register_an_invalid_token_again(world: NtfWorld, restart: bool) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    world.apns.play(ScriptRule(status=410, reason="Unregistered", times=1))
    await world.send(queue)
    await phone.until_status(TokenStatus.INVALID_UNREGISTERED)
    if restart:
        await world.restart_ntf(phone)
        assert await phone.tchk() is TokenStatus.INVALID_UNREGISTERED
        await phone.until_state(subscription, ACTIVE)
    assert (await phone.schk(subscription)).state is ACTIVE
    await phone.tnew()
    assert await phone.tchk() in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED)
    assert await phone.tvfy(await phone.code()) == OK
    await world.send(queue)
    await phone.notified_of(queue)


async def test_another_fingerprint_is_not_our_router(world: NtfWorld) -> None:
    address = world.address
    wrong = ServerAddress(address.scheme, address.hosts, address.port, os.urandom(32))
    with pytest.raises(HandshakeFailed):
        await Client.connect(wrong)


# Subscriptions.


async def test_subscribe_an_existing_queue(world: NtfWorld) -> None:
    queue = await world.queue()
    await world.send(queue)  # before anybody is subscribed
    phone = await world.registered()
    await phone.subscribe(queue)
    await phone.notified_of(queue)
    peer = await world.smp.connect()
    message = await queue.sub(peer)
    assert message == smp.SOK()
    assert queue.body(await peer.push(queue.rcv_id)) == b"hello"
    assert queue.notifier is not None
    # No more after the recipient takes the notifier away.
    await queue.ndel(peer)
    await phone.until_state(phone.subscriptions[0], SubscriptionState.DELETED)
    await world.send(queue)
    assert await phone.is_quiet()


async def test_a_push_names_its_message(world: NtfWorld) -> None:
    queue, phone = await world.queue(), await world.registered()
    await phone.subscribe(queue)
    await world.send(queue)
    [reported] = await phone.notified()
    assert reported.queue.server == world.smp.address
    assert reported.queue.notifier_id == queue.notifier_id
    assert queue.notifier is not None
    meta = queue.notifier.decrypt(smp.NMSG(reported.nonce, reported.meta))
    peer = await world.smp.connect()
    await queue.sub(peer)
    message = await peer.push(queue.rcv_id)
    assert message.msg_id == meta.msg_id
    assert queue.decrypt(message).timestamp == meta.timestamp


async def test_subscribe_new_queues_of_both_sides(world: NtfWorld) -> None:
    alice, bob = await world.registered(), await world.registered()
    hers, his = await create(world.sender, with_notifier=True), await world.queue()
    await alice.subscribe(hers)
    await bob.subscribe(his)
    for _ in range(3):
        await world.send(hers)
        await alice.notified_of(hers)
        await world.send(his)
        await bob.notified_of(his)
    assert await alice.is_quiet()
    assert await bob.is_quiet()


async def test_several_messaging_routers(world: NtfWorld) -> None:
    phone = await world.registered()
    routers = [world.smp, *[await world.another_smp() for _ in range(2)]]
    queues = []
    for router in routers:
        peer = await router.connect()
        queue = await create(peer, subscribe=False, with_notifier=True)
        await phone.subscribe(queue, router=router)
        queues.append((peer, queue))
    for peer, queue in queues:
        assert await queue.send(peer, b"hello") == smp.OK()
        await phone.notified_of(queue)
    servers = {item.queue.server for item in await _last_push(phone)}
    assert servers == {router.address for router in routers}


async def _last_push(phone: Phone) -> list[PNMessageData]:
    return phone.open(phone.world.apns.accepted(phone.device)[-1])


async def test_repeat_a_subscription(world: NtfWorld) -> None:
    phone, other = await world.phone(), await world.registered()
    queue = await world.queue()
    await phone.tnew()
    assert await phone.snew(queue) == AUTH  # until it is verified
    assert await phone.tvfy(await phone.code()) == OK
    subscription = await phone.subscribe(queue)
    assert await phone.snew(queue) == ntf.IDSUB(subscription)
    assert await other.snew(queue) == AUTH
    assert queue.notifier is not None
    right, queue.notifier.auth = queue.notifier.auth, keys()
    assert await phone.snew(queue) == AUTH
    queue.notifier.auth = right
    assert await phone.snew(queue) == ntf.IDSUB(subscription)


async def test_change_the_mode(world: NtfWorld) -> None:
    """Instant, periodic, instant again, off, on."""
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)
    # Periodic: the client deletes its subscriptions and asks to be woken.
    assert await phone.ask(ntf.SDEL(), subscription) == OK
    assert await phone.ask(ntf.TCRN(20), phone.token_id) == OK
    await world.make_wake_ups_due()
    assert await world.apns.push(phone.device) == CheckMessagesPush()
    await world.send(queue)
    assert await phone.is_quiet()
    # Instant.
    assert await phone.ask(ntf.TCRN(0), phone.token_id) == OK
    await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)
    # Off.
    assert await phone.ask(ntf.TDEL(), phone.token_id) == OK
    await world.send(queue)
    assert await phone.is_quiet()
    # On.
    await phone.register()
    await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)
    assert await phone.is_quiet()


async def test_change_the_token(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    old, secret = phone.device, phone.secret
    world.apns.skip(old)
    old_code = await _code_of(world, phone)
    assert await phone.trpl(a_device()) == OK
    assert await phone.tchk() in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED)
    assert await phone.schk(subscription) == AUTH  # until the new device is verified
    assert await phone.snew(queue) == AUTH
    assert await phone.tvfy(old_code) == AUTH
    assert phone.secret == secret
    assert await phone.tvfy(await phone.code()) == OK
    assert (await phone.schk(subscription)).state is ACTIVE
    await world.send(queue)
    await phone.notified_of(queue)
    assert await world.apns.is_quiet(old)


async def _code_of(world: NtfWorld, phone: Phone) -> bytes:
    [[code]] = await world.read(
        lambda tx: tx.query("SELECT code FROM tokens WHERE token_id = ?", (phone.token_id,))
    )
    return bytes(code)


async def test_what_comes_between_the_change_and_the_code_is_not_lost(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    await phone.trpl(a_device())
    await world.send(queue)
    code = await phone.code()
    assert await phone.is_quiet()
    assert await phone.tvfy(code) == OK
    await phone.notified_of(queue)


async def test_change_to_a_device_that_another_registration_holds(world: NtfWorld) -> None:
    phone, other = await world.registered(), await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    world.apns.skip(other.device)
    assert await phone.trpl(other.device) == OK
    assert await other.tchk() is TokenStatus.ACTIVE
    assert await phone.tvfy(await phone.code()) == OK
    assert await other.ask(ntf.TCHK(), other.token_id) == AUTH
    await world.send(queue)
    await phone.notified_of(queue)


async def test_save_and_restore(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)
    await world.restart_ntf(phone)
    assert await phone.tchk() is TokenStatus.ACTIVE
    await phone.until_state(subscription, ACTIVE)
    await world.send(queue)
    await phone.notified_of(queue)
    await world.stop_ntf()
    await world.send(queue)
    assert await phone.is_quiet()
    await world.start_ntf()
    await phone.notified_of(queue)  # what came while it was away


async def test_save_and_restore_both_routers(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    await world.stop_ntf()
    await world.send(queue)
    await world.restart_smp()
    await world.start_ntf()
    await phone.notified_of(queue)


async def test_resume_after_the_messaging_router_was_restarted(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    await world.smp.stop()
    await phone.until_state(subscription, SubscriptionState.INACTIVE)
    await world.smp.start()
    world.sender = await world.smp.connect()
    await phone.until_state(subscription, ACTIVE)
    await world.send(queue)
    await phone.notified_of(queue)


async def test_resume_in_batches(world: NtfWorld) -> None:
    phone = await world.registered()
    queues = await world.queues(30)
    answers = [await phone.snew(queue) for queue in queues]
    subscriptions = [answer.subscription_id for answer in answers]
    for subscription in subscriptions:
        await phone.until_state(subscription, ACTIVE)
    await world.restart_smp()
    for subscription in subscriptions:
        await phone.until_state(subscription, ACTIVE)
    for queue in queues:
        await world.send(queue)
    await phone.notified_of(queues[-1])


async def test_subscribe_while_the_messaging_router_is_away(world: NtfWorld) -> None:
    phone = await world.registered()
    first, second = await world.queues(2)
    await phone.subscribe(first)
    await world.smp.stop()
    answer = await phone.snew(second)
    assert isinstance(answer, ntf.IDSUB)
    status = await phone.schk(answer.subscription_id)
    assert status.state is SubscriptionState.PENDING
    await world.smp.start()
    world.sender = await world.smp.connect()
    await phone.until_state(answer.subscription_id, ACTIVE)
    await world.send(first, second)
    await phone.notified_of(first, second)


async def test_switch_to_a_new_queue(world: NtfWorld) -> None:
    phone = await world.registered()
    old, new = await world.queues(2)
    old_subscription = await phone.subscribe(old)
    await world.send(old)
    await phone.notified_of(old)
    await phone.subscribe(new)
    assert await old.delete(world.sender) == smp.OK()
    await phone.until_state(old_subscription, SubscriptionState.DELETED)
    await world.send(new)
    await phone.notified_of(new)
    assert await phone.is_quiet()


async def test_a_subscription_that_another_took_over_stays_ended(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    other = await world.smp.connect()
    assert await queue.nsub(other) == smp.SOK()
    await phone.until_state(subscription, SubscriptionState.END)
    assert await phone.snew(queue) == ntf.IDSUB(subscription)
    assert (await phone.schk(subscription)).state is SubscriptionState.END
    await world.restart_ntf(phone)
    await asyncio.sleep(0.2)
    assert (await phone.schk(subscription)).state is SubscriptionState.END
    # Deleted and made again, it is ours.
    assert await phone.ask(ntf.SDEL(), subscription) == OK
    assert await phone.schk(subscription) == AUTH
    again = await phone.subscribe(queue)
    assert again != subscription
    assert isinstance(await other.push(queue.notifier_id), smp.END)
    await world.send(queue)
    await phone.notified_of(queue)


async def test_the_old_token_keeps_working_beside_a_new_one(world: NtfWorld) -> None:
    old, new = await world.registered(), await world.registered()
    first, second = await world.queues(2)
    await old.subscribe(first)
    await new.subscribe(second)
    await world.send(first, second)
    await old.notified_of(first)
    await new.notified_of(second)
    await world.restart_ntf(old, new)
    await world.send(first, second)
    await old.notified_of(first)
    await new.notified_of(second)


async def test_move_to_another_notification_router(world: NtfWorld) -> None:
    """The new one takes the queue over; the old one gets END."""
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    directory = world.directory / "other"
    directory.mkdir()
    other = NtfWorld(f"sqlite:///{directory}/ntf.db", directory, beside=world)
    await other.start_ntf()
    try:
        moved = await other.phone(phone.device)
        world.apns.skip(phone.device)
        await moved.register()
        await moved.subscribe(queue)
        await phone.until_state(subscription, SubscriptionState.END)
        await world.send(queue)
        await moved.notified_of(queue)
        assert await moved.is_quiet()
    finally:
        await other.stop_ntf()


async def test_delete_a_token_with_its_subscriptions(world: NtfWorld) -> None:
    phone = await world.registered()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    requests = [
        (ntf.TDEL(), phone.token_id),
        (ntf.TDEL(), phone.token_id),
        (ntf.TCHK(), phone.token_id),
        (ntf.SCHK(), subscription),
        (ntf.SDEL(), subscription),
    ]
    answers = await ask_many(
        phone.client, [_request(phone, command, entity) for command, entity in requests]
    )
    assert answers == [OK, AUTH, AUTH, AUTH, AUTH]
    await world.send(queue)
    assert await phone.is_quiet()


def _request(phone: Phone, command: Any, entity_id: bytes) -> ClientRequest[Any]:
    return ClientRequest(command, entity_id, phone.keys.private)


# Services.


WITH_SERVICE = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, use_service=True))


async def test_subscribe_and_resume_as_a_service(world: NtfWorld) -> None:
    world.settings = WITH_SERVICE
    await world.restart_ntf()
    phone = await world.registered()
    queues = await world.queues(5)
    for queue in queues:
        await phone.subscribe(queue)
    [service] = world.smp.router.services.values()
    assert service.count == 5
    before = world.smp.router.observer.counters.notifier_subscribed
    await world.restart_ntf(phone)
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    assert world.smp.router.observer.counters.notifier_subscribed == before  # one NSUBS, no NSUB
    await world.restart_smp()
    for subscription in phone.subscriptions:
        await phone.until_state(subscription, ACTIVE)
    assert world.smp.router.observer.counters.notifier_subscribed == 0
    assert world.counted("drift_repaired") == 0
    await world.send(*queues)
    await phone.notified_of(*queues)


@pytest.mark.parametrize("back", [False, True])
async def test_migrate_to_service_subscriptions(world: NtfWorld, back: bool) -> None:
    phone = await world.registered()
    queues = await world.queues(3)
    for queue in queues:
        await phone.subscribe(queue)
    back_again = [SETTINGS, WITH_SERVICE] if back else []
    for settings in (WITH_SERVICE, WITH_SERVICE, *back_again):
        world.settings = settings
        await world.restart_ntf(phone)
        for subscription in phone.subscriptions:
            await phone.until_state(subscription, ACTIVE)
        counts = sorted(service.count for service in world.smp.router.services.values())
        assert counts[-1:] == [3 if settings is WITH_SERVICE else 0]
        await world.send(*queues)
        await phone.notified_of(*queues)
        world.apns.skip(phone.device)
    assert world.counted("drift_repaired") == 0


@pytest.mark.parametrize("asks", [(False, True, True), (True, False, True)])
async def test_a_messaging_router_that_changes_its_mind_about_services(
    small_world: NtfWorld, asks: tuple[bool, ...]
) -> None:
    """Without a request for a certificate, every queue is subscribed to by itself."""
    world = small_world
    world.settings = WITH_SERVICE
    await world.restart_ntf()
    phone = await world.registered()
    queues = await world.queues(3)
    for number, asks_for_certificates in enumerate(asks):
        world.smp.asks_for_certificates = asks_for_certificates
        await world.restart_smp()
        if not number:
            for queue in queues:
                await phone.subscribe(queue)
        for subscription in phone.subscriptions:
            await phone.until_state(subscription, ACTIVE)
        expected = 3 if asks_for_certificates else 0
        services = world.smp.router.services
        await until(lambda: sum(item.count for item in services.values()) == expected)  # noqa: B023
        await world.send(*queues)
        await phone.notified_of(*queues)
        world.apns.skip(phone.device)


# Versions and keys.


@pytest.mark.parametrize("with_service", [False, True])
@pytest.mark.parametrize("version", range(6, 20))
async def test_messaging_routers_of_every_version(
    small_world: NtfWorld, version: int, with_service: bool
) -> None:
    world = small_world
    world.settings = WITH_SERVICE if with_service else SETTINGS
    await world.restart_ntf()
    world.smp.versions = VersionRange(6, version)
    await world.smp.restart()
    world.sender = await world.smp.connect(version)
    phone = await world.registered()
    queue = await create_notified(world.sender)
    subscription = await phone.subscribe(queue)
    is_service = with_service and version >= SMP_SERVICE_CERTS
    assert [item.count for item in world.smp.router.services.values()] == [1] * is_service
    await world.send(queue)
    await phone.notified_of(queue)
    world.apns.skip(phone.device)
    await world.smp.restart()
    world.sender = await world.smp.connect(version)
    await phone.until_state(subscription, ACTIVE)
    await world.send(queue)
    await phone.notified_of(queue)
    assert await queue.ndel(world.sender) == OK
    gone = SubscriptionState.DELETED if version >= SMP_DELETED_EVENT else SubscriptionState.END
    await phone.until_state(subscription, gone)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_every_version_and_key(world: NtfWorld, version: int, algorithm: Algorithm) -> None:
    client = await world.connect(version, use_alpn=version > 1)
    assert client.established.session.version == version
    phone = await world.phone(client=client, algorithm=algorithm)
    if version == 1 and algorithm is Algorithm.X25519:
        # Version 1 has no session key to authenticate with, so such a key can only sign nothing.
        key = generate_key_pair(Algorithm.ED25519)
        command = ntf.TNEW(phone.device, phone.keys.public, phone.dh_keys.public)
        assert await phone.ask(command, b"", key.private) == AUTH
        return
    await phone.register()
    queue = await world.queue()
    subscription = await phone.subscribe(queue)
    await world.send(queue)
    await phone.notified_of(queue)
    assert await phone.tchk() is TokenStatus.ACTIVE
    assert await phone.ask(ntf.TCRN(60), phone.token_id) == OK
    await world.make_wake_ups_due()
    assert await world.apns.push(phone.device) == CheckMessagesPush()
    world.apns.play(
        ScriptRule(token=phone.device.token.decode(), status=400, reason="BadDeviceToken")
    )
    await world.send(queue)
    invalid = TokenStatus.INVALID_BAD if version >= 3 else TokenStatus.INVALID
    await phone.until_status(invalid)
    assert await phone.ask(ntf.SDEL(), subscription) == OK
    world.apns.play()
    assert await phone.trpl(a_device()) == OK
    push = await world.apns.push(phone.device)
    assert isinstance(push, VerificationPush)
    assert await phone.ask(ntf.TDEL(), phone.token_id) == OK
    assert await phone.ask(ntf.TCHK(), phone.token_id) == AUTH
    await until(lambda: not world.in_flight)
