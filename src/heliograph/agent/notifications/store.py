"""Tokens and subscriptions in the agent's store: functions of a transaction."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from heliograph.agent.keys import Vault
from heliograph.agent.notifications.records import (
    NtfSubscription,
    NtfToken,
    SubAction,
    SubscriptionStage,
    TokenAction,
    TokenToDelete,
)
from heliograph.agent.notifications.subscription import Intervals
from heliograph.crypto.keys import KeyPair
from heliograph.db.dialects import Row, Transaction
from heliograph.wire.addresses import ServerAddress, decode_address
from heliograph.wire.ntf.tokens import (
    DeviceToken,
    NotificationsMode,
    SubscriptionState,
    TokenStatus,
    device_token,
)
from heliograph.wire.primitives import Reader

_decode = lru_cache(maxsize=256)(decode_address)


@lru_cache(maxsize=256)
def _address(address: ServerAddress) -> str:
    """Return an address as text with brackets around IPv6, so that a port can be parsed."""
    return str(address)


# The token.


def load_token(tx: Transaction, vault: Vault) -> NtfToken | None:
    rows = tx.query(
        "SELECT device, ntf_address, auth_public, auth_private, dh_public, dh_private, mode,"
        " token_id, dh_secret, status, action, code, cron_minutes, created_at, checked_at"
        " FROM ntf_token"
    )
    if not rows:
        return None
    device, address, auth, auth_private, dh, dh_private, mode, *registration = rows[0]
    token_id, dh_secret, status, action, code, cron_minutes, *times = registration
    created_at, checked_at = times
    return NtfToken(
        _open_device(vault, device),
        decode_address(address),
        KeyPair(auth, vault.open(auth_private)),
        KeyPair(dh, vault.open(dh_private)),
        NotificationsMode(mode),
        token_id,
        vault.open(dh_secret),
        TokenStatus(status),
        None if action is None else TokenAction(action),
        vault.open(code),
        cron_minutes,
        created_at / 1000,
        checked_at / 1000,
    )


def save_token(tx: Transaction, vault: Vault, token: NtfToken | None) -> None:
    tx.execute("DELETE FROM ntf_token")
    if token is None:
        return
    device, address = vault.seal(device_token.encode(token.device)), _address(token.ntf_address)
    tx.execute(
        "INSERT INTO ntf_token (id, device, ntf_address, auth_public, auth_private, dh_public,"
        " dh_private, mode, token_id, dh_secret, status, action, code, cron_minutes, created_at,"
        " checked_at) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            device,
            address,
            token.auth_keys.public,
            vault.seal(token.auth_keys.private),
            token.dh_keys.public,
            vault.seal(token.dh_keys.private),
            token.mode.value,
            token.token_id,
            vault.seal(token.dh_secret),
            token.status.value,
            None if token.action is None else token.action.value,
            vault.seal(token.code),
            token.cron_minutes,
            _ms(token.created_at),
            _ms(token.checked_at),
        ),
    )
    tx.execute("DELETE FROM ntf_last_device")
    tx.execute(
        "INSERT INTO ntf_last_device (id, device, ntf_address) VALUES (1, ?, ?)", (device, address)
    )


def load_last_device(tx: Transaction, vault: Vault) -> tuple[DeviceToken, ServerAddress] | None:
    """Return the device that was registered last, also if notifications are off now."""
    rows = tx.query("SELECT device, ntf_address FROM ntf_last_device")
    return (_open_device(vault, rows[0][0]), decode_address(rows[0][1])) if rows else None


def _open_device(vault: Vault, sealed: bytes) -> DeviceToken:
    return device_token.decode(Reader(vault.open(sealed)))


# Tokens to delete.


def queue_deletion(tx: Transaction, vault: Vault, token: NtfToken, now: float) -> None:
    """Store a token to be deleted at its router, in the transaction that removes it here."""
    tx.execute(
        "INSERT INTO ntf_tokens_to_delete"
        " (token_id, ntf_address, auth_private, due, attempts, created_at)"
        " VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT (token_id) DO NOTHING",
        (
            token.token_id,
            _address(token.ntf_address),
            vault.seal(token.auth_keys.private),
            _ms(now),
            _ms(now),
        ),
    )


def routers_to_delete_at(tx: Transaction) -> list[ServerAddress]:
    rows = tx.query("SELECT DISTINCT ntf_address FROM ntf_tokens_to_delete")
    return [decode_address(address) for (address,) in rows]


def tokens_to_delete(
    tx: Transaction, vault: Vault, address: ServerAddress, now: float, longest: float, limit: int
) -> list[TokenToDelete]:
    rows = tx.query(
        "SELECT token_id, auth_private, attempts FROM ntf_tokens_to_delete"
        " WHERE ntf_address = ? AND (due <= ? OR due > ?) ORDER BY created_at LIMIT ?",
        (_address(address), _ms(now), _ms(now + longest), limit),
    )
    return [
        TokenToDelete(token_id, address, vault.open(key), attempts)
        for token_id, key, attempts in rows
    ]


def next_deletion(tx: Transaction, address: ServerAddress) -> float | None:
    [[due]] = tx.query(
        "SELECT MIN(due) FROM ntf_tokens_to_delete WHERE ntf_address = ?", (_address(address),)
    )
    return None if due is None else due / 1000


def remove_deletions(tx: Transaction, token_ids: Iterable[bytes]) -> None:
    tx.many(
        "DELETE FROM ntf_tokens_to_delete WHERE token_id = ?",
        [(token_id,) for token_id in token_ids],
    )


def delay_deletion(tx: Transaction, token_id: bytes, due: float) -> None:
    tx.execute(
        "UPDATE ntf_tokens_to_delete SET due = ?, attempts = attempts + 1 WHERE token_id = ?",
        (_ms(due), token_id),
    )


# Subscriptions.

_SELECT = (
    "SELECT conn_id, smp_address, ntf_address, notifier_id, token_id, subscription_id, stage,"
    " state, action, due, attempts, revision FROM ntf_subscriptions"
)


def find_subscriptions(tx: Transaction, conn_ids: Sequence[str]) -> dict[str, NtfSubscription]:
    rows = tx.query_in(f"{_SELECT} WHERE conn_id IN {{in}}", conn_ids)
    return {row[0]: _subscription(row) for row in rows}


def all_subscriptions(tx: Transaction) -> list[NtfSubscription]:
    return [_subscription(row) for row in tx.query(f"{_SELECT} ORDER BY conn_id")]


def put_subscriptions(tx: Transaction, subs: Iterable[NtfSubscription]) -> None:
    """Store subscriptions for the supervisor; pending results of workers for them become void."""
    tx.many(
        "INSERT INTO ntf_subscriptions (conn_id, smp_address, ntf_address, notifier_id, token_id,"
        " subscription_id, stage, state, action, due, attempts, revision)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (conn_id) DO UPDATE SET"
        " smp_address = excluded.smp_address, ntf_address = excluded.ntf_address,"
        " notifier_id = excluded.notifier_id, token_id = excluded.token_id,"
        " subscription_id = excluded.subscription_id, stage = excluded.stage,"
        " state = excluded.state, action = excluded.action, due = excluded.due,"
        " attempts = excluded.attempts, revision = excluded.revision",
        [_row(sub) for sub in subs],
    )


def is_current(tx: Transaction, sub: NtfSubscription) -> bool:
    """Return whether the supervisor has not changed it since a worker read it."""
    rows = tx.query(
        "SELECT 1 FROM ntf_subscriptions WHERE conn_id = ? AND revision = ?",
        (sub.conn_id, sub.revision),
    )
    return bool(rows)


def store_results(
    tx: Transaction, results: Iterable[tuple[NtfSubscription, NtfSubscription | None]]
) -> None:
    """Store a worker's results (before, after), except where the supervisor made changes."""
    put = []
    for before, now in results:
        if not is_current(tx, before):
            continue
        if now is None:
            remove_subscriptions(tx, [before.conn_id])
        elif now != before:
            put.append(now)
    put_subscriptions(tx, put)


def remove_subscriptions(tx: Transaction, conn_ids: Iterable[str]) -> None:
    tx.many("DELETE FROM ntf_subscriptions WHERE conn_id = ?", [(conn_id,) for conn_id in conn_ids])


def subscriptions_due(
    tx: Transaction,
    column: str,
    address: ServerAddress,
    actions: Sequence[SubAction],
    intervals: Intervals,
    now: float,
    limit: int,
) -> list[NtfSubscription]:
    """Return the subscriptions of one router that `is_due` selects.

    `column` says which kind of router.
    """
    found: list[NtfSubscription] = []
    for action in actions:
        rows = tx.query(
            f"{_SELECT} WHERE {_COLUMNS[column]} = ? AND action = ?"
            " AND (due <= ? OR due > ?) ORDER BY due LIMIT ?",
            (
                _address(address),
                action.value,
                _ms(now),
                _ms(now + intervals.longest(action)),
                limit - len(found),
            ),
        )
        found += map(_subscription, rows)
    return found


def next_due(
    tx: Transaction, column: str, address: ServerAddress, actions: Sequence[SubAction]
) -> float | None:
    [[due]] = tx.query(
        f"SELECT MIN(due) FROM ntf_subscriptions WHERE {_COLUMNS[column]} = ?"
        f" AND action IN ({_marks(actions)})",
        (_address(address), *(action.value for action in actions)),
    )
    return None if due is None else due / 1000


def routers_with_work(
    tx: Transaction, column: str, actions: Sequence[SubAction]
) -> list[ServerAddress]:
    rows = tx.query(
        f"SELECT DISTINCT {_COLUMNS[column]} FROM ntf_subscriptions"
        f" WHERE action IN ({_marks(actions)})",
        [action.value for action in actions],
    )
    return [decode_address(address) for (address,) in rows]


_COLUMNS = {"smp": "smp_address", "ntf": "ntf_address"}


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _row(sub: NtfSubscription) -> Row:
    return (
        sub.conn_id,
        _address(sub.smp_address),
        _address(sub.ntf_address),
        sub.notifier_id,
        sub.token_id,
        sub.subscription_id,
        sub.stage.value,
        None if sub.state is None else sub.state.value,
        None if sub.action is None else sub.action.value,
        _ms(sub.due),
        sub.attempts,
        sub.revision,
    )


def _subscription(row: Row) -> NtfSubscription:
    conn_id, smp_address, ntf_address, *ids, stage, state, action, due, attempts, revision = row
    notifier_id, token_id, subscription_id = ids
    return NtfSubscription(
        conn_id,
        _decode(smp_address),
        _decode(ntf_address),
        notifier_id,
        token_id,
        subscription_id,
        SubscriptionStage(stage),
        None if state is None else SubscriptionState(state),
        None if action is None else SubAction(action),
        due / 1000,
        attempts,
        revision,
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
