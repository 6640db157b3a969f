"""NMSG in the store: the last of each subscription, and a pending push for its token.

Functions of a transaction.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from heliograph.db.dialects import Row, Transaction
from heliograph.ntf.store import owners, pending, repeats, tokens
from heliograph.ntf.store.records import Incoming, PendingPush, PushKind
from heliograph.ntf.store.repeats import History
from heliograph.ntf.store.restrictions import NO_RESTRICTIONS, Restrictions
from heliograph.wire.ntf.tokens import TokenStatus

_UPSERT_NOTIFICATION = (
    "INSERT INTO last_notifications (token_id, subscription_id, seq, timestamp, nonce, meta,"
    " nonces) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (token_id, subscription_id) DO UPDATE SET"
    " seq = excluded.seq, timestamp = excluded.timestamp, nonce = excluded.nonce,"
    " meta = excluded.meta, nonces = excluded.nonces"
)
_ACTIVE = TokenStatus.ACTIVE.value
_ACCEPTS_NOTIFICATIONS = frozenset(
    status.value for status in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE)
)
"""Token statuses for which notifications are stored: ACTIVE, or verifiable and so ACTIVE later."""


class NmsgOutcome(Enum):
    """What the store did with an NMSG."""

    STORED = "stored"
    """Also if a newer NMSG of the same subscription in the same batch replaced it."""
    REPEATED = "repeated"
    UNKNOWN = "unknown"
    DROPPED = "dropped"


class ReceivedNmsg(NamedTuple):
    """An NMSG and its outcome.

    For an unknown notifier, `subscription_id` holds the notifier ID and the token is None.
    """

    nonce: bytes
    at: float
    seq: int
    outcome: NmsgOutcome
    token_id: bytes | None = None
    subscription_id: bytes | None = None
    provider: str | None = None
    status: str | None = None


class StoredBatch(NamedTuple):
    """The result of storing a batch of NMSG.

    `pushes` can be delivered now. `undeliverable` counts those UNKNOWN or DROPPED. `newest` maps
    each token with a pending push to the `seq` that push covers, also if the token cannot be pushed
    to yet.
    """

    pushes: list[PendingPush]
    undeliverable: int
    received: list[ReceivedNmsg]
    newest: dict[bytes, int]


_UNDELIVERABLE = (NmsgOutcome.UNKNOWN, NmsgOutcome.DROPPED)


def receive(
    tx: Transaction,
    server_id: int,
    incoming: Sequence[Incoming],
    seqs: Sequence[int],
    now: int,
    expires_at: int,
    *,
    owner: int | None = None,
    restrictions: Restrictions = NO_RESTRICTIONS,
) -> StoredBatch:
    """Store the last notification of each subscription and a pending push for each token.

    Messaging routers resend what was not confirmed: an NMSG with a stored nonce is a repeat. With
    an `owner`, which claims the pushes, histories of nonces are stored, too: another process may
    get what is resent. The tokens must be locked then, and only claimed pushes are returned. Pushes
    that `restrictions` throttle are due later.
    """
    rows = tx.query_in(
        "SELECT s.notifier_id, s.subscription_id, s.token_id, l.nonce, t.status, t.device,"
        " l.nonces, d.next_push_at"
        " FROM subscriptions s JOIN tokens t ON t.token_id = s.token_id"
        " LEFT JOIN last_notifications l"
        " ON l.token_id = s.token_id AND l.subscription_id = s.subscription_id"
        " LEFT JOIN slowed_tokens d ON d.token_id = s.token_id"
        " WHERE s.notifier_id IN {in} AND s.server_id = ?",
        list({item.notifier_id for item in incoming}),
        server_id,
    )
    histories = {row[0]: History.decode(row[6], row[3]) for row in rows}
    incoming = repeats.mark_repeats(incoming, histories)
    repeats.add(histories, incoming, 1 if owner is None else repeats.MAX_KNOWN)
    last = {
        item.notifier_id: (seq, item)
        for seq, item in zip(seqs, incoming, strict=True)
        if not item.is_repeat
    }
    known = {row[0]: _known(row[1:6], last.get(row[0])) for row in rows}
    received = [
        ReceivedNmsg(item.nonce, item.at, seq, *_outcome(item, known.get(item.notifier_id)))
        for seq, item in zip(seqs, incoming, strict=True)
    ]
    latest: list[Row] = []
    newest: dict[bytes, int] = {}
    places: dict[bytes, tuple[str, str]] = {}
    due_at: dict[bytes, int] = {}
    for notifier_id, (outcome, token_id, subscription_id, *place) in known.items():
        if outcome is NmsgOutcome.STORED:
            seq, item = last[notifier_id]
            history = histories[notifier_id].encode()
            latest.append(
                (token_id, subscription_id, seq, int(item.at), item.nonce, item.meta, history)
            )
            newest[token_id] = max(seq, newest.get(token_id, 0))
            places[token_id] = place[0], place[1]
            at = restrictions.push_at(token_id, subscription_id, now)
            due_at[token_id] = min(at, due_at.get(token_id, at))
    tx.many(_UPSERT_NOTIFICATION, sorted(latest))
    added: list[Row] = [
        tokens.pending_row(
            token_id, PushKind.MESSAGE, places[token_id][0], seq, now, expires_at, due_at[token_id]
        )
        for token_id, seq in sorted(newest.items())
    ]
    if owner is None:
        tx.many(tokens.ADD_PENDING, added)
    else:
        # Not before it can be pushed: the process that verifies the token may do it.
        claims = {item: owner if places[item][1] == _ACTIVE else None for item in newest}
        tx.many(tokens.ADD_CLAIMED, [(*row, claims[row[0]]) for row in added])
    restrictions.make_due(tx, due_at, now)
    slowed = {row[2]: row[7] for row in rows if row[7] is not None and row[2] in newest}
    owners.delay_new(tx, slowed, now, expires_at - now)
    if owner is not None and any(map(restrictions.is_restrained, newest)):
        pushes = pending.claim(tx, pending.due_for(tx, list(newest), now, PushKind.MESSAGE), owner)
    else:
        pushes = pending.due_for(tx, list(newest), now, PushKind.MESSAGE, owner)
    undeliverable = sum(item.outcome in _UNDELIVERABLE for item in received)
    return StoredBatch(pushes, undeliverable, received, newest)


def _outcome(item: Incoming, known: Row | None) -> Row:
    """Return the outcome of one NMSG and its columns."""
    if known is None:
        return NmsgOutcome.UNKNOWN, None, item.notifier_id
    if item.is_repeat and known[0] is NmsgOutcome.STORED:
        return NmsgOutcome.REPEATED, *known[1:]
    return known


def _known(row: Row, last: tuple[int, Incoming] | None) -> Row:
    """Return the outcome of a subscription's NMSG and its columns.

    `last` is the last one that is not known as a repeat. If it is stored already, those before it
    in the batch are repeats too.
    """
    subscription_id, token_id, stored, status, device = row
    if status not in _ACCEPTS_NOTIFICATIONS:
        outcome = NmsgOutcome.DROPPED
    else:
        is_repeat = last is None or stored == last[1].nonce
        outcome = NmsgOutcome.REPEATED if is_repeat else NmsgOutcome.STORED
    return outcome, token_id, subscription_id, device.partition(" ")[0], status
