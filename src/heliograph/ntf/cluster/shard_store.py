"""The store as the subscriber of one shard uses it.

Every write checks, in its transaction, that this process has owned the shard ever since the
subscriber was started, and touches no other subscriptions; otherwise it has no effect.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from heliograph.db.dialects import Transaction
from heliograph.ntf.cluster import tables
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.cluster.roster import ShardId
from heliograph.ntf.store.records import AssociatedIds, QueueKey
from heliograph.ntf.store.subscriptions import associations, servers, subscriptions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscription_store import Status, SubscriptionRange
from heliograph.wire.ntf.tokens import SubscriptionState

__all__ = ["ShardStore"]

T = TypeVar("T")

RECLAIM_SECONDS = 30.0
"""Seconds after a shard came to this process in which NSUB of a former owner may still arrive."""
MAX_RECLAIMS = 3
"""A queue that ends more often within this time is subscribed by another router."""


class ShardStore:
    """A `SubscriptionStore`: one method for each there."""

    def __init__(self, member: ClusterMember, key: ShardId, count: int, generation: int) -> None:
        self._member = member
        self._key = key
        self._count = count
        self._generation = generation
        self._range = tables.range_of(key[1], count)
        self._began = time.monotonic()
        self._reclaimed: Counter[bytes] = Counter()

    async def start(self) -> bool:
        """Mark ACTIVE subscriptions INACTIVE; return whether the router ever worked."""
        server_id = self._key[0]

        def start(tx: Transaction) -> bool:
            subscriptions.replace_state(
                tx,
                server_id,
                SubscriptionState.ACTIVE,
                SubscriptionState.INACTIVE,
                within=self._range,
            )
            return server_id in servers.proven(tx)

        return await self._write(start, False)

    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]:
        """Return nothing once the shard has moved: its new owner subscribes the rest."""
        nothing: list[QueueKey] = []
        return await self._member.database.read(
            lambda tx: (
                subscriptions.page(
                    tx, server_id, after, limit, associated=associated, within=self._range
                )
                if self._is_owner(tx, locked=False)
                else nothing
            )
        )

    async def count_active(self, server_id: int) -> int:
        return await self._member.database.read(
            lambda tx: subscriptions.count_active(tx, server_id, self._range)
        )

    async def set_statuses(self, server_id: int, statuses: Sequence[Status]) -> None:
        await self._write(
            lambda tx: subscriptions.set_statuses(tx, server_id, statuses, self._range), None
        )

    async def mark_active(self, server_id: int, page: SubscriptionRange, associated: bool) -> None:
        await self._write(
            lambda tx: subscriptions.mark_active(tx, server_id, *page, associated), None
        )

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes] | None:
        return await self._write(
            lambda tx: subscriptions.set_ended(tx, server_id, notifier_ids, state, self._range),
            None,
        )

    async def reclaim(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        """Return the queues to subscribe once more.

        A former owner may have subscribed them after this one: then the messaging router sends END
        to the owner. If a shard was here for long, or never elsewhere, END is another router's.
        """
        if self._generation == 0 or time.monotonic() - self._began > RECLAIM_SECONDS:
            self._reclaimed.clear()
            return []
        chosen = [item for item in notifier_ids if self._reclaimed[item] < MAX_RECLAIMS]
        nothing: list[QueueKey] = []
        found = await self._write(
            lambda tx: subscriptions.queue_keys(tx, server_id, chosen), nothing
        )
        found = [item for item in found if self._has(item.subscription_id)]
        self._reclaimed.update(item.notifier_id for item in found)
        return found

    def _has(self, subscription_id: bytes) -> bool:
        return self._range is None or subscription_id in self._range

    def may_subscribe(self) -> bool:
        return self._member.may_send

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None:
        await self._write(
            lambda tx: subscriptions.replace_state(
                tx, server_id, before, after, associated=associated, within=self._range
            ),
            None,
        )

    async def refuse(self, server_id: int, error: bytes) -> None:
        await self._write(lambda tx: subscriptions.refuse(tx, server_id, error, self._range), None)

    async def service(self, server_id: int) -> ServerRecord:
        return await self._member.database.read(lambda tx: servers.find(tx, server_id))

    async def set_service(self, server: ServerRecord) -> None:
        await self._write(
            lambda tx: servers.set_service(
                tx,
                server.server_id,
                server.service_chain,
                server.service_key,
                server.service_id,
            ),
            None,
        )

    async def associated(self, server_id: int) -> AssociatedIds:
        return await self._member.database.read(lambda tx: associations.associated(tx, server_id))

    async def queue_keys(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return await self._member.database.read(
            lambda tx: subscriptions.queue_keys(tx, server_id, notifier_ids)
        )

    async def keep_missing(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        await self._write(lambda tx: associations.keep_missing(tx, server_id, notifier_ids), None)

    async def forget_deleted(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        await self._write(lambda tx: associations.forget_deleted(tx, server_id, notifier_ids), None)

    async def set_surplus(self, server_id: int, count: int, ids_hash: bytes) -> None:
        await self._write(lambda tx: associations.set_surplus(tx, server_id, count, ids_hash), None)

    async def clear_association(self, server_id: int) -> None:
        await self._write(lambda tx: associations.clear(tx, server_id), None)

    async def _write(self, function: Callable[[Transaction], T], otherwise: T) -> T:
        """Run a function if this process owns the shard, else return `otherwise`."""

        def write(tx: Transaction) -> T:
            return function(tx) if self._is_owner(tx, locked=True) else otherwise

        return await self._member.database.write_concurrently(write)

    def _is_owner(self, tx: Transaction, *, locked: bool) -> bool:
        return tables.is_owner(
            tx,
            self._key,
            self._member.process_id,
            count=self._count,
            generation=self._generation,
            locked=locked,
        )
