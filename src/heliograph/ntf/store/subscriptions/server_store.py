"""The store as the subscribers of one process use it."""

from collections.abc import Collection, Sequence

from heliograph.db.database import Database
from heliograph.ntf.store.records import AssociatedIds, QueueKey
from heliograph.ntf.store.subscriptions import associations, servers, subscriptions
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.ntf.store.subscriptions.subscription_store import Status, SubscriptionRange
from heliograph.runtime.clock import steady_time
from heliograph.wire.ntf.tokens import SubscriptionState


class DatabaseServerStore:
    """A `ServerStore` for all subscriptions of the database: one method for each there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all_inactive(self) -> None:
        await self._database.write(subscriptions.all_inactive)

    async def servers(self) -> list[ServerRecord]:
        return await self._database.read(servers.in_use)

    async def proven_servers(self) -> set[int]:
        return await self._database.read(servers.proven)

    async def delete_unused_servers(self, kept: Collection[int]) -> None:
        await self._database.write(lambda tx: servers.delete_unused(tx, kept))

    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]:
        return await self._database.read(
            lambda tx: subscriptions.page(tx, server_id, after, limit, associated=associated)
        )

    async def count_active(self, server_id: int) -> int:
        return await self._database.read(lambda tx: subscriptions.count_active(tx, server_id))

    async def set_statuses(self, server_id: int, statuses: Sequence[Status]) -> None:
        await self._database.write(lambda tx: subscriptions.set_statuses(tx, server_id, statuses))

    async def mark_active(self, server_id: int, page: SubscriptionRange, associated: bool) -> None:
        await self._database.write(
            lambda tx: subscriptions.mark_active(tx, server_id, *page, associated)
        )

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes]:
        return await self._database.write(
            lambda tx: subscriptions.set_ended(tx, server_id, notifier_ids, state)
        )

    async def reclaim(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return []  # nobody else subscribes for this router

    def may_subscribe(self) -> bool:
        return True

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None:
        await self._database.write(
            lambda tx: subscriptions.replace_state(
                tx, server_id, before, after, associated=associated
            )
        )

    async def refuse(self, server_id: int, error: bytes) -> None:
        await self._database.write(lambda tx: subscriptions.refuse(tx, server_id, error))

    async def service(self, server_id: int) -> ServerRecord:
        return await self._database.read(lambda tx: servers.find(tx, server_id))

    async def set_service(self, server: ServerRecord) -> None:
        await self._database.write(
            lambda tx: servers.set_service(
                tx,
                server.server_id,
                server.service_chain,
                server.service_key,
                server.service_id,
            )
        )

    async def associated(self, server_id: int) -> AssociatedIds:
        return await self._database.read(lambda tx: associations.associated(tx, server_id))

    async def queue_keys(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        return await self._database.read(
            lambda tx: subscriptions.queue_keys(tx, server_id, notifier_ids)
        )

    async def keep_missing(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        await self._database.write(
            lambda tx: associations.keep_missing(tx, server_id, notifier_ids)
        )

    async def forget_deleted(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        await self._database.write(
            lambda tx: associations.forget_deleted(tx, server_id, notifier_ids)
        )

    async def set_surplus(self, server_id: int, count: int, ids_hash: bytes) -> None:
        await self._database.write(
            lambda tx: associations.set_surplus(tx, server_id, count, ids_hash)
        )

    async def clear_association(self, server_id: int) -> None:
        await self._database.write(lambda tx: associations.clear(tx, server_id))

    async def collect_unused(self, seconds: float) -> None:
        """Remove messaging routers without a subscription for this many seconds."""
        now = round(steady_time() * 1000)
        before = now - round(seconds * 1000)
        await self._database.write(lambda tx: servers.collect_unused(tx, now, before))
