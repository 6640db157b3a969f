"""A notification router that wakes a phone from time to time, and subscribes to nothing for it."""

import time

from heliograph.push.provider import Delivery
from heliograph.wire import ntf
from heliograph.wire.ntf.push import CheckMessagesPush
from tests.ntf.support import OK, NtfWorld, Phone
from tests.threats.support import mentions, stored

BODY = b"of this message the router never hears anything at all"


async def periodic(world: NtfWorld) -> Phone:
    phone = await world.registered()
    assert await phone.ask(ntf.TCRN(20), phone.token_id) == OK
    return phone


async def test_learns_the_device_token(small_world: NtfWorld) -> None:
    phone = await periodic(small_world)
    assert phone.device.token in stored(small_world.directory, "ntf")


async def test_drops_periodic_notifications(small_world: NtfWorld) -> None:
    """A phone that is not woken sees the same status as one that is."""
    phone = await periodic(small_world)
    status = await phone.tchk()
    assert await phone.is_quiet()
    assert await phone.tchk() is status


async def test_spams_with_background_notifications(small_world: NtfWorld) -> None:
    phone = await periodic(small_world)
    provider = small_world.apns.new_provider()
    for _ in range(3):
        await provider.send(Delivery(phone.device, CheckMessagesPush(), int(time.time()) + 60))
        assert isinstance(await small_world.apns.push(phone.device), CheckMessagesPush)
    await provider.close()


async def test_learns_nothing_of_queues_and_routers(small_world: NtfWorld) -> None:
    world = small_world
    await periodic(world)
    queue = await world.queue()
    await world.send(queue)
    for table in ("subscriptions", "servers", "last_notifications", "pending_pushes"):
        assert await rows(world, table) == 0
    assert not world.router.subscribers
    secrets = (queue.notifier_id, queue.rcv_id, queue.snd_id, world.smp.address.fingerprint)
    assert not mentions(stored(world.directory, "ntf"), *secrets)


async def rows(world: NtfWorld, table: str) -> int:
    [[count]] = await world.read(lambda tx: tx.query(f"SELECT COUNT(*) FROM {table}"))
    return int(count)


async def test_learns_nothing_of_messages(small_world: NtfWorld) -> None:
    """With and without the flag: its store does not change by a byte."""
    world = small_world
    phone = await periodic(world)
    queue = await world.queue()
    before = stored(world.directory, "ntf")
    for notify in (True, False):
        assert await queue.send(world.sender, BODY, notify=notify) == OK
    assert await phone.is_quiet(0.3)
    assert stored(world.directory, "ntf") == before
    assert world.router.stats.counters.ntf_received == 0


async def test_has_nothing_to_show_and_nothing_to_forge_with(small_world: NtfWorld) -> None:
    """It knows no queue that a push could be about, and its push names none."""
    phone = await periodic(small_world)
    provider = small_world.apns.new_provider()
    await provider.send(Delivery(phone.device, CheckMessagesPush(), int(time.time()) + 60))
    await provider.close()
    await small_world.apns.push(phone.device)
    entry = small_world.apns.simulator.record.select(token=phone.device.token.decode())[-1]
    assert "alert" not in entry.body
    assert "message" not in entry.body.replace("checkMessages", "")
