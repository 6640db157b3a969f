"""A planted world: real routers, simulated phones, and the time that the jobs need to have passed.

Everything is done by routers on real sockets. Weeks pass by moving into the past what happened so
far: the times of the events that the router recorded, and of its rows about owners. In the same way
the events of a round of traffic are spread over ten seconds.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from heliograph.actions.snapshots import write_snapshot
from heliograph.db.dialects import Transaction
from heliograph.journal.hashing import Hasher
from heliograph.ntf.actions.snapshots import snapshot_of as snapshot_of_ntf
from heliograph.smp.snapshots import snapshot_of as snapshot_of_smp
from heliograph.transport.client import Client
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.ntf.push import MessagePush, decode_push
from heliograph.wire.ntf.tokens import PushProvider, TokenStatus
from tests.actions.support import ROUTER
from tests.journal.recorder import KEY, Noted
from tests.ntf.actions.support import hashed
from tests.ntf.support import AT, OK, Apns, NtfWorld, Phone, SmpSide, a_device
from tests.pipeline.support import Event, Scribe, write_segment
from tests.ports import steady_port
from tests.smp.support import AT_ONCE, Peer, Queue, create_notified, identity
from tests.waiting import until

DAY = 86_400
ROUND = 10.0
"""Seconds, as long as routers count what they record no event of."""
AT_THE_SAME_TIME = 20
FAILING = PushProvider.APNS_PROD
Key = tuple[str, str]
"""A finding, and the hash of its subject."""
T = TypeVar("T")
R = TypeVar("R")


async def each(function: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Call a function for all items, some at the same time."""
    places = asyncio.Semaphore(AT_THE_SAME_TIME)

    async def one(item: T) -> R:
        async with places:
            return await function(item)

    return await asyncio.gather(*map(one, items))


class OtherSmp(SmpSide):
    """A messaging router with an identity of its own, and a client of it."""

    peer: Peer

    def __init__(self, name: str, directory: Path) -> None:
        directory.mkdir()
        super().__init__(f"sqlite:///{directory}/smp.db", AT_ONCE)
        self.identity = identity(name)

    async def listen(self, port: int = 0) -> None:
        self.listener = Listener(
            SMP, self.identity, self.router, limits=self.limits, request_client_certificate=True
        )
        port = await self.listener.start("127.0.0.1", port or steady_port())
        fingerprint = self.identity.fingerprint
        host = decode_host("127.0.0.1")
        self.address = ServerAddress(Scheme.SMP, (host,), str(port), fingerprint)


@dataclass(eq=False)
class Line:
    """A subscription of a phone to a queue of a messaging router."""

    phone: Phone
    queue: Queue
    smp: SmpSide
    sender: Peer
    subscription_id: bytes

    async def send(self) -> None:
        """Send a message, and receive it."""
        assert await self.queue.send(self.sender, b"hello") == OK
        message = await self.queue.get(self.sender)
        assert await self.queue.ack(self.sender, message) == OK


@dataclass
class Place:
    """Routers, providers and phones, and the journal of the notification router."""

    world: NtfWorld
    clients: list[Client] = field(default_factory=list)
    phones: dict[str, Phone] = field(default_factory=dict)
    failing: Apns = field(init=False)

    async def start(self) -> None:
        directory = self.world.directory
        self.failing = Apns(directory / "failing")
        await self.failing.start()
        self.world.providers[FAILING] = self.failing.new_provider()
        await self.world.start()
        self.foreign = await self._other("foreign")
        self.silent = await self._other("silent")
        self.clients = [await self.world.connect() for _ in range(AT_THE_SAME_TIME)]

    async def stop(self) -> None:
        await self.world.stop()
        await self.failing.close()

    async def _other(self, name: str) -> OtherSmp:
        smp = OtherSmp(name, self.world.directory / name)
        await smp.start()
        smp.peer = await smp.connect()
        self.world._others.append(smp)
        return smp

    async def new_phones(self, count: int, provider: PushProvider = AT) -> list[Phone]:
        apns = self.failing if provider is FAILING else self.world.apns

        async def new(number: int) -> Phone:
            client = self.clients[number % len(self.clients)]
            phone = await self.world.phone(a_device(provider), client=client)
            await phone.tnew()
            assert await phone.tvfy(await phone.code(apns)) == OK
            self.phones[phone.device.token.decode()] = phone
            return phone

        return await each(new, range(count))

    async def new_lines(self, phones: Sequence[Phone], smp: OtherSmp | None = None) -> list[Line]:
        """Subscribe each of these phones to a queue of its own."""

        async def new(phone: Phone) -> Line:
            peer = self.world.sender if smp is None else smp.peer
            queue = await create_notified(peer)
            side: SmpSide = smp or self.world.smp
            return Line(phone, queue, side, peer, await phone.subscribe(queue, router=side))

        return await each(new, phones)

    async def notify(self, lines: Sequence[Line]) -> None:
        """Send a message to each, and wait until a push of each was accepted."""
        services = [self.world.apns.simulator.record, self.failing.simulator.record]
        seen = [record.accepted + record.rejected for record in services]
        missing = {(line.phone.token_id, line.queue.notifier_id) for line in lines}

        def is_done() -> bool:
            for number, record in enumerate(services):
                for entry in record.select(after=seen[number], accepted=True):
                    seen[number] = entry.seq
                    phone, push = self.phones[entry.token], decode_push(entry.body.encode())
                    if isinstance(push, MessagePush):
                        for item in phone.open(push):
                            missing.discard((phone.token_id, item.queue.notifier_id))
            return not missing

        await each(Line.send, lines)
        await until(is_done)

    async def see(self, phones: Iterable[Phone]) -> None:
        """Have owners use their phones."""

        async def check(phone: Phone) -> None:
            assert await phone.tchk() is TokenStatus.ACTIVE

        await each(check, phones)

    async def age(self, days: int) -> None:
        """Let time pass for everybody."""
        await until(lambda: self.world.router.outbox.in_flight == 0)
        events = self.world.journal.events
        events[:] = [replace(event, at=event.at - days * DAY) for event in events]

        def age(tx: Transaction) -> None:
            tx.execute("UPDATE tokens SET seen_at = seen_at - ?", (days * DAY * 1000,))
            for column in ("slowed_at", "asked_at", "verified_at", "next_push_at"):
                sql = f"UPDATE slowed_tokens SET {column} = {column} - ?"
                tx.execute(sql, (days * DAY * 1000,))

        await self.world.router.store.database.write(age)
        rows = await self.world.read(lambda tx: tx.query("SELECT token_id FROM tokens"))
        self.world.router.store.forget_tokens(bytes(token_id) for (token_id,) in rows)

    async def end_past(self, at: float) -> None:
        """Move all events so far before a time."""
        await until(lambda: self.world.router.outbox.in_flight == 0)
        self.world.router.observer.record_traffic(time.time())
        events = self.world.journal.events
        distance = max(event.at for event in events) - at + 1.0
        events[:] = [replace(event, at=event.at - distance) for event in events]

    async def spread(self, traffic: Callable[[], Awaitable[None]], begin: float) -> None:
        """Record traffic, and spread its events evenly over the round that begins then."""
        world = self.world
        first = len(world.journal.events)
        await traffic()
        world.router.observer.record_traffic(time.time())
        events = world.journal.events
        number = max(len(events) - first, 1)
        events[first:] = [
            replace(event, at=begin + ROUND * index / number)
            for index, event in enumerate(events[first:])
        ]

    async def until_stored(self, first: int, count: int) -> None:
        """Wait until so many notifications were stored since an event."""
        events = self.world.journal.events
        while sum(event.kind == "nmsg_stored" for event in events[first:]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def take_snapshots(world: NtfWorld, folder: Path, secret: bytes) -> None:
    """Have the pair of routers write snapshots; other messaging routers write none."""
    now, router = time.time(), world.smp.router
    ntf = snapshot_of_ntf(world.router.store, secret, Hasher(KEY))
    await write_snapshot(folder, ROUTER, "ntf", ntf, now)
    smp = snapshot_of_smp(router.store, router.subscribers, secret, identity().fingerprint)
    await write_snapshot(folder, "11" * 8, "smp", smp, now)


async def lose(place: Place, kind: str, line: Line) -> None:
    """Lose a subscription silently: no client and no router is notified."""
    line.smp.router.subscribers.drop_notifier(line.queue.notifier_id)
    state = {"ended": "END", "refused": "AUTH", "failed": "ERR"}.get(kind)
    if state is not None:
        sql = "UPDATE subscriptions SET status = ? WHERE subscription_id = ?"
        write = place.world.router.store.database.write
        await write(lambda tx: tx.execute(sql, (state, line.subscription_id)))


def scribe_of(events: Iterable[Noted]) -> Scribe:
    """What the router would have written."""
    scribe = Scribe(ROUTER)
    for event in sorted(events, key=lambda event: event.at):
        row = scribe(event.kind, **event.columns)
        row["at"] = datetime.fromtimestamp(event.at, UTC)
    return scribe


class Segments:
    """A journal that grows, as the router's does: all events before a time, then more."""

    def __init__(self, events: Sequence[Noted], ticks: Iterable[float], journal: Path) -> None:
        beats = [Noted("client_connected", at, {"count": 1}) for at in ticks]
        self._rows: list[Event] = scribe_of([*events, *beats]).events
        self._journal, self._number = journal, 0

    def write_until(self, end: float) -> None:
        """Write events up to a time, which is included."""
        last = datetime.fromtimestamp(end, UTC)
        part = [row for row in self._rows if row["at"] <= last]
        self._rows = self._rows[len(part) :]
        self._number += 1
        name = f"{ROUTER}/{Scribe(ROUTER).boot}-{self._number:08d}"
        write_segment(self._journal, name, part)


@dataclass
class Findings:
    """What was planted, what was found, and how long it took."""

    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    wrong: set[Key] = field(default_factory=set)
    """What was missed, and what was found but not planted."""
    seconds: dict[str, float] = field(default_factory=dict)

    def compare(self, truth: set[Key], found: set[Key]) -> None:
        self.wrong |= truth ^ found
        for counter, keys in (
            (self.planted, truth),
            (self.found, found),
            (self.right, truth & found),
        ):
            counter.update(finding for finding, _ in keys)

    def lines(self) -> list[str]:
        return [
            f"{name}: {self.right[name]} of {count} planted, {self.found[name]} found"
            for name, count in self.planted.items()
        ]

    @property
    def recall(self) -> float:
        return self.right.total() / self.planted.total()

    @property
    def precision(self) -> float:
        return self.right.total() / self.found.total()


def tokens(finding: str, phones: Iterable[Phone]) -> set[Key]:
    return {(finding, hashed("token", phone.token_id)) for phone in phones}


def subscriptions(finding: str, lines: Iterable[Line]) -> set[Key]:
    return {(finding, hashed("subscription", line.subscription_id)) for line in lines}
