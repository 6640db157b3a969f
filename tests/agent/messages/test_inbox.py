"""What becomes of a message: every status of a queue with every content, and much else."""

import itertools
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from heliograph.agent.connections import queues
from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.connections.queues import NewRcvQueue
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.envelope import (
    AddQueue,
    Body,
    Confirmation,
    Content,
    EndQueue,
    Hello,
    encode_content,
    kind_of,
    seal,
)
from heliograph.agent.messages.inbox import Arrival, Change, Receipt, receive, send_to
from heliograph.agent.records import OutgoingMessage, RcvQueue, RcvStatus, SndQueue, SndStatus
from heliograph.agent.store import AgentStore
from heliograph.crypto.boxes import box_padded
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.wire.addresses import decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.smp.messages import RCV_MESSAGE_SIZE, RcvMessage, RcvQuota, encode_rcv_message
from tests.keys import fixed_key_pair

ADDRESS = decode_address("smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@one.example")
OTHER = decode_address("smp://BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=@two.example")
SENDER_KEY = fixed_key_pair(Algorithm.ED25519, "sender").public
MESSAGE, WORK, READY, QUEUES = Change
ROOM = 100


def x25519() -> KeyPair:
    return generate_key_pair(Algorithm.X25519)


def an_invitation(snd_id: bytes = b"theirs", *, can_secure: bool = True) -> Invitation:
    return Invitation(OTHER, snd_id, x25519().public, can_secure)


@dataclass
class InboxRig:
    """A store with one connection, and somebody who writes to it."""

    store: AgentStore
    secret: bytes = field(default_factory=lambda: os.urandom(32))
    e2e: KeyPair = field(default_factory=x25519)
    sender: KeyPair = field(default_factory=x25519)
    number: int = 0

    async def prepare(self, status: RcvStatus) -> None:
        vault = self.store.vault
        new = NewRcvQueue(ADDRESS, b"rcv", b"snd", b"key", self.secret, self.e2e.private, True)
        await self.store.write(lambda tx: queues.add_connection(tx, "c", 0))
        queue_id = await self.store.write(lambda tx: queues.add_rcv_queue(tx, vault, "c", new))
        if status is not RcvStatus.NEW:
            e2e = dh(self.e2e.public, self.sender.private)
            await self.store.write(
                lambda tx: queues.set_sender(tx, vault, queue_id, e2e, SENDER_KEY)
            )
            await self.store.write(lambda tx: queues.set_rcv_status(tx, queue_id, status))

    async def send_to(self, invitation: Invitation, status: SndStatus) -> None:
        vault = self.store.vault
        first = Confirmation()
        await self.store.write(
            lambda tx: send_to(tx, vault, "c", invitation, first, 0, is_current=True)
        )
        [queue] = await self.snd_queues()
        await self.store.write(lambda tx: queues.set_snd_status(tx, queue.queue_id, status))
        if status is not SndStatus.NEW:
            await self.store.write(lambda tx: messages.delete_bound(tx, queue.queue_id))

    async def receive(
        self,
        content: Content,
        *,
        key: bytes | None = None,
        number: int | None = None,
        room: int = ROOM,
        timestamp: int = 1000,
        public: bool = True,
    ) -> Receipt | None:
        self.number += 1
        data = seal(
            dh(self.e2e.public, self.sender.private),
            kind_of(content),
            number or self.number,
            encode_content(content),
            public=self.sender.public if public else None,
            sender_key=key,
        )
        return await self.deliver(RcvMessage(timestamp, MsgFlags(True), data), room=room)

    async def deliver(
        self, message: RcvMessage | RcvQuota, *, msg_id: bytes | None = None, room: int = ROOM
    ) -> Receipt | None:
        msg_id = msg_id or os.urandom(24)
        box = box_padded(self.secret, msg_id, encode_rcv_message(message), RCV_MESSAGE_SIZE)
        return await self.arrive(Arrival(ADDRESS.fingerprint, b"rcv", msg_id, box), room)

    async def arrive(self, arrival: Arrival, room: int = ROOM) -> Receipt | None:
        vault = self.store.vault
        return await self.store.write(lambda tx: receive(tx, vault, arrival, 0, room))

    async def rcv_queues(self) -> list[RcvQueue]:
        vault = self.store.vault
        return await self.store.read(lambda tx: queues.rcv_queues_of(tx, vault, ["c"]))

    async def snd_queues(self) -> list[SndQueue]:
        vault = self.store.vault
        return await self.store.read(lambda tx: queues.snd_queues_of(tx, vault, "c"))

    async def outgoing(self) -> list[OutgoingMessage]:
        vault = self.store.vault
        return await self.store.read(lambda tx: messages.outgoing_of(tx, vault, "c"))

    async def bodies(self) -> list[bytes]:
        vault = self.store.vault
        found = await self.store.read(lambda tx: messages.unhandled(tx, vault, 0, 100, "c"))
        return [message.body for message in found]

    async def remembered(self) -> int:
        [[count]] = await self.store.read(lambda tx: tx.query("SELECT COUNT(*) FROM received"))
        return int(count)


@pytest.fixture
async def rig(place: Path | str) -> AsyncIterator[InboxRig]:
    store = await AgentStore.open(place)
    yield InboxRig(store)
    await store.close()


CONTENTS = (
    Confirmation(),
    Confirmation(reply=an_invitation()),
    Hello(b"theirs"),
    Body(b"hello"),
    AddQueue(an_invitation(b"added")),
    EndQueue(),
)
LIVE = (RcvStatus.SECURING, RcvStatus.ACTIVE)


@pytest.mark.parametrize(
    ("status", "content"),
    list(itertools.product(RcvStatus, CONTENTS)),
    ids=lambda value: getattr(value, "value", type(value).__name__),
)
async def test_every_status_with_every_content(
    rig: InboxRig, status: RcvStatus, content: Content
) -> None:
    await rig.prepare(status)
    receipt = await rig.receive(content)
    assert receipt is not None
    [queue] = await rig.rcv_queues()
    snd, outgoing = await rig.snd_queues(), await rig.outgoing()
    if status in (RcvStatus.DELETING, RcvStatus.GONE):
        assert (receipt.acknowledge, await rig.remembered()) == (False, 0)
        assert (queue.status, snd, outgoing) == (status, [], [])
        return
    assert (receipt.acknowledge, await rig.remembered()) == (True, 1)
    assert queue.last_broker_ts == 1000
    match content:
        case Confirmation() if status is RcvStatus.NEW:
            assert receipt.changes == {WORK}
            assert queue.status is RcvStatus.ACTIVE
            assert len(snd) == len(outgoing) == (content.reply is not None)
        case Body() if status in LIVE:
            assert receipt.changes == {MESSAGE}
            assert await rig.bodies() == [b"hello"]
        case AddQueue() if status in LIVE:
            assert receipt.changes == {WORK}
            assert [item.is_current for item in snd] == [False]
            assert [item.queue_id for item in outgoing] == [snd[0].queue_id]
        case _:
            assert receipt.changes == set()
            assert (queue.status, snd, outgoing) == (status, [], [])
            assert await rig.bodies() == []


@pytest.mark.parametrize("status", SndStatus)
@pytest.mark.parametrize("can_secure", [True, False])
@pytest.mark.parametrize("by_hello", [True, False])
async def test_our_key_is_set(
    rig: InboxRig, status: SndStatus, can_secure: bool, by_hello: bool
) -> None:
    """Which only matters to a queue that waits for it."""
    await rig.prepare(RcvStatus.ACTIVE if by_hello else RcvStatus.NEW)
    await rig.send_to(an_invitation(can_secure=can_secure), status)
    secured = b"theirs"
    content: Content = Hello(secured) if by_hello else Confirmation(secured=secured)
    receipt = await rig.receive(content)
    assert receipt is not None
    [queue] = await rig.snd_queues()
    waits = status in (SndStatus.NEW, SndStatus.CONFIRMED) and not can_secure
    assert queue.status is (SndStatus.ACTIVE if waits else status)
    assert (READY in receipt.changes) == waits
    # Its first message has arrived, whether we know it or not.
    left = status is SndStatus.NEW and not waits
    assert len(await rig.outgoing()) == left


async def test_another_queue_is_secured(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    await rig.send_to(an_invitation(can_secure=False), SndStatus.CONFIRMED)
    await rig.receive(Hello(b"not theirs"))
    [queue] = await rig.snd_queues()
    assert queue.status is SndStatus.CONFIRMED


@pytest.mark.parametrize("reply", [None, an_invitation()])
async def test_a_sender_that_cannot_secure_sends_its_key(
    rig: InboxRig, reply: Invitation | None
) -> None:
    await rig.prepare(RcvStatus.NEW)
    await rig.receive(Confirmation(reply=reply), key=SENDER_KEY)
    [queue] = await rig.rcv_queues()
    assert (queue.status, queue.sender_key) == (RcvStatus.SECURING, SENDER_KEY)
    [item] = await rig.outgoing()
    secured = Hello(b"snd") if reply is None else Confirmation(secured=b"snd")
    assert (item.kind, item.body) == (kind_of(secured).value, encode_content(secured))


async def test_only_the_first_confirmation_counts(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.NEW)
    await rig.receive(Confirmation(reply=an_invitation()))
    before = await rig.rcv_queues()
    await rig.receive(Confirmation(reply=an_invitation(b"another")), key=SENDER_KEY)
    assert await rig.rcv_queues() == before
    assert len(await rig.snd_queues()) == 1


async def test_a_stranger_cannot_use_up_numbers(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.NEW)
    await rig.receive(Body(b"guess"), number=1)
    receipt = await rig.receive(Confirmation(), number=1)
    assert receipt is not None
    assert receipt.changes == {WORK}


async def test_a_repeated_message_is_acknowledged_and_no_more(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    await rig.receive(Body(b"once"), number=5)
    receipt = await rig.receive(Body(b"once"), number=5)
    assert receipt is not None
    assert (receipt.acknowledge, receipt.changes) == (True, frozenset())
    assert await rig.bodies() == [b"once"]


async def test_a_repeated_delivery_is_acknowledged_and_no_more(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    quota = RcvQuota(5)
    for _ in range(2):
        receipt = await rig.deliver(quota, msg_id=bytes(24))
        assert receipt is not None
        assert receipt.acknowledge
    assert await rig.remembered() == 1


async def test_what_cannot_be_opened_is_acknowledged(rig: InboxRig) -> None:
    """Or it would block the queue for ever."""
    await rig.prepare(RcvStatus.ACTIVE)
    for arrival in (
        Arrival(ADDRESS.fingerprint, b"rcv", os.urandom(24), b"not even a box"),
        Arrival(ADDRESS.fingerprint, b"rcv", b"short", b""),
    ):
        receipt = await rig.arrive(arrival)
        assert receipt is not None
        assert (receipt.acknowledge, receipt.changes) == (True, frozenset())
    receipt = await rig.deliver(RcvMessage(7, MsgFlags(False), b"not for an agent"))
    assert receipt is not None
    assert receipt.acknowledge
    assert await rig.bodies() == []


async def test_a_message_of_no_queue_of_ours(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    assert await rig.arrive(Arrival(OTHER.fingerprint, b"rcv", bytes(24), b"")) is None
    assert await rig.arrive(Arrival(ADDRESS.fingerprint, b"other", bytes(24), b"")) is None


async def test_a_message_without_room_stays_at_the_router(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    await rig.receive(Body(b"1"), room=1)
    receipt = await rig.receive(Body(b"2"), number=2, room=1)
    assert receipt is not None
    assert not receipt.acknowledge
    assert await rig.remembered() == 1
    await rig.receive(Body(b"2"), number=2, room=2)
    assert await rig.bodies() == [b"1", b"2"]


async def test_the_newest_time_counts(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    for timestamp in (5, 9, 7):
        await rig.receive(Body(b""), timestamp=timestamp)
    [queue] = await rig.rcv_queues()
    assert queue.last_broker_ts == 9


async def test_a_queue_is_added_once(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    invitation = an_invitation(b"added")
    await rig.receive(AddQueue(invitation))
    receipt = await rig.receive(AddQueue(invitation))
    assert receipt is not None
    assert receipt.changes == set()
    assert len(await rig.snd_queues()) == 1


async def test_a_queue_with_a_useless_key_is_not_added(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    weak = x25519().public[:12] + bytes(32)
    await rig.receive(AddQueue(Invitation(OTHER, b"added", weak)))
    assert (await rig.snd_queues(), await rig.outgoing()) == ([], [])


async def test_a_confirmation_with_a_useless_key_does_not_count(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.NEW)
    weak = x25519().public[:12] + bytes(32)
    await rig.receive(Confirmation(reply=Invitation(OTHER, b"reply", weak)))
    [queue] = await rig.rcv_queues()
    assert queue.status is RcvStatus.NEW
    await rig.receive(Confirmation(reply=an_invitation()))
    assert len(await rig.snd_queues()) == 1


async def test_a_queue_ends_only_if_another_replaces_it(rig: InboxRig) -> None:
    await rig.prepare(RcvStatus.ACTIVE)
    [queue] = await rig.rcv_queues()
    vault = rig.store.vault
    new = NewRcvQueue(OTHER, b"rcv2", b"snd2", b"key", b"", b"", True)
    await rig.store.write(lambda tx: queues.add_rcv_queue(tx, vault, "c", new, queue.queue_id))
    receipt = await rig.receive(EndQueue())
    assert receipt is not None
    assert receipt.changes == {QUEUES}
    statuses = [item.status for item in await rig.rcv_queues()]
    assert statuses == [RcvStatus.DELETING, RcvStatus.NEW]
