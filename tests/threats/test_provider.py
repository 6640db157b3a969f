"""A push provider, which sees every push and may drop it."""

import json

from tests.ntf.support import TOPIC, NtfWorld, Phone
from tests.smp.support import Queue, create_notified
from tests.threats.support import as_agent, mentions


async def subscribed(world: NtfWorld, count: int) -> tuple[Phone, list[Queue]]:
    phone, queues = await world.registered(), await world.queues(count)
    for queue in queues:
        await phone.subscribe(queue)
    return phone, queues


def bodies(world: NtfWorld, phone: Phone) -> list[str]:
    """Of pushes about messages."""
    entries = world.apns.simulator.record.select(token=phone.device.token.decode(), accepted=True)
    return [entry.body for entry in entries if "mutable-content" in entry.body]


async def test_learns_that_the_app_is_used(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    [entry] = small_world.apns.simulator.record.select(token=phone.device.token.decode())
    assert entry.headers["apns-topic"] == TOPIC


async def test_learns_how_many_pushes_a_device_gets(small_world: NtfWorld) -> None:
    phone, [queue] = await subscribed(small_world, 1)
    for _ in range(3):
        await small_world.send(queue)
        await phone.notified_of(queue)
    assert len(bodies(small_world, phone)) == 3


async def test_what_it_drops_is_in_the_next_push(small_world: NtfWorld) -> None:
    """As when a device was off: of the pushes meanwhile, it gets the last."""
    world = small_world
    phone, queues = await subscribed(world, 3)
    for queue in queues:
        await world.send(queue)
        last = await world.apns.push(phone.device)
    found = as_agent(phone, queues, last)
    assert len(found) == 3
    assert all(item.msg_id is not None for item in found)


async def test_does_not_learn_routers_or_queues(small_world: NtfWorld) -> None:
    world = small_world
    phone, [queue] = await subscribed(world, 1)
    await world.send(queue)
    await phone.notified_of(queue)
    [body] = bodies(world, phone)
    secrets = (queue.notifier_id, queue.rcv_id, queue.snd_id, world.smp.address.fingerprint)
    for text in (body, body.replace("\\/", "/")):
        assert not mentions(text.encode(), *secrets)
        assert "127.0.0.1" not in text
        assert world.smp.address.port not in json.loads(text)["notificationData"].values()


async def test_does_not_learn_how_many_queues(small_world: NtfWorld) -> None:
    """One queue of one router, or several of two: pushes are of one size."""
    world = small_world
    one, [alone] = await subscribed(world, 1)
    many, queues = await subscribed(world, 3)
    other = await world.another_smp()
    peer = await other.connect()
    far = await create_notified(peer)
    await many.subscribe(far, router=other)
    await world.send(alone)
    await one.notified_of(alone)
    await world.send(*queues)
    await many.notified_of(*queues)
    await far.send(peer, b"hello")
    await many.notified_of(far)
    assert len({len(body) for body in bodies(world, one) + bodies(world, many)}) == 1


async def test_does_not_learn_contents(small_world: NtfWorld) -> None:
    """Small or large, and whatever it says: a nonce and a box, of the same size."""
    world = small_world
    phone, [queue] = await subscribed(world, 1)
    for body in (b"hi", b"a picture of a zebra" * 500):
        await queue.send(world.sender, body)
        await phone.notified_of(queue)
    found = bodies(world, phone)
    assert len({len(text) for text in found}) == 1
    for text in found:
        assert "zebra" not in text
        data = json.loads(text)
        assert set(data) == {"aps", "notificationData"}
        assert set(data["notificationData"]) == {"nonce", "message"}
        assert "Encrypted message" in json.dumps(data["aps"])
