"""A snapshot of the messaging router's notifiers and their subscribers, for the pipeline."""

from collections.abc import Callable

from heliograph.actions.pairing import PairKey
from heliograph.actions.snapshots import Pages, SnapshotRow, TakeSnapshot
from heliograph.db.dialects import Row, Transaction
from heliograph.smp.clients.clients import Subscribers
from heliograph.smp.store.store import SmpStore

__all__ = ["snapshot_of"]

PAGE = 5_000
_ROWS = (
    "SELECT notifier_id, notifier_service_id FROM queues"
    " WHERE notifier_id > ? ORDER BY notifier_id LIMIT ?"
)


def snapshot_of(
    store: SmpStore, subscribers: Subscribers, secret: bytes, fingerprint: bytes
) -> TakeSnapshot:
    """Return a function that takes a snapshot of all notifiers, and whether each is subscribed."""

    def take(day: int) -> tuple[Callable[[], tuple[str, ...]], Pages]:
        key = PairKey.derive(secret, fingerprint, day)

        async def pages() -> Pages:
            after = b""
            while rows := await store.database.read(_page_after(after)):
                after = bytes(rows[-1][0])
                yield [_row(row, key, subscribers) for row in rows]

        return lambda: (key.place,), pages()

    return take


def _page_after(after: bytes) -> Callable[[Transaction], list[Row]]:
    return lambda tx: tx.query(_ROWS, (after, PAGE))


def _row(row: Row, key: PairKey, subscribers: Subscribers) -> SnapshotRow:
    notifier_id = bytes(row[0])
    service_id = None if row[1] is None else bytes(row[1])
    is_subscribed = (
        notifier_id in subscribers.notifiers
        if service_id is None
        else service_id in subscribers.services
    )
    return SnapshotRow(
        key.place,
        key.notifier(notifier_id),
        key.service(service_id),
        is_subscribed=is_subscribed,
    )
