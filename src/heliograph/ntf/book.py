"""What a subscriber reads from and writes to the store."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from heliograph.ntf.records import QueueKey
from heliograph.ntf.subscriptions import Server
from heliograph.wire.tokens import SubscriptionState, SubscriptionStatus

Status = tuple[bytes, SubscriptionStatus, bool]
"""Of a notifier ID: what is true now, and whether it is associated with our service."""


class Span(NamedTuple):
    """Subscriptions of a router by their IDs, both ends included; associated ones or not, or all.

    A page of them, as it was asked for and read.
    """

    first: bytes
    last: bytes
    associated: bool | None


class Book(Protocol):
    async def page(
        self, server_id: int, after: bytes, limit: int, associated: bool | None
    ) -> list[QueueKey]: ...

    async def set_statuses(self, server_id: int, statuses: Sequence[Status]) -> None: ...

    async def confirm(self, server_id: int, span: Span, associated: bool) -> None:
        """What is INACTIVE there is ACTIVE, and associated or not."""

    async def set_ended(
        self, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
    ) -> list[bytes]: ...

    async def replace_state(
        self,
        server_id: int,
        before: SubscriptionState,
        after: SubscriptionState,
        associated: bool | None = None,
    ) -> None: ...

    async def refuse(self, server_id: int, error: bytes) -> None: ...

    async def service(self, server_id: int) -> Server: ...

    async def set_service(self, server: Server) -> None: ...

    async def associated(self, server_id: int) -> tuple[int, bytes]: ...

    async def clear_association(self, server_id: int) -> None: ...
