"""A contact, who sends to a queue: whether its owner uses push notifications is not seen."""

from heliograph.transport.client import Client
from heliograph.wire import smp
from heliograph.wire.smp.fields import MsgFlags
from tests.ntf.support import NtfWorld
from tests.smp.support import AUTH, Queue, create
from tests.threats.support import a_tap


async def test_cannot_tell_who_uses_push_notifications(small_world: NtfWorld) -> None:
    """Same answers and same traffic, with and without; also while a notification is delivered."""
    world = small_world
    plain = await create(world.sender, subscribe=False)
    notified = await world.queue()
    phone = await world.registered()
    await phone.subscribe(notified)
    views = [await view_of(world, queue) for queue in (plain, notified)]
    assert views[0] == views[1]
    await phone.notified_of(notified)


async def view_of(world: NtfWorld, queue: Queue) -> list[object]:
    async with a_tap(world.smp.address) as (address, heard):
        sender = await Client.connect(address)
        seen: list[object] = []
        for body in (b"first", b"second" * 1000):
            answer = await sender.request(smp.SEND(MsgFlags(notification=True), body), queue.snd_id)
            seen += [answer, heard.volume]
        await sender.close()
    return seen


async def test_cannot_ask(small_world: NtfWorld) -> None:
    """The sender's ID and key answer no question about notifications."""
    queue = await small_world.queue()
    await queue.secure(small_world.sender)
    peer = await small_world.smp.connect()
    for command in (smp.NSUB(), smp.QUE(), smp.NDEL()):
        assert await peer.ask(command, queue.snd_id, queue.sender_key) == AUTH
