"""Queues in memory, found by any of their three IDs, and loaded when they are not there."""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice

from heliograph.smp.records import Queue
from heliograph.smp.store import Entity, Expired, Store

Name = tuple[Entity, bytes]


class _Load:
    """A load under way: of which queues what it reads may be old, and whether all was forgotten."""

    def __init__(self) -> None:
        self.outdated: set[bytes] = set()
        self.cleared = False


class Queues:
    """A cache of queues. One that has changes not yet durable is never put out."""

    def __init__(self, store: Store, capacity: int) -> None:
        self._store = store
        self._capacity = capacity
        self._recipients: dict[bytes, Queue] = {}
        self._senders: dict[bytes, Queue] = {}
        self._notifiers: dict[bytes, Queue] = {}
        self._deleting: set[bytes] = set()
        """Queues that the store may still have, until their deletion is durable or void."""
        self._loads: set[_Load] = set()
        self._idle = asyncio.Event()
        self._by_entity = {
            Entity.RECIPIENT: self._recipients,
            Entity.SENDER: self._senders,
            Entity.NOTIFIER: self._notifiers,
        }

    def __len__(self) -> int:
        return len(self._recipients)

    def get(self, entity: Entity, entity_id: bytes) -> Queue | None:
        return self._by_entity[entity].get(entity_id)

    def of(self, entity: Entity) -> Mapping[bytes, Queue]:
        """All that are known, by one of their IDs; it goes on changing with them."""
        return self._by_entity[entity]

    def add(self, queue: Queue) -> None:
        self._recipients[queue.recipient_id] = queue
        self._senders[queue.sender_id] = queue
        if queue.notifier is not None:
            self._notifiers[queue.notifier.notifier_id] = queue

    def set_notifier(self, queue: Queue, previous: bytes | None) -> None:
        """The queue has another notifier than before, or none."""
        if previous is not None:
            self._notifiers.pop(previous, None)
        if queue.notifier is not None:
            self._notifiers[queue.notifier.notifier_id] = queue

    def delete(self, queue: Queue) -> None:
        """To be called with the changes of the store that delete it."""
        recipient_id = queue.recipient_id
        self._forget(queue)
        self._outdate((recipient_id,))
        self._deleting.add(recipient_id)

        def settled(_: object) -> None:
            self._deleting.discard(recipient_id)

        self._store.changes.then(settled, settled)

    def shrink(self, expired: dict[bytes, Expired]) -> None:
        """These messages of these queues are gone."""
        self._outdate(expired)
        for recipient_id, (seqs, first) in expired.items():
            queue = self._recipients.get(recipient_id)
            if queue is not None:
                # Of those acknowledged, or never loaded, memory knows already.
                queue.lose(sum(seq >= queue.first for seq in seqs), first)

    def clear(self) -> None:
        """Forget all; what is being read may be older than what was known."""
        self._outdate(self._recipients)
        for load in self._loads:
            load.cleared = True
        for known in self._by_entity.values():
            known.clear()

    def evict(self) -> None:
        """Put out the longest known tenth, but nothing that commands waiting for a load name.

        Not to be called between commands that were served together.
        """
        if len(self._recipients) <= self._capacity or self._loads:
            return
        surplus = len(self._recipients) - self._capacity * 9 // 10
        for queue in list(islice(self._recipients.values(), surplus)):
            if not self._store.is_changing(queue.recipient_id):
                self._forget(queue)

    async def load(self, names: set[Name]) -> None:
        """Bring in the queues of these names, as far as they exist.

        They stay until the caller lets go of the event loop.
        """
        while self._loads and len(self._recipients) > self._capacity:
            await self._idle.wait()
        self.evict()
        missing = self._missing(names)
        load = _Load()
        self._loads.add(load)
        self._idle.clear()
        try:
            while missing:
                load.outdated = set(self._deleting)
                missing = self._keep(await self._read(missing), load)
                if missing:
                    await self._store.settled()
                if load.cleared:
                    load.cleared = False
                    missing = self._missing(names)
        finally:
            self._loads.discard(load)
            if not self._loads:
                self._idle.set()

    def _missing(self, names: set[Name]) -> set[Name]:
        return {name for name in names if self.get(*name) is None}

    async def _read(self, names: Iterable[Name]) -> list[Queue]:
        by_entity: dict[Entity, list[bytes]] = {}
        for entity, entity_id in names:
            by_entity.setdefault(entity, []).append(entity_id)
        found = await asyncio.gather(
            *(self._store.load(entity, ids) for entity, ids in by_entity.items())
        )
        return [queue for queues in found for queue in queues]

    def _keep(self, found: Iterable[Queue], load: _Load) -> set[Name]:
        """Keep what is not known yet; the result are those to be read again."""
        again: set[Name] = set()
        for queue in found:
            recipient_id = queue.recipient_id
            if recipient_id in self._recipients:
                continue
            if recipient_id in load.outdated:
                again.add((Entity.RECIPIENT, recipient_id))
            else:
                self.add(queue)
        return again

    def _outdate(self, recipient_ids: Iterable[bytes]) -> None:
        for load in self._loads:
            load.outdated.update(recipient_ids)

    def _forget(self, queue: Queue) -> None:
        self._recipients.pop(queue.recipient_id, None)
        self._senders.pop(queue.sender_id, None)
        if queue.notifier is not None:
            self._notifiers.pop(queue.notifier.notifier_id, None)
