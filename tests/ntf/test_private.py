"""Clients name the hosts we connect to: what only we can reach is refused, unless allowed."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.net.public import is_public
from heliograph.ntf.router import NtfSettings
from heliograph.ntf.subscriber.subscriber import PRIVATE_ADDRESS_ERROR
from heliograph.transport.client import ClientConfig
from heliograph.wire import ntf
from heliograph.wire.addresses import decode_host
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState
from tests.ntf.support import SETTINGS, NtfWorld, a_world
from tests.waiting import until

ERR = NtfSubStatus(SubscriptionState.ERR, PRIVATE_ADDRESS_ERROR)


@pytest.fixture
def settings() -> NtfSettings:
    subscriber = replace(SETTINGS.subscriber, client=ClientConfig(allow=is_public))
    return replace(SETTINGS, subscriber=subscriber)


async def test_subscriptions_say_why_there_is_none(world: NtfWorld) -> None:
    phone = await world.registered()
    queues = await world.queues(2)
    before = len(world.smp.listener.connections)
    for queue in queues:  # the second comes while the first is waited for
        answer = await phone.snew(queue)
        assert isinstance(answer, ntf.IDSUB)
        await phone.until_state(answer.subscription_id, SubscriptionState.ERR)
        assert await phone.schk(answer.subscription_id) == ERR
    assert len(world.smp.listener.connections) == before


async def test_subscriptions_do_not_tell_which_internal_names_exist(
    small_world: NtfWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    phone = await small_world.registered()
    [queue] = await small_world.queues(1)
    for number, name in enumerate(("localhost", "nothing.invalid"), 1):
        answer = await phone.snew(
            queue, address=replace(small_world.smp.address, hosts=(decode_host(name),))
        )
        await until(lambda: caplog.text.count("cannot be reached") == number)  # noqa: B023
        assert (await phone.schk(answer.subscription_id)).state is SubscriptionState.PENDING


async def test_they_begin_when_it_is_allowed(
    sqlite_url: str, tmp_path: Path, settings: NtfSettings
) -> None:
    async with a_world(sqlite_url, tmp_path, settings) as world:
        phone = await world.registered()
        queue = await world.queue()
        answer = await phone.snew(queue)
        await phone.until_state(answer.subscription_id, SubscriptionState.ERR)
        world.settings = SETTINGS
        await world.restart_ntf(phone)
        await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)
        world.apns.skip(phone.device)
        await world.send(queue)
        await phone.notified_of(queue)
