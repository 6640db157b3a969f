"""A model of queues beside a real router, over a real store, on real sockets.

Whatever is asked, in whatever order, with restarts and lost connections between: the answers are
those of the model, no acknowledged message is lost, messages and notifications keep their order,
and no notification is missing.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heliograph.smp.settings import Rules
from heliograph.wire import smp
from heliograph.wire.smp.fields import QueueMode
from heliograph.wire.smp.ids import id_hash, xor
from tests.smp.support import (
    AUTH,
    NO_MSG,
    OK,
    PROHIBITED,
    QUOTA,
    NotifierKeys,
    Peer,
    Queue,
    World,
    create,
    keys,
    new_store,
    service,
    with_settings,
)
from tests.waiting import until

QUOTA_SIZE = 4
MARK = None
PLAIN = (0, 1)
SERVICE = 2
QUEUES = 2
SETTINGS = with_settings(rules=Rules(quota=QUOTA_SIZE), cached_queues=1)

plain = st.sampled_from(PLAIN)
indexes = st.integers(0, QUEUES - 1)
link_ids = st.sampled_from((b"1" * 24, b"2" * 24))
data = st.sampled_from((b"", b"data", b"other data"))

Body = bytes | None


@dataclass
class ModelNotifier:
    keys: NotifierKeys
    undelivered: list[bytes] = field(default_factory=list)
    is_of_service: bool = False


@dataclass(eq=False)
class ModelQueue:
    real: Queue
    messages: list[tuple[int, Body]] = field(default_factory=list)
    """What is not acknowledged, numbered."""
    accepts: bool = True
    is_off: bool = False
    subscriber: int | None = None
    notifier: ModelNotifier | None = None
    link: tuple[bytes, bytes, bytes] | None = None
    """ID, fixed data and user data."""
    getters: set[int] = field(default_factory=set)
    delivered: dict[int, int] = field(default_factory=dict)
    """The number of the message that a peer was sent last and has not acknowledged."""


class RouterModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.live: list[ModelQueue] = []
        self.peers: dict[int, Peer] = {}
        self.inbox: dict[int, dict[bytes, list[Any]]] = {}
        self.sent = 0
        self.bodies: dict[bytes, Body] = {}
        """Of the messages that were received, by their IDs."""
        self.notified: list[tuple[int, bytes, smp.NMSG]] = []
        """Which connection was sent which notification."""
        self.connections = 0
        self.connection_of: dict[int, int] = {}

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def start(self) -> None:
        self.world = World(new_store("sqlite", self.directory), SETTINGS)
        self.run(self.world.start())
        for number in range(QUEUES):
            self._new(number, subscribe=bool(number))
            self.nkey(number, number)

    # Peers.

    async def peer(self, number: int) -> Peer:
        if number not in self.peers:
            credentials = service() if number == SERVICE else None
            self.peers[number] = await self.world.connect(service=credentials)
            self.inbox[number] = {}
            self.connections += 1
            self.connection_of[number] = self.connections
        return self.peers[number]

    def forget_peer(self, number: int) -> None:
        self.sort(number)
        self.peers.pop(number, None)
        for queue in self.live:
            queue.getters.discard(number)
            queue.delivered.pop(number, None)
            if queue.subscriber == number:
                queue.subscriber = None

    def sort(self, number: int) -> None:
        """Notifications may come at any time; all else is expected when it comes."""
        if number not in self.peers:
            return
        pushes = self.peers[number].pushes
        while pushes:
            entity_id, message = pushes.popleft()
            if isinstance(message, smp.NMSG):
                self.notified.append((self.connection_of[number], entity_id, message))
            else:
                self.inbox[number].setdefault(entity_id, []).append(message)

    async def expect(self, number: int, entity_id: bytes) -> Any:
        def came() -> bool:
            self.sort(number)
            return bool(self.inbox[number].get(entity_id))

        await until(came)
        return self.inbox[number][entity_id].pop(0)

    # What the model knows of messages.

    def received(self, queue: ModelQueue, number: int, message: Any) -> None:
        """A peer was sent the first message of a queue."""
        first, body = queue.messages[0]
        assert queue.real.body(message) == body
        assert self.bodies.setdefault(message.msg_id, body) == body
        queue.delivered[number] = first

    async def is_pushed(self, queue: ModelQueue) -> None:
        number = queue.subscriber
        if number is not None and queue.messages and number not in queue.delivered:
            self.received(queue, number, await self.expect(number, queue.real.rcv_id))

    # Rules.

    def _new(self, number: int, subscribe: bool) -> None:
        real = self.run(self._create(number, subscribe))
        self.live.append(ModelQueue(real, subscriber=number if subscribe else None))

    async def _create(self, number: int, subscribe: bool) -> Queue:
        peer = await self.peer(number)
        return await create(peer, mode=QueueMode.CONTACT, subscribe=subscribe)

    @rule(
        number=plain,
        to=st.lists(st.tuples(indexes, st.booleans()), min_size=1, max_size=4),
    )
    def send(self, number: int, to: list[tuple[int, bool]]) -> None:
        """All in one block."""
        requests, expected = [], []
        for index, notify in to:
            queue = self.live[index]
            self.sent += 1
            body = b"%d" % self.sent
            requests.append(queue.real.sending(body, notify=notify))
            expected.append(self._sent(queue, notify, body))
        assert self.run(self._send(number, requests)) == expected
        for queue in self.live:
            self.run(self.is_pushed(queue))

    def _sent(self, queue: ModelQueue, notify: bool, body: bytes) -> Any:
        if queue.is_off:
            return AUTH
        if not queue.accepts and queue.messages:
            return QUOTA
        if len(queue.messages) >= QUOTA_SIZE:
            queue.accepts = False
            queue.messages.append((self.sent, MARK))
            return QUOTA
        queue.accepts = True
        queue.messages.append((self.sent, body))
        if notify and queue.notifier is not None:
            queue.notifier.undelivered.append(body)
        return OK

    async def _send(self, number: int, requests: list[Any]) -> Any:
        return await (await self.peer(number)).ask_many(requests)

    @rule(number=plain, index=indexes)
    def sub(self, number: int, index: int) -> None:
        queue = self.live[index]
        answer = self.run(self._ask(number, queue, smp.SUB()))
        if number in queue.getters:
            assert answer == PROHIBITED
            return
        assert answer == smp.SOK()
        previous = queue.subscriber
        if previous is not None and previous != number:
            assert self.run(self.expect(previous, queue.real.rcv_id)) == smp.END()
            queue.delivered.pop(previous, None)
        queue.subscriber = number
        queue.delivered.pop(number, None)
        self.run(self.is_pushed(queue))

    @rule(number=plain, index=indexes)
    def get(self, number: int, index: int) -> None:
        queue = self.live[index]
        answer = self.run(self._ask(number, queue, smp.GET()))
        if queue.subscriber == number:
            assert answer == PROHIBITED
            return
        queue.getters.add(number)
        if queue.messages:
            self.received(queue, number, answer)
        else:
            assert answer == OK

    @rule(number=plain, index=indexes)
    def ack(self, number: int, index: int) -> None:
        queue = self.live[index]
        answer = self.run(self._ask(number, queue, smp.ACK(b"")))
        if number not in queue.delivered:
            assert answer == NO_MSG
            return
        acknowledged = queue.delivered.pop(number)
        if queue.messages and queue.messages[0][0] == acknowledged:
            queue.messages.pop(0)
        if not queue.messages:
            queue.accepts = True
        if number in queue.getters or not queue.messages:
            assert answer == OK
        else:
            self.received(queue, number, answer)

    @rule(number=plain, index=indexes)
    def que(self, number: int, index: int) -> None:
        queue = self.live[index]
        answer = self.run(self._ask(number, queue, smp.QUE()))
        assert answer.info.size == len(queue.messages)
        assert answer.info.ntf is (queue.notifier is not None)

    @rule(number=plain, index=indexes, subscribe=st.booleans(), suspend=st.booleans())
    def replace(self, number: int, index: int, subscribe: bool, suspend: bool) -> None:
        """Delete a queue, and have a new one instead."""
        queue = self.live[index]
        if suspend and not queue.is_off:
            assert self.run(self._ask(number, queue, smp.OFF())) == OK
            queue.is_off = True
            return
        assert self.run(self._ask(number, queue, smp.DEL())) == OK
        self.live.remove(queue)
        if queue.subscriber is not None and queue.subscriber != number:
            assert self.run(self.expect(queue.subscriber, queue.real.rcv_id)) == smp.DELD()
        for command in (smp.SUB(), smp.GET(), smp.ACK(b""), smp.QUE(), smp.DEL(), smp.NDEL()):
            assert self.run(self._ask(number, queue, command)) == AUTH
        assert self.run(self._send(number, [queue.real.sending(b"")])) == [AUTH]
        self._new(number, subscribe)

    @rule(number=plain, index=indexes, link_id=link_ids, fixed=data, user=data)
    def lset(self, number: int, index: int, link_id: bytes, fixed: bytes, user: bytes) -> None:
        queue = self.live[index]
        answer = self.run(self._ask(number, queue, smp.LSET(link_id, fixed, user)))
        taken = any(
            other.link is not None and other.link[0] == link_id
            for other in self.live
            if other is not queue
        )
        changes = queue.link is not None and queue.link[:2] != (link_id, fixed)
        if taken or changes:
            assert answer == AUTH
        else:
            assert answer == OK
            queue.link = link_id, fixed, user

    @rule(number=plain, index=indexes)
    def ldel(self, number: int, index: int) -> None:
        queue = self.live[index]
        assert self.run(self._ask(number, queue, smp.LDEL())) == OK
        queue.link = None

    @rule(number=plain, link_id=link_ids)
    def lget(self, number: int, link_id: bytes) -> None:
        answer = self.run(self._lget(number, link_id))
        found = [queue for queue in self.live if queue.link and queue.link[0] == link_id]
        if not found:
            assert answer == AUTH
            return
        [queue] = found
        assert queue.link is not None
        assert answer == smp.LNK(queue.real.snd_id, *queue.link[1:])

    async def _lget(self, number: int, link_id: bytes) -> Any:
        return await (await self.peer(number)).ask(smp.LGET(), link_id)

    @rule(number=plain, index=indexes)
    def rkey(self, number: int, index: int) -> None:
        """Give the queue another recipient key, and void the first."""
        queue = self.live[index]
        old, new = queue.real.recipient, keys()
        assert self.run(self._ask(number, queue, smp.RKEY((new.public,)))) == OK
        assert self.run(self._ask(number, queue, smp.QUE())) == AUTH
        queue.real.recipient = new
        assert old.private != new.private

    @rule(number=plain, index=indexes)
    def nkey(self, number: int, index: int) -> None:
        queue = self.live[index]
        queue.notifier = ModelNotifier(self.run(self._nkey(number, queue)))

    async def _nkey(self, number: int, queue: ModelQueue) -> NotifierKeys:
        return await queue.real.nkey(await self.peer(number))

    @rule(number=plain, index=indexes)
    def ndel(self, number: int, index: int) -> None:
        queue = self.live[index]
        assert self.run(self._ask(number, queue, smp.NDEL())) == OK
        queue.notifier = None

    @rule(number=st.sampled_from((*PLAIN, SERVICE)), index=indexes)
    def nsub(self, number: int, index: int) -> None:
        queue = self.live[index]
        if queue.real.notifier is None:
            return
        answer = self.run(self._nsub(number, queue))
        notifier = queue.notifier
        if notifier is None:
            assert answer == AUTH
        elif number == SERVICE:
            assert answer == smp.SOK(self.peers[SERVICE].service_id)
            notifier.is_of_service = True
        else:
            assert answer == smp.SOK()
            notifier.is_of_service = False

    async def _nsub(self, number: int, queue: ModelQueue) -> Any:
        return await queue.real.nsub(await self.peer(number))

    @rule()
    def nsubs(self) -> None:
        answer = self.run(self._nsubs())
        ids = [
            queue.notifier.keys.notifier_id
            for queue in self.live
            if queue.notifier is not None and queue.notifier.is_of_service
        ]
        ids_hash = bytes(16)
        for notifier_id in ids:
            ids_hash = xor(ids_hash, id_hash(notifier_id))
        assert answer == smp.SOKS(len(ids), ids_hash)

    async def _nsubs(self) -> Any:
        return await (await self.peer(SERVICE)).nsubs()

    @rule(number=st.sampled_from((*PLAIN, SERVICE)))
    def disconnect(self, number: int) -> None:
        if number in self.peers:
            self.run(self._close(self.peers[number]))
            self.forget_peer(number)

    async def _close(self, peer: Peer) -> None:
        clients = len(self.world.router.clients)
        await peer.close()
        await until(lambda: len(self.world.router.clients) < clients)

    @rule(again=st.booleans())
    def restart(self, again: bool) -> None:
        if again:
            self.run(self.world.restart())
            for number in tuple(self.peers):
                self.forget_peer(number)

    async def _ask(self, number: int, queue: ModelQueue, command: Any) -> Any:
        return await queue.real.by_recipient(await self.peer(number), command)

    @invariant()
    def no_unexpected_message_was_pushed(self) -> None:
        for number in self.peers:
            self.sort(number)
            for messages in self.inbox[number].values():
                assert not any(isinstance(message, smp.MSG) for message in messages)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.run(self._finish())
        finally:
            self.run(self.world.stop())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.directory)

    async def _finish(self) -> None:
        """Receive everything that is left, by connections that are new."""
        for number in tuple(self.peers):
            await self._close(self.peers[number])
            self.forget_peer(number)
        receiver, notified = await self.peer(0), await self.peer(1)
        for queue in self.live:
            assert await queue.real.sub(receiver) == smp.SOK()
            message: Any = OK
            if queue.messages:
                message = await self.expect(0, queue.real.rcv_id)
            for _, body in queue.messages:
                assert queue.real.body(message) == body
                self.bodies[message.msg_id] = body
                message = await queue.real.ack(receiver, message)
            assert message == OK
            if queue.notifier is not None:
                assert await queue.real.nsub(notified) == smp.SOK()
        for queue in self.live:
            if queue.notifier is not None:
                await self._has_nothing_pending(queue.notifier)

    async def _has_nothing_pending(self, notifier: ModelNotifier) -> None:
        keys, expected = notifier.keys, notifier.undelivered

        def by_connection() -> dict[int, list[bytes]]:
            self.sort(1)
            found: dict[int, list[bytes]] = {}
            for connection, entity_id, message in self.notified:
                if entity_id == keys.notifier_id:
                    body = self.bodies[keys.decrypt(message).msg_id]
                    assert body is not None
                    found.setdefault(connection, []).append(body)
            return found

        await until(
            lambda: (
                {body for bodies in by_connection().values() for body in bodies} == set(expected)
            )
        )
        for bodies in by_connection().values():
            places = [expected.index(body) for body in bodies]
            assert places == sorted(set(places))  # in order, and none twice to one connection


TestRouterModel = RouterModel.TestCase
TestRouterModel.settings = settings(
    max_examples=max(settings().max_examples // 2, 10), stateful_step_count=60
)
