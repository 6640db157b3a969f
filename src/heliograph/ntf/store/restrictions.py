"""Temporary restrictions against abuse: throttles, pauses and alerts that actions put in force.

They are rows of the store, and a copy of the few that there are in memory, so that they cost
nothing where there are none. Each ends by itself at `until`, whether or not its row is removed.
A throttled token or subscription loses nothing: its notifications wait for the next slot, where
one push carries the newest of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from heliograph.actions.contract import EVERYTHING, ActionKind
from heliograph.db.dialects import Transaction
from heliograph.ntf.store.records import PushKind

__all__ = ["NO_RESTRICTIONS", "PUSH_INTERVAL", "Restriction", "Restrictions", "read_restrictions"]

PUSH_INTERVAL = 60_000
"""Milliseconds between pushes to a throttled token."""
_MESSAGE = PushKind.MESSAGE.value
_ALL_SOURCES = bytes.fromhex(EVERYTHING)


class Restriction(NamedTuple):
    """A restriction in force. `until` is in milliseconds; `rate` is that of a messaging router.

    `token_id` is set for subscriptions; `finding` says why.
    """

    kind: ActionKind
    subject: bytes
    until: int
    rate: int = 0
    finding: str = ""
    token_id: bytes = b""


def read_restrictions(tx: Transaction) -> list[Restriction]:
    """Return all rows, also those whose time is over."""
    rows = tx.query(
        "SELECT r.kind, r.subject, r.until, r.rate, r.finding, s.token_id FROM restrictions r"
        " LEFT JOIN subscriptions s ON s.subscription_id = r.subject"
    )
    return [
        Restriction(ActionKind(kind), bytes(subject), until, rate, finding, bytes(token_id or b""))
        for kind, subject, until, rate, finding, token_id in rows
    ]


class Restrictions:
    """Restrictions of the store, as of the last `replace`; the longest of a subject counts."""

    def __init__(self) -> None:
        self._restrictions: tuple[Restriction, ...] = ()
        self._until: dict[ActionKind, dict[bytes, int]] = {}
        self._rates: dict[int, Restriction] = {}
        self._tokens: dict[bytes, list[Restriction]] = {}

    def __iter__(self) -> Iterator[Restriction]:
        return iter(self._restrictions)

    def replace(self, restrictions: Iterable[Restriction]) -> None:
        self._restrictions = tuple(restrictions)
        until: dict[ActionKind, dict[bytes, int]] = defaultdict(dict)
        self._rates, tokens = {}, defaultdict(list)
        for item in self._restrictions:
            known = until[item.kind]
            known[item.subject] = max(item.until, known.get(item.subject, 0))
            if item.kind is ActionKind.THROTTLE_SERVER:
                server_id = int(item.subject)
                best = self._rates.get(server_id)
                if best is None or (item.rate, -item.until) < (best.rate, -best.until):
                    self._rates[server_id] = item
            elif item.kind is ActionKind.THROTTLE_TOKEN:
                tokens[item.subject].append(item)
            elif item.kind is ActionKind.THROTTLE_SUBSCRIPTION:
                tokens[item.token_id].append(item)
        self._until, self._tokens = dict(until), dict(tokens)

    def is_restrained(self, token_id: bytes) -> bool:
        """Return whether a token, or a subscription of it, was throttled."""
        return token_id in self._tokens

    def push_at(self, token_id: bytes, subscription_id: bytes, now: int) -> int:
        """Return when a notification may cause a push: now, unless it is throttled."""
        if token_id not in self._tokens:
            return now
        of_token = self._until.get(ActionKind.THROTTLE_TOKEN, {}).get(token_id, 0)
        of_subscription = self._until.get(ActionKind.THROTTLE_SUBSCRIPTION, {})
        until = max(of_token, of_subscription.get(subscription_id, 0))
        return now if until <= now else min(_next_slot(token_id, now), until)

    def rate_of(self, server_id: int, now: int) -> int | None:
        """Return how many notifications a second are read of a router, None if all are."""
        found = self._rates.get(server_id)
        return found.rate if found is not None and found.until > now else None

    def is_paused(self, sources: Iterable[str | None], now: int) -> bool:
        """Return whether new tokens are refused of any of these hashes of a network, or of all."""
        paused = self._until.get(ActionKind.PAUSE_REGISTRATIONS)
        if not paused:
            return False
        keys = (_ALL_SOURCES, *(bytes.fromhex(item) for item in sources if item is not None))
        return any(paused.get(key, 0) > now for key in keys)

    def in_force(self, now: int) -> list[Restriction]:
        return [item for item in self._restrictions if item.until > now]

    # Changes of pending pushes, in the transaction that has caused them.

    def make_due(self, tx: Transaction, due_at: Mapping[bytes, int], now: int) -> None:
        """Make due what waits for a throttled subscription, if another one has a notification."""
        tx.many(
            "UPDATE pending_pushes SET next_at = ?"
            " WHERE token_id = ? AND kind = ? AND attempts = 0 AND next_at > ?",
            [
                (at, token_id, _MESSAGE, at)
                for token_id, at in sorted(due_at.items())
                if at <= now and token_id in self._tokens
            ],
        )

    def slow_down(self, tx: Transaction, accepted: Mapping[bytes, int], now: int) -> None:
        """Postpone what arrived for throttled tokens while a push up to a `seq` was in flight."""
        for token_id, seq in accepted.items():
            if token_id not in self._tokens:
                continue
            rows = tx.query(
                "SELECT subscription_id FROM last_notifications WHERE token_id = ? AND seq > ?",
                (token_id, seq),
            )
            times = [self.push_at(token_id, bytes(item), now) for (item,) in rows]
            if times and min(times) > now:
                tx.execute(
                    "UPDATE pending_pushes SET next_at = ? WHERE token_id = ? AND kind = ?",
                    (min(times), token_id, _MESSAGE),
                )


NO_RESTRICTIONS = Restrictions()
"""Nothing is in force. It is never changed."""


def _next_slot(token_id: bytes, now: int) -> int:
    """Return the end of the interval that `now` is in; each token has its own."""
    phase = int.from_bytes(token_id[:4]) % PUSH_INTERVAL
    return (now - phase) // PUSH_INTERVAL * PUSH_INTERVAL + PUSH_INTERVAL + phase
