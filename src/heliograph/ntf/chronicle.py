"""What the notification router tells its journal: which event, with which columns.

IDs go in as they are; the journal writes hashes of them. See `heliograph.journal.schema`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from heliograph.journal.chronicle import RouterChronicle
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.ntf.debts import Expired, Fate, Fated, Stored
from heliograph.ntf.records import DebtKind, Owed, Token
from heliograph.push.provider import Accepted, Outcome, Refused, TokenInvalid
from heliograph.wire.tokens import DeviceToken, SubscriptionState

__all__ = ["Account", "Chronicle", "ServerName"]

_MODES = {
    DebtKind.MESSAGE: "message",
    DebtKind.VERIFICATION: "verification",
    DebtKind.CHECK: "periodic",
}
_PUSH = ("token", "provider", "mode", "push", "attempt")
_KNOWN = ("notification", "token", "subscription", "provider")
_OF_FATE: dict[Fate, tuple[tuple[str, ...], Callable[[Fated], tuple[Any, ...]]]] = {
    Fate.STORED: (
        (*_KNOWN, "ntf_seq"),
        lambda item: (item.nonce, item.token_id, item.subscription_id, item.provider, item.seq),
    ),
    Fate.REPEATED: (
        _KNOWN,
        lambda item: (item.nonce, item.token_id, item.subscription_id, item.provider),
    ),
    Fate.DROPPED: (
        (*_KNOWN, "status"),
        lambda item: (item.nonce, item.token_id, item.subscription_id, item.provider, item.status),
    ),
    Fate.UNKNOWN: (("notification",), lambda item: (item.nonce,)),
}
"""The columns of each fate, and what is in them."""


class ServerName(NamedTuple):
    """A messaging router: `host` only if it is our own."""

    address: str
    host: str | None


@dataclass(frozen=True, slots=True)
class Account:
    """How many queues are subscribed, and the hash of their IDs, if there is one."""

    count: int
    ids_hash: bytes | None = None


class Chronicle(RouterChronicle):
    """`last_seq` tells the `seq` of the newest notification, `server` names a router by its ID."""

    def __init__(
        self, journal: Journal, last_seq: Callable[[], int], server: Callable[[int], ServerName]
    ) -> None:
        super().__init__(journal)
        self._is_kept = journal is not NO_JOURNAL
        self._last_seq = last_seq
        self._server = server

    # The router.

    def started(self) -> None:
        self.journal("router_started", through=self._last_seq())

    def recovered(self, owed: Sequence[Owed]) -> None:
        """Some of what the store owes since an earlier run."""
        for item in owed:
            columns = self._push(item)
            columns["attempt"] = 0
            if item.kind is DebtKind.MESSAGE:
                columns["notifications"] = [notice.nonce for notice in item.notices]
                columns["through"] = item.seq
            self.journal("push_owed", reason="recovered", **columns)

    def all_recovered(self, count: int, through: int) -> None:
        self.journal("router_recovered", count=count, through=through)

    # Tokens and subscriptions.

    def token(self, kind: str, token_id: bytes, device: DeviceToken, **columns: Any) -> None:
        self.journal(kind, token=token_id, provider=device.provider.text, **columns)

    def token_ended(self, token: Token) -> None:
        """The store has nothing of it any more, and takes nothing for it."""
        status = token.status.value
        through = self._last_seq()
        self.token("token_invalid", token.token_id, token.device, status=status, through=through)

    def token_deleted(self, token_id: bytes, reason: str | None = None) -> None:
        columns: dict[str, Any] = {} if reason is None else {"reason": reason}
        self.journal("token_deleted", token=token_id, through=self._last_seq(), **columns)

    def subscription_created(self, token_id: bytes, subscription_id: bytes, server: int) -> None:
        self.journal(
            "subscription_created",
            token=token_id,
            subscription=subscription_id,
            **self._own(server),
        )

    def subscription_deleted(self, token_id: bytes, subscription_id: bytes) -> None:
        self.journal(
            "subscription_deleted",
            token=token_id,
            subscription=subscription_id,
            through=self._last_seq(),
        )

    def subscription_statuses(
        self, server: int, statuses: Iterable[tuple[bytes, SubscriptionState]]
    ) -> None:
        """By subscription ID."""
        own = self._own(server)
        for subscription_id, state in statuses:
            self.journal(
                "subscription_status", subscription=subscription_id, status=state.value, **own
            )

    # Messaging routers.

    def smp(self, kind: str, server: int, **columns: Any) -> None:
        name = self._server(server)
        self.journal(kind, server=name.address.encode(), **_own(name.host), **columns)

    def smp_subscribed(self, server: int, found: Account, expected: Account) -> None:
        reason = {} if found.ids_hash is None else {"reason": "service"}
        self.smp("smp_subscribed", server, **_accounts(found, expected), **reason)

    def smp_drift(self, server: int, found: Account | None, expected: Account | None) -> None:
        self.smp("smp_drift", server, **_accounts(found, expected))

    # Notifications.

    def stored(self, server: int, stored: Stored) -> None:
        if not self._is_kept:
            return
        host = self._server(server).host
        own = host is not None, host
        fated = stored.fated
        self.journal.many(
            "nmsg_received",
            ("at", "notification", "own_server", "smp_host"),
            [(item.at, item.nonce, *own) for item in fated],
        )
        for fate in {item.fate for item in fated}:
            columns, values = _OF_FATE[fate]
            self.journal.many(
                f"nmsg_{fate.value}",
                (*columns, "own_server", "smp_host"),
                [(*values(item), *own) for item in fated if item.fate is fate],
            )
        self.owed(stored.owed)
        due = {item.token_id for item in stored.owed}
        providers = {item.token_id: item.provider for item in fated}
        for token_id, seq in stored.newest.items():
            if token_id not in due:
                provider = providers[token_id]
                self.journal(
                    "push_owed", token=token_id, provider=provider, mode="message", through=seq
                )

    # Pushes.

    def owed(self, owed: Iterable[Owed]) -> None:
        rows = [
            (*self._push(item).values(), item.seq if item.kind is DebtKind.MESSAGE else None)
            for item in owed
        ]
        self.journal.many("push_owed", (*_PUSH, "through"), rows)

    def attempted(self, owed: Owed) -> None:
        if self._is_kept:
            self.journal("push_attempted", **self._push(owed))

    def settled(self, settled: Iterable[tuple[Owed, Outcome]]) -> None:
        """The store has it."""
        if not self._is_kept:
            return
        accepted = []
        for owed, outcome in settled:
            columns = self._push(owed)
            if isinstance(outcome, Accepted):
                accepted.append((*columns.values(), *_carried(owed)))
            elif isinstance(outcome, TokenInvalid):
                self.journal("push_rejected", reason=outcome.reason.value, **columns)
            else:
                columns["status"] = "refused" if isinstance(outcome, Refused) else "later"
                self.journal("push_retried", reason=outcome.reason, **columns)
        self.journal.many("push_accepted", (*_PUSH, "through", "notifications", "reason"), accepted)

    def expired(self, expired: Iterable[Expired]) -> None:
        for item in expired:
            columns: dict[str, Any] = {
                "token": item.token_id,
                "provider": item.provider,
                "mode": _MODES[item.kind],
                "push": _push_id(item.token_id, item.kind, item.since),
                "attempt": item.attempts,
                "reason": "ttl",
            }
            if item.kind is DebtKind.MESSAGE:
                columns["through"] = item.seq
            self.journal("push_expired", **columns)

    def _push(self, owed: Owed) -> dict[str, Any]:
        return {
            "token": owed.token_id,
            "provider": owed.device.provider.text,
            "mode": _MODES[owed.kind],
            "push": _push_id(owed.token_id, owed.kind, owed.since),
            "attempt": owed.attempts + 1,
        }

    def _own(self, server: int) -> dict[str, Any]:
        return _own(self._server(server).host)


def _own(host: str | None) -> dict[str, Any]:
    return {"own_server": False} if host is None else {"own_server": True, "smp_host": host}


def _accounts(found: Account | None, expected: Account | None) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for prefix, account in (("", found), ("expected_", expected)):
        if account is not None:
            columns[f"{prefix}count"] = account.count
            if account.ids_hash is not None:
                columns[f"{prefix}hash"] = account.ids_hash
    return columns


def _carried(owed: Owed) -> tuple[int | None, list[bytes] | None, str | None]:
    """What an accepted push settles, what it carried, and the reason if that is nothing."""
    if owed.kind is not DebtKind.MESSAGE:
        return None, None, None
    return owed.seq, [notice.nonce for notice in owed.notices], None if owed.notices else "empty"


def _push_id(token_id: bytes, kind: DebtKind, since: float) -> bytes:
    """What is owed keeps it as long as it is owed."""
    return b"%b %b %d" % (token_id, kind.value.encode(), round(since * 1000))
