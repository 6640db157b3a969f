"""Subscriptions in the store: functions of a transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from heliograph.db.dialects import Row, Transaction
from heliograph.db.sql import MAX_IN
from heliograph.ntf.lifecycle import may_subscribe
from heliograph.ntf.store.records import QueueKey, Subscription
from heliograph.ntf.store.subscriptions import associations, servers
from heliograph.ntf.store.subscriptions.servers import ServerRecord
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState, TokenStatus

COLUMNS = (
    "subscription_id, token_id, server_id, notifier_id, notifier_key, status, error, associated"
)
_SUBSCRIBABLE = ("NEW", "PENDING", "ACTIVE", "INACTIVE", "SERVICE", "ERR")
MAX_ERROR = 200
"""Bytes of a messaging router's error text that are stored and answered."""

_SUBSTITUTE = (0, bytes(24), bytes(44), SubscriptionState.ACTIVE.value, b"", 0)
"""Columns of a substitute after its IDs."""
_STATES = ", ".join(f"'{state}'" for state in _SUBSCRIBABLE)


@dataclass(frozen=True, slots=True)
class NewSubscription:
    subscription_id: bytes
    token_id: bytes
    address: str
    notifier_id: bytes
    notifier_key: bytes


class SubscriptionRefusal(Enum):
    NOT_ALLOWED = "the token may not subscribe, or the queue is another token's or key's"
    TOO_MANY = "the token has as many subscriptions as it may have"


class IdRange(NamedTuple):
    """Subscription IDs from `first` on, before `end`; None is without an end."""

    first: bytes
    end: bytes | None

    def __contains__(self, subscription_id: object) -> bool:
        assert isinstance(subscription_id, bytes)  # noqa: S101
        return self.first <= subscription_id and (self.end is None or subscription_id < self.end)


def _condition(within: IdRange | None) -> tuple[str, tuple[bytes, ...]]:
    """Return the condition that limits a statement to a range, and its parameters."""
    if within is None:
        return "", ()
    if within.end is None:
        return " AND subscription_id >= ?", (within.first,)
    return " AND subscription_id >= ? AND subscription_id < ?", (within.first, within.end)


class Added(NamedTuple):
    subscription: Subscription
    server: ServerRecord
    is_new: bool


def subscription_of(row: Row) -> Subscription:
    *own, state, error, associated = row
    status = NtfSubStatus(SubscriptionState(state), error[:MAX_ERROR])
    subscription_id, token_id, server_id, notifier_id, notifier_key = own
    return Subscription(
        subscription_id, token_id, server_id, notifier_id, notifier_key, status, bool(associated)
    )


def find_many(
    tx: Transaction, subscription_ids: Sequence[bytes]
) -> tuple[list[Subscription], list[Subscription]]:
    """Return the subscriptions, and a substitute for each unknown ID.

    The substitutes are decoded so that the time taken does not show which IDs exist.
    """
    wanted = dict.fromkeys(subscription_ids)
    rows = tx.query_in(
        f"SELECT {COLUMNS} FROM subscriptions WHERE subscription_id IN {{in}}", list(wanted)
    )
    found = {row[0]: subscription_of(row) for row in rows}
    unknown = [subscription_of((item, item, *_SUBSTITUTE)) for item in wanted if item not in found]
    return list(found.values()), unknown


def add(
    tx: Transaction, new: NewSubscription, limit: int | None = None
) -> Added | SubscriptionRefusal:
    """Add a subscription, or return the one with the same token, queue and key."""
    [added] = add_many(tx, [new], limit)
    return added


def add_many(
    tx: Transaction, many: Sequence[NewSubscription], limit: int | None = None
) -> list[Added | SubscriptionRefusal]:
    """Add each item in order as `add` does, in a constant number of statements."""
    token_ids = list(dict.fromkeys(new.token_id for new in many))
    allowed = _allowed(tx, token_ids)
    counts = {} if limit is None else _counts(tx, token_ids)
    at = servers.at(tx, list(dict.fromkeys(new.address for new in many)))
    known = _known(tx, at, many)
    results: list[Added | SubscriptionRefusal] = []
    made: list[Row] = []
    for new in many:
        if new.token_id not in allowed:
            results.append(SubscriptionRefusal.NOT_ALLOWED)
            continue
        old = known.get((new.address, new.notifier_id))
        if old is not None:
            same = (old.token_id, old.notifier_key) == (new.token_id, new.notifier_key)
            added = Added(old, at[new.address], is_new=False)
            results.append(added if same else SubscriptionRefusal.NOT_ALLOWED)
            continue
        if limit is not None and counts.get(new.token_id, 0) >= limit:
            results.append(SubscriptionRefusal.TOO_MANY)
            continue
        if new.address not in at:
            at[new.address] = servers.find(tx, servers.find_or_add(tx, new.address))
        subscription = _pending(new, at[new.address].server_id)
        known[new.address, new.notifier_id] = subscription
        counts[new.token_id] = counts.get(new.token_id, 0) + 1
        made.append(_row(subscription))
        results.append(Added(subscription, at[new.address], is_new=True))
    tx.many(f"INSERT INTO subscriptions ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", made)
    return results


def _allowed(tx: Transaction, token_ids: Sequence[bytes]) -> set[bytes]:
    rows = tx.query_in("SELECT token_id, status FROM tokens WHERE token_id IN {in}", token_ids)
    return {token_id for token_id, status in rows if may_subscribe(TokenStatus(status))}


def _counts(tx: Transaction, token_ids: Sequence[bytes]) -> dict[bytes, int]:
    rows = tx.query_in(
        "SELECT token_id, COUNT(*) FROM subscriptions WHERE token_id IN {in} GROUP BY token_id",
        token_ids,
    )
    return {token_id: int(count) for token_id, count in rows}


def _known(
    tx: Transaction, at: dict[str, ServerRecord], many: Sequence[NewSubscription]
) -> dict[tuple[str, bytes], Subscription]:
    found: dict[tuple[str, bytes], Subscription] = {}
    for address, where in at.items():
        rows = tx.query_in(
            f"SELECT {COLUMNS} FROM subscriptions WHERE notifier_id IN {{in}} AND server_id = ?",
            list({new.notifier_id for new in many if new.address == address}),
            where.server_id,
        )
        for row in rows:
            subscription = subscription_of(row)
            found[address, subscription.notifier_id] = subscription
    return found


def _pending(new: NewSubscription, server_id: int) -> Subscription:
    return Subscription(
        new.subscription_id,
        new.token_id,
        server_id,
        new.notifier_id,
        new.notifier_key,
        NtfSubStatus(SubscriptionState.PENDING),
    )


def _row(item: Subscription) -> Row:
    return (
        item.subscription_id,
        item.token_id,
        item.server_id,
        item.notifier_id,
        item.notifier_key,
        item.status.state.value,
        item.status.error,
        int(item.associated),
    )


def delete(tx: Transaction, subscription_id: bytes) -> None:
    tx.lock(
        "SELECT 1 FROM tokens WHERE token_id = (SELECT token_id FROM subscriptions"
        " WHERE subscription_id IN {in}) FOR NO KEY UPDATE",
        [subscription_id],
    )
    associations.keep_deleted(tx, "subscription_id", subscription_id)
    for table in ("subscriptions", "last_notifications"):
        tx.execute(f"DELETE FROM {table} WHERE subscription_id = ?", (subscription_id,))


def page(
    tx: Transaction,
    server_id: int,
    after: bytes,
    limit: int,
    *,
    associated: bool | None,
    within: IdRange | None = None,
) -> list[QueueKey]:
    """Return queues to subscribe at a router, in order of ID: associated ones or not, or all."""
    which = "" if associated is None else f" AND associated = {int(associated)}"
    limits, values = _condition(within)
    rows = tx.query(
        "SELECT subscription_id, notifier_id, notifier_key, status = 'INACTIVE' FROM subscriptions"
        f" WHERE server_id = ? AND subscription_id > ? AND status IN ({_STATES}){which}{limits}"
        " ORDER BY subscription_id LIMIT ?",
        (server_id, after, *values, limit),
    )
    return [QueueKey(*row) for row in rows]


def count_active(tx: Transaction, server_id: int, within: IdRange | None = None) -> int:
    """Return how many subscriptions at a router are active."""
    limits, values = _condition(within)
    [[count]] = tx.query(
        f"SELECT COUNT(*) FROM subscriptions WHERE server_id = ? AND status = ?{limits}",
        (server_id, SubscriptionState.ACTIVE.value, *values),
    )
    return int(count)


def queue_keys(tx: Transaction, server_id: int, notifier_ids: Sequence[bytes]) -> list[QueueKey]:
    rows = tx.query_in(
        "SELECT subscription_id, notifier_id, notifier_key, status = 'INACTIVE' FROM subscriptions"
        " WHERE notifier_id IN {in} AND server_id = ?",
        notifier_ids,
        server_id,
    )
    return [QueueKey(*row) for row in rows]


def keys_of(tx: Transaction, subscription_ids: Sequence[bytes]) -> list[QueueKey]:
    rows = tx.query_in(
        "SELECT subscription_id, notifier_id, notifier_key, status = 'INACTIVE' FROM subscriptions"
        f" WHERE subscription_id IN {{in}} AND status IN ({_STATES})",
        subscription_ids,
    )
    return [QueueKey(*row) for row in rows]


def set_statuses(
    tx: Transaction,
    server_id: int,
    statuses: Iterable[tuple[bytes, NtfSubStatus, bool]],
    within: IdRange | None = None,
) -> None:
    """Store statuses by notifier ID; the last member is the association with our service."""
    limits, values = _condition(within)
    alike: dict[Row, list[bytes]] = {}
    for notifier_id, status, associated in statuses:
        key = status.state.value, status.error[:MAX_ERROR], int(associated)
        alike.setdefault(key, []).append(notifier_id)
    for key, notifier_ids in alike.items():
        for start in range(0, len(notifier_ids), MAX_IN):
            chunk = notifier_ids[start : start + MAX_IN]
            tx.execute(
                "UPDATE subscriptions SET status = ?, error = ?, associated = ?"
                f" WHERE server_id = ? AND notifier_id IN ({', '.join('?' * len(chunk))}){limits}",
                (*key, server_id, *chunk, *values),
            )


def mark_active(
    tx: Transaction, server_id: int, first: bytes, last: bytes, which: bool | None, associated: bool
) -> None:
    """Mark INACTIVE subscriptions in the range ACTIVE; `which` limits them by association."""
    limited = "" if which is None else f" AND associated = {int(which)}"
    tx.execute(
        "UPDATE subscriptions SET status = ?, error = ?, associated = ? WHERE server_id = ?"
        f" AND subscription_id BETWEEN ? AND ? AND status = ?{limited}",
        (
            SubscriptionState.ACTIVE.value,
            b"",
            int(associated),
            server_id,
            first,
            last,
            SubscriptionState.INACTIVE.value,
        ),
    )


def set_ended(
    tx: Transaction,
    server_id: int,
    notifier_ids: Sequence[bytes],
    state: SubscriptionState,
    within: IdRange | None = None,
) -> list[bytes]:
    """Mark subscriptions that the messaging router ended, and return the IDs of those that changed.

    A deleted queue stays deleted.
    """
    limits, values = _condition(within)
    rows = tx.query_in(
        "SELECT subscription_id FROM subscriptions WHERE notifier_id IN {in} AND server_id = ?"
        f" AND status NOT IN (?, ?){limits}",
        list(dict.fromkeys(notifier_ids)),
        server_id,
        state.value,
        SubscriptionState.DELETED.value,
        *values,
    )
    tx.many(
        "UPDATE subscriptions SET status = ?, error = ?, associated = 0 WHERE subscription_id = ?",
        [(state.value, b"", subscription_id) for (subscription_id,) in rows],
    )
    associations.forget_deleted(tx, server_id, notifier_ids)
    return [subscription_id for (subscription_id,) in rows]


def replace_state(
    tx: Transaction,
    server_id: int,
    before: SubscriptionState,
    after: SubscriptionState,
    *,
    associated: bool | None = None,
    within: IdRange | None = None,
) -> None:
    """Replace the state of all subscriptions of a router that have it."""
    which = "" if associated is None else f" AND associated = {int(associated)}"
    limits, values = _condition(within)
    tx.execute(
        f"UPDATE subscriptions SET status = ? WHERE server_id = ? AND status = ?{which}{limits}",
        (after.value, server_id, before.value, *values),
    )


def all_inactive(tx: Transaction) -> None:
    """Mark ACTIVE subscriptions INACTIVE, as they are when the router starts."""
    tx.execute(
        "UPDATE subscriptions SET status = ? WHERE status = ?",
        (SubscriptionState.INACTIVE.value, SubscriptionState.ACTIVE.value),
    )


def refuse(tx: Transaction, server_id: int, error: bytes, within: IdRange | None = None) -> None:
    """Mark the subscriptions of a router that is not connected to ERR."""
    limits, values = _condition(within)
    tx.execute(
        "UPDATE subscriptions SET status = ?, error = ?"
        f" WHERE server_id = ? AND status IN ({_STATES}){limits}",
        (SubscriptionState.ERR.value, error, server_id, *values),
    )
