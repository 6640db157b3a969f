"""Notifications around the first NSUB, also at a router that keeps none without a subscriber."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.sim.pong import PongRouter
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.requests import Request
from tests.ntf.support import NtfWorld, Phone
from tests.smp.support import identity, keys
from tests.waiting import until


class ForgetfulRouter(PongRouter):
    """Sends a notification to the subscriber of its queue, and drops it if there is none."""

    def __init__(self) -> None:
        self.subscribers: dict[bytes, ServerConnection] = {}
        self.notify_at_once = False

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        for request in requests:
            is_nsub = isinstance(request.command, smp.NSUB)
            answer = smp.SOK() if is_nsub else smp.PONG()
            connection.answer([Answer(request.corr_id, request.entity_id, answer)])
            if is_nsub:
                self.subscribers[request.entity_id] = connection
                if self.notify_at_once:
                    self.notify(request.entity_id)

    def notify(self, notifier_id: bytes) -> bool:
        """Return whether anybody was subscribed."""
        connection = self.subscribers.get(notifier_id)
        if connection is None:
            return False
        message = smp.NMSG(os.urandom(24), os.urandom(144))
        connection.push([Answer(b"", notifier_id, message)])
        return True


@pytest.fixture
async def forgetful() -> AsyncIterator[tuple[ForgetfulRouter, ServerAddress]]:
    router = ForgetfulRouter()
    listener = Listener(SMP, identity("forgetful"), router)
    port = await listener.start("127.0.0.1", 0)
    host = decode_host("127.0.0.1")
    fingerprint = identity("forgetful").fingerprint
    yield router, ServerAddress(Scheme.SMP, (host,), str(port), fingerprint)
    await listener.close()


async def snew(phone: Phone, address: ServerAddress, notifier_id: bytes) -> None:
    command = ntf.SNEW(phone.token_id, SMPQueueNtf(address, notifier_id), keys().private)
    assert isinstance(await phone.ask(command), ntf.IDSUB)


async def notified_of(phone: Phone, notifier_id: bytes) -> None:
    while notifier_id not in {item.queue.notifier_id for item in await phone.notified()}:
        pass


async def test_a_notification_that_follows_the_first_nsub_is_pushed(
    small_world: NtfWorld, forgetful: tuple[ForgetfulRouter, ServerAddress]
) -> None:
    """It may arrive before the answer to NSUB was stored, and in the same block."""
    router, address = forgetful
    router.notify_at_once = True
    phone = await small_world.registered()
    for _ in range(20):
        notifier_id = os.urandom(24)
        await snew(phone, address, notifier_id)
        await notified_of(phone, notifier_id)


async def test_one_before_nsub_is_lost_there_and_later_ones_are_not(
    small_world: NtfWorld, forgetful: tuple[ForgetfulRouter, ServerAddress]
) -> None:
    router, address = forgetful
    phone = await small_world.registered()
    notifier_id = os.urandom(24)
    assert not router.notify(notifier_id)  # after NKEY, before SNEW
    await snew(phone, address, notifier_id)
    await until(lambda: notifier_id in router.subscribers)
    assert await phone.is_quiet()
    assert router.notify(notifier_id)
    await notified_of(phone, notifier_id)
    assert len(small_world.apns.accepted(phone.device)) == 2  # verification, and this


async def test_one_between_nkey_and_the_first_nsub_is_pushed_if_the_router_keeps_it(
    small_world: NtfWorld,
) -> None:
    phone = await small_world.registered()
    for _ in range(5):
        queue = await small_world.queue()
        await small_world.send(queue)
        await phone.snew(queue)
        await phone.notified_of(queue)


async def test_events_that_concern_no_subscription_are_counted(
    small_world: NtfWorld, forgetful: tuple[ForgetfulRouter, ServerAddress]
) -> None:
    router, address = forgetful
    phone = await small_world.registered()
    notifier_id, stranger = os.urandom(24), os.urandom(24)
    await snew(phone, address, notifier_id)
    await until(lambda: notifier_id in router.subscribers)
    router.subscribers[stranger] = router.subscribers[notifier_id]
    for _ in range(3):
        router.notify(stranger)
    await until(lambda: small_world.router.stats.worthless_events == {"other": 3})


async def test_notifications_of_a_dead_token_are_not_the_routers_fault(
    small_world: NtfWorld, forgetful: tuple[ForgetfulRouter, ServerAddress]
) -> None:
    router, address = forgetful
    phone = await small_world.registered()
    notifier_id = os.urandom(24)
    await snew(phone, address, notifier_id)
    await until(lambda: notifier_id in router.subscribers)
    await small_world.router.store.database.write(
        lambda tx: tx.execute("UPDATE tokens SET status = ?", ("INVALID",))
    )
    for _ in range(3):
        router.notify(notifier_id)
    await until(lambda: small_world.router.stats.counters.ntf_received_auth == 3)
    assert small_world.router.stats.worthless_events == {}
