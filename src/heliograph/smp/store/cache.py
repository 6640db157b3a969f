"""The cache of queue records, found by any of their IDs, and loaded from the store on demand."""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice

from heliograph.smp.store.records import LinkRecord, QueueRecord
from heliograph.smp.store.store import EntityKind, Expired, SmpStore

Name = tuple[EntityKind, bytes]


class _Load:
    """A load in progress: queues whose read may be stale, and whether the cache was cleared."""

    def __init__(self) -> None:
        self.stale: set[bytes] = set()
        self.cleared = False


class QueueCache:
    """A cache of queue records. One with changes that are not yet durable is never evicted."""

    def __init__(self, store: SmpStore, capacity: int) -> None:
        self._store = store
        self._capacity = capacity
        self._recipients: dict[bytes, QueueRecord] = {}
        self._senders: dict[bytes, QueueRecord] = {}
        self._notifiers: dict[bytes, QueueRecord] = {}
        self._links: dict[bytes, QueueRecord] = {}
        self._released: dict[Name, bytes] = {}
        """IDs that a queue gave up, until that is durable, with the queue's recipient ID."""
        self._deleting: set[bytes] = set()
        """Deleted queues that the store may still have, until the deletion is durable or void."""
        self._loads: set[_Load] = set()
        self._idle = asyncio.Event()
        self._by_entity = {
            EntityKind.RECIPIENT: self._recipients,
            EntityKind.SENDER: self._senders,
            EntityKind.NOTIFIER: self._notifiers,
            EntityKind.LINK: self._links,
        }

    def __len__(self) -> int:
        return len(self._recipients)

    def get(self, entity: EntityKind, entity_id: bytes) -> QueueRecord | None:
        return self._by_entity[entity].get(entity_id)

    def of(self, entity: EntityKind) -> Mapping[bytes, QueueRecord]:
        """Return the live mapping of cached queues by one kind of ID."""
        return self._by_entity[entity]

    def add(self, queue: QueueRecord) -> None:
        self._recipients[queue.recipient_id] = queue
        self._senders[queue.sender_id] = queue
        if queue.notifier is not None:
            self._notifiers[queue.notifier.notifier_id] = queue
        if queue.link is not None:
            self._links[queue.link.link_id] = queue

    def is_free(self, name: Name, queue: QueueRecord | None = None) -> bool:
        """Return whether no other queue has an ID that was loaded, durably or not."""
        holder = self.get(*name)
        released_by = self._released.get(name)
        return (holder is None or holder is queue) and (
            released_by is None or (queue is not None and released_by == queue.recipient_id)
        )

    def set_link(self, queue: QueueRecord, link: LinkRecord | None) -> None:
        """Set or remove the link of a queue; call it together with the store changes."""
        if queue.link is not None and queue.link != link:
            self._links.pop(queue.link.link_id, None)
            self._release((EntityKind.LINK, queue.link.link_id), queue)
        queue.link = link
        if link is not None:
            self._links[link.link_id] = queue

    def set_notifier(self, queue: QueueRecord, previous: bytes | None) -> None:
        """Index the queue by its new notifier, if any, in place of the previous one."""
        if previous is not None:
            self._notifiers.pop(previous, None)
        if queue.notifier is not None:
            self._notifiers[queue.notifier.notifier_id] = queue

    def delete(self, queue: QueueRecord) -> None:
        """Remove a queue; call it together with the store changes that delete it."""
        recipient_id = queue.recipient_id
        self._drop(queue)
        self._mark_stale((recipient_id,))
        self._deleting.add(recipient_id)
        self._release((EntityKind.SENDER, queue.sender_id), queue)
        if queue.link is not None:
            self._release((EntityKind.LINK, queue.link.link_id), queue)

        def settled(_: object) -> None:
            self._deleting.discard(recipient_id)

        self._store.changes.then(settled, settled)

    def shrink(self, expired: dict[bytes, Expired]) -> None:
        """Update the cached queues whose messages expired."""
        self._mark_stale(expired)
        for recipient_id, (seqs, first) in expired.items():
            queue = self._recipients.get(recipient_id)
            if queue is not None:
                # Messages below `first` are already not counted.
                queue.lose(sum(seq >= queue.first for seq in seqs), first)

    def clear(self) -> None:
        """Drop all queues, and have running loads read them again."""
        self._mark_stale(self._recipients)
        for load in self._loads:
            load.cleared = True
        for known in self._by_entity.values():
            known.clear()

    def evict(self) -> None:
        """Evict the tenth cached longest if over capacity, unless a load is running.

        Do not call this between commands of one batch: they rely on their queues being cached.
        """
        if len(self._recipients) <= self._capacity or self._loads:
            return
        surplus = len(self._recipients) - self._capacity * 9 // 10
        for queue in list(islice(self._recipients.values(), surplus)):
            if not self._store.is_changing(queue.recipient_id):
                self._drop(queue)

    async def load(self, names: set[Name]) -> None:
        """Load the queues of these names, if they exist.

        They stay cached at least until the caller next awaits.
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
                load.stale = set(self._deleting)
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

    async def _read(self, names: Iterable[Name]) -> list[QueueRecord]:
        by_entity: dict[EntityKind, list[bytes]] = {}
        for entity, entity_id in names:
            by_entity.setdefault(entity, []).append(entity_id)
        found = await asyncio.gather(
            *(self._store.load(entity, ids) for entity, ids in by_entity.items())
        )
        return [queue for queues in found for queue in queues]

    def _keep(self, found: Iterable[QueueRecord], load: _Load) -> set[Name]:
        """Cache what was read and is not cached yet; return the stale ones, to read again."""
        again: set[Name] = set()
        for queue in found:
            recipient_id = queue.recipient_id
            if recipient_id in self._recipients:
                continue
            if recipient_id in load.stale:
                again.add((EntityKind.RECIPIENT, recipient_id))
            else:
                self.add(queue)
        return again

    def _mark_stale(self, recipient_ids: Iterable[bytes]) -> None:
        for load in self._loads:
            load.stale.update(recipient_ids)

    def _drop(self, queue: QueueRecord) -> None:
        self._recipients.pop(queue.recipient_id, None)
        self._senders.pop(queue.sender_id, None)
        if queue.notifier is not None:
            self._notifiers.pop(queue.notifier.notifier_id, None)
        if queue.link is not None:
            self._links.pop(queue.link.link_id, None)

    def _release(self, name: Name, queue: QueueRecord) -> None:
        """Keep an ID from other queues until it has left the store: batches run in one order."""
        self._released[name] = queue.recipient_id

        def settled(_: object) -> None:
            self._released.pop(name, None)

        self._store.changes.then(settled, settled)
