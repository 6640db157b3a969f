"""The part of the store that a subscriber to a messaging router uses."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from heliograph.ntf.store.records import AssociatedIds, QueueKey
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState

Status = tuple[bytes, NtfSubStatus, bool]
"""A notifier ID, its status, and whether it is associated with our service."""


class SubscriptionRange(NamedTuple):
    """A page of a router's subscriptions, both ends included.

    `associated` limits it to those with (True) or without (False) a service association.
    """

    first: bytes
    last: bytes
    associated: bool | None


class SubscriptionStore(Protocol):
    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]: ...

    async def count_active(self, server_id: int) -> int: ...

    async def set_statuses(self, server_id: int, statuses: Sequence[Status]) -> None: ...

    async def mark_active(self, server_id: int, page: SubscriptionRange, associated: bool) -> None:
        """Mark INACTIVE subscriptions in the range ACTIVE and set their association."""

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes] | None:
        """Return the IDs of the subscriptions that were not in this state before.

        None if they are another process's by now.
        """

    async def reclaim(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
        """Return those of ended subscriptions that a process of this router may have taken."""

    def may_subscribe(self) -> bool:
        """Return False if another process may have become the subscriber by now."""
        ...

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None: ...

    async def refuse(self, server_id: int, error: bytes) -> None: ...

    async def service(self, server_id: int) -> ServerRecord: ...

    async def set_service(self, server: ServerRecord) -> None: ...

    async def associated(self, server_id: int) -> AssociatedIds: ...

    async def queue_keys(self, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]: ...

    async def keep_missing(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        """Expect associated queues at the router that were deleted here before it answered."""

    async def forget_deleted(self, server_id: int, notifier_ids: Sequence[bytes]) -> None:
        """Forget queues that were deleted here, and now are at the router, too."""

    async def set_surplus(self, server_id: int, count: int, ids_hash: bytes) -> None:
        """Replace the deleted queues of a router by a count and a hash."""

    async def clear_association(self, server_id: int) -> None: ...


class ServerStore(SubscriptionStore, Protocol):
    """What the owner of all subscribers uses besides."""

    async def all_inactive(self) -> None:
        """Mark all ACTIVE subscriptions INACTIVE."""

    async def servers(self) -> list[ServerRecord]:
        """Return the messaging routers that have subscriptions."""

    async def proven_servers(self) -> set[int]:
        """Return the routers that have INACTIVE subscriptions, which were ACTIVE before."""

    async def delete_unused_servers(self, kept: Collection[int]) -> None:
        """Delete the routers without subscriptions and without a service, but for those `kept`."""
