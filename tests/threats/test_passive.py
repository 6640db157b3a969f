"""Someone who sees the traffic of one user, or of a set of senders and recipients."""

import asyncio
from dataclasses import replace
from pathlib import Path

from heliograph.transport.client import Client
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf, decode_host
from tests.ntf.support import NtfWorld, Phone
from tests.smp.support import with_settings
from tests.threats.support import Heard, a_tap, mentions, subscribed_by_way_of
from tests.waiting import until


async def phone_behind(world: NtfWorld, address: ServerAddress) -> Phone:
    client = await Client.connect(address)
    world.clients.append(client)
    return await world.registered(client=client)


async def test_sees_that_push_notifications_are_used(small_world: NtfWorld) -> None:
    async with a_tap(small_world.address) as (address, heard):
        await phone_behind(small_world, address)
        assert b"ntf/1" in heard.sent  # offered in the clear, as every TLS client does


async def test_does_not_see_which_routers_are_subscribed(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    """Neither in what passes nor in how much: a subscription is a block, whatever is in it."""
    world = small_world
    other = await world.another_smp()
    volumes = []
    for router, host in ((world.smp, "127.0.0.1"), (other, "localhost")):
        source = replace(router.address, hosts=(decode_host(host),))
        async with a_tap(world.address) as (address, heard):
            phone = await phone_behind(world, address)
            queue = await world.queue()
            assert queue.notifier is not None
            await phone.ask(ntf.PING())
            before = heard.volume
            snew = ntf.SNEW(
                phone.token_id,
                SMPQueueNtf(source, queue.notifier_id),
                queue.notifier.auth.private,
            )
            assert isinstance(await phone.ask(snew), ntf.IDSUB)
            volumes.append(await answered(heard, before))
            secrets = (queue.notifier_id, router.address.fingerprint, source.hosts[0].text.encode())
            assert not mentions(heard.all, *secrets)
    assert volumes[0] == volumes[1]


async def test_sees_when_a_message_makes_a_push(small_world: NtfWorld) -> None:
    """An observer of both ends can match times: the protocols do not hide them."""
    world = small_world
    async with a_tap(world.smp.address) as (address, heard):
        await subscribed_by_way_of(world, address)
        quiet = heard.volume
        phone, queue = await subscribed_by_way_of(world, address)
        before = heard.volume
        assert before > quiet
        await world.send(queue)
        await phone.notified_of(queue)
        assert heard.since(before)[1] > 0


async def test_users_of_a_router_hide_among_each_other(small_world: NtfWorld) -> None:
    """What an interval brings leaves in one block: of how many queues, and whose, is not seen."""
    world = small_world
    world.smp.settings = with_settings(ntf_delivery_interval=0.3)
    await world.restart_smp()
    async with a_tap(world.smp.address) as (address, heard):
        users = [await subscribed_by_way_of(world, address) for _ in range(4)]
        volumes = []
        for reported in (users[:1], users):
            before = heard.volume
            # Together, so that they are of one interval.
            await world.sender.ask_many([queue.sending(b"hello") for _, queue in reported])
            for phone, queue in reported:
                await phone.notified_of(queue)
            await asyncio.sleep(1)  # the confirmation of the block follows it
            volumes.append(heard.since(before)[1])
        assert volumes[0] == volumes[1] > 16_384
        assert heard.connections == 1


async def answered(heard: Heard, before: tuple[int, int]) -> tuple[int, int]:
    """What has passed since, once an answer has."""
    await until(lambda: heard.since(before)[1])
    return heard.since(before)
