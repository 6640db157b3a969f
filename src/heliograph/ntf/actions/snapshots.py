"""A snapshot of the notification router's subscriptions, for the pipeline to compare."""

from collections.abc import Callable

from heliograph.actions.pairing import PairKey
from heliograph.actions.snapshots import Pages, SnapshotRow, TakeSnapshot
from heliograph.db.dialects import Row, Transaction
from heliograph.journal.hashing import Hasher
from heliograph.ntf.store.store import NtfStore
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import WireError

__all__ = ["snapshot_of"]

PAGE = 5_000
_ROWS = (
    "SELECT s.subscription_id, s.notifier_id, s.status, s.associated, v.address, v.service_id"
    " FROM subscriptions s JOIN servers v ON v.server_id = s.server_id"
    " WHERE s.subscription_id > ? ORDER BY s.subscription_id LIMIT ?"
)


def snapshot_of(store: NtfStore, secret: bytes, hasher: Hasher) -> TakeSnapshot:
    """Return a function that takes a snapshot of all subscriptions, by messaging router."""

    def take(day: int) -> tuple[Callable[[], tuple[str, ...]], Pages]:
        keys: dict[str, PairKey | None] = {}

        def key_of(address: str) -> PairKey | None:
            if address not in keys:
                try:
                    fingerprint = decode_address(address).fingerprint
                    keys[address] = PairKey.derive(secret, fingerprint, day)
                except WireError:
                    keys[address] = None
            return keys[address]

        async def pages() -> Pages:
            after = b""
            while rows := await store.read(_page_after(after)):
                after = bytes(rows[-1][0])
                found = (_row(row, key_of(row[4]), hasher) for row in rows)
                yield [item for item in found if item is not None]

        return lambda: tuple(sorted({key.place for key in keys.values() if key})), pages()

    return take


def _page_after(after: bytes) -> Callable[[Transaction], list[Row]]:
    return lambda tx: tx.query(_ROWS, (after, PAGE))


def _row(row: Row, key: PairKey | None, hasher: Hasher) -> SnapshotRow | None:
    if key is None:
        return None
    subscription_id, notifier_id, state, associated, address, service_id = row
    subscriptions, servers = hasher.of("subscription"), hasher.of("server")
    return SnapshotRow(
        key.place,
        key.notifier(bytes(notifier_id)),
        key.service(bytes(service_id)) if associated and service_id is not None else None,
        None if subscriptions is None else subscriptions[bytes(subscription_id)],
        None if servers is None else servers[address.encode()],
        state,
    )
