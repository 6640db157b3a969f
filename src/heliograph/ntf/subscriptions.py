"""Subscriptions and messaging routers in the store: functions of a transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from heliograph.db.dialects import MAX_IN, Row, Transaction
from heliograph.ntf.lifecycle import may_subscribe
from heliograph.ntf.records import QueueKey, Subscription
from heliograph.wire.tokens import SubscriptionState, SubscriptionStatus, TokenStatus

COLUMNS = (
    "subscription_id, token_id, server_id, notifier_id, notifier_key, status, error, associated"
)
_SERVER = "server_id, address, service_chain, service_key, service_id"
_SUBSCRIBABLE = ("NEW", "PENDING", "ACTIVE", "INACTIVE", "SERVICE", "ERR")
_STATES = ", ".join(f"'{state}'" for state in _SUBSCRIBABLE)


@dataclass(frozen=True, slots=True)
class NewSubscription:
    subscription_id: bytes
    token_id: bytes
    address: str
    notifier_id: bytes
    notifier_key: bytes


class Refusal(Enum):
    NOT_ALLOWED = "the token may not subscribe, or the queue is another token's or key's"
    TOO_MANY = "the token has as many subscriptions as it may have"


class Server(NamedTuple):
    server_id: int
    address: str
    service_chain: bytes | None = None
    service_key: bytes | None = None
    service_id: bytes | None = None


class Added(NamedTuple):
    subscription: Subscription
    server: Server
    is_new: bool


def subscription_of(row: Row) -> Subscription:
    *own, state, error, associated = row
    status = SubscriptionStatus(SubscriptionState(state), error)
    subscription_id, token_id, server_id, notifier_id, notifier_key = own
    return Subscription(
        subscription_id, token_id, server_id, notifier_id, notifier_key, status, bool(associated)
    )


def find_many(tx: Transaction, subscription_ids: Sequence[bytes]) -> list[Subscription]:
    rows = tx.query_in(
        f"SELECT {COLUMNS} FROM subscriptions WHERE subscription_id IN {{in}}", subscription_ids
    )
    return [subscription_of(row) for row in rows]


def add(tx: Transaction, new: NewSubscription, limit: int | None = None) -> Added | Refusal:
    """A new subscription, or the one there is for the same token, queue and key."""
    [added] = add_many(tx, [new], limit)
    return added


def add_many(
    tx: Transaction, many: Sequence[NewSubscription], limit: int | None = None
) -> list[Added | Refusal]:
    """As each by itself, one after another, but for a few statements in all."""
    token_ids = list(dict.fromkeys(new.token_id for new in many))
    allowed = _allowed(tx, token_ids)
    counts = {} if limit is None else _counts(tx, token_ids)
    at = _servers_at(tx, list(dict.fromkeys(new.address for new in many)))
    known = _known(tx, at, many)
    results: list[Added | Refusal] = []
    made: list[Row] = []
    for new in many:
        if new.token_id not in allowed:
            results.append(Refusal.NOT_ALLOWED)
            continue
        old = known.get((new.address, new.notifier_id))
        if old is not None:
            same = (old.token_id, old.notifier_key) == (new.token_id, new.notifier_key)
            added = Added(old, at[new.address], is_new=False)
            results.append(added if same else Refusal.NOT_ALLOWED)
            continue
        if limit is not None and counts.get(new.token_id, 0) >= limit:
            results.append(Refusal.TOO_MANY)
            continue
        if new.address not in at:
            at[new.address] = server(tx, server_for(tx, new.address))
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


def _servers_at(tx: Transaction, addresses: Sequence[str]) -> dict[str, Server]:
    rows = tx.query_in(f"SELECT {_SERVER} FROM servers WHERE address IN {{in}}", addresses)
    return {row[1]: Server(*row) for row in rows}


def _known(
    tx: Transaction, at: dict[str, Server], many: Sequence[NewSubscription]
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
        SubscriptionStatus(SubscriptionState.PENDING),
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
    for table in ("subscriptions", "last_notifications"):
        tx.execute(f"DELETE FROM {table} WHERE subscription_id = ?", (subscription_id,))


def server_for(tx: Transaction, address: str) -> int:
    rows = tx.query("SELECT server_id FROM servers WHERE address = ?", (address,))
    if rows:
        return int(rows[0][0])
    [[last]] = tx.query("SELECT COALESCE(MAX(server_id), 0) FROM servers")
    server_id = int(last) + 1
    tx.execute("INSERT INTO servers (server_id, address) VALUES (?, ?)", (server_id, address))
    return server_id


def servers(tx: Transaction) -> list[Server]:
    """Those that have anything to subscribe to."""
    rows = tx.query(
        f"SELECT {_SERVER} FROM servers v"
        " WHERE EXISTS (SELECT 1 FROM subscriptions s WHERE s.server_id = v.server_id)"
        " ORDER BY v.server_id"
    )
    return [Server(*row) for row in rows]


def server(tx: Transaction, server_id: int) -> Server:
    [row] = tx.query(
        f"SELECT {_SERVER} FROM servers WHERE server_id = ?",
        (server_id,),
    )
    return Server(*row)


def set_service(
    tx: Transaction,
    server_id: int,
    chain: bytes | None,
    key: bytes | None,
    service_id: bytes | None,
) -> None:
    tx.execute(
        "UPDATE servers SET service_chain = ?, service_key = ?, service_id = ? WHERE server_id = ?",
        (chain, key, service_id, server_id),
    )


def page(
    tx: Transaction, server_id: int, after: bytes, limit: int, *, associated: bool | None
) -> list[QueueKey]:
    """What is to be subscribed at a router, in order of ID; associated ones or not, or all."""
    which = "" if associated is None else f" AND associated = {int(associated)}"
    rows = tx.query(
        "SELECT subscription_id, notifier_id, notifier_key, status = 'INACTIVE' FROM subscriptions"
        f" WHERE server_id = ? AND subscription_id > ? AND status IN ({_STATES}){which}"
        " ORDER BY subscription_id LIMIT ?",
        (server_id, after, limit),
    )
    return [QueueKey(*row) for row in rows]


def associated_ids(tx: Transaction, server_id: int) -> list[bytes]:
    rows = tx.query(
        "SELECT notifier_id FROM subscriptions WHERE server_id = ? AND associated = 1", (server_id,)
    )
    return [notifier_id for (notifier_id,) in rows]


def set_statuses(
    tx: Transaction, server_id: int, statuses: Iterable[tuple[bytes, SubscriptionStatus, bool]]
) -> None:
    """By notifier ID; the last member says whether it is associated with our service."""
    alike: dict[Row, list[bytes]] = {}
    for notifier_id, status, associated in statuses:
        key = status.state.value, status.error, int(associated)
        alike.setdefault(key, []).append(notifier_id)
    for key, notifier_ids in alike.items():
        for start in range(0, len(notifier_ids), MAX_IN):
            chunk = notifier_ids[start : start + MAX_IN]
            tx.execute(
                "UPDATE subscriptions SET status = ?, error = ?, associated = ?"
                f" WHERE server_id = ? AND notifier_id IN ({', '.join('?' * len(chunk))})",
                (*key, server_id, *chunk),
            )


def confirm(
    tx: Transaction, server_id: int, first: bytes, last: bytes, which: bool | None, associated: bool
) -> None:
    """From the `first` to the `last` subscription, what is inactive is active; `which` as above."""
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
    tx: Transaction, server_id: int, notifier_ids: Sequence[bytes], state: SubscriptionState
) -> list[bytes]:
    """They are no longer ours, nor our service's. The result are the subscriptions' IDs."""
    tx.many(
        "UPDATE subscriptions SET status = ?, error = ?, associated = 0"
        " WHERE server_id = ? AND notifier_id = ?",
        [(state.value, b"", server_id, notifier_id) for notifier_id in notifier_ids],
    )
    rows = tx.query_in(
        "SELECT subscription_id FROM subscriptions WHERE notifier_id IN {in} AND server_id = ?",
        notifier_ids,
        server_id,
    )
    return [subscription_id for (subscription_id,) in rows]


def replace_state(
    tx: Transaction,
    server_id: int,
    before: SubscriptionState,
    after: SubscriptionState,
    *,
    associated: bool | None = None,
) -> None:
    """All of a router at once."""
    which = "" if associated is None else f" AND associated = {int(associated)}"
    tx.execute(
        f"UPDATE subscriptions SET status = ? WHERE server_id = ? AND status = ?{which}",
        (after.value, server_id, before.value),
    )


def all_inactive(tx: Transaction) -> None:
    """Nothing is subscribed when a router starts, whatever it wrote before it was killed."""
    tx.execute(
        "UPDATE subscriptions SET status = ? WHERE status = ?",
        (SubscriptionState.INACTIVE.value, SubscriptionState.ACTIVE.value),
    )


def refuse(tx: Transaction, server_id: int, error: bytes) -> None:
    """All that would be subscribed at a router, which we do not connect to."""
    tx.execute(
        "UPDATE subscriptions SET status = ?, error = ?"
        f" WHERE server_id = ? AND status IN ({_STATES})",
        (SubscriptionState.ERR.value, error, server_id),
    )


def clear_association(tx: Transaction, server_id: int) -> None:
    tx.execute(
        "UPDATE subscriptions SET associated = 0 WHERE server_id = ? AND associated = 1",
        (server_id,),
    )
    set_service(tx, server_id, None, None, None)
