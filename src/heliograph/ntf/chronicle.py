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
_KNOWN = ("notification", "token", "subscription", "provider")
_OF_FATE = {
    Fate.STORED: (*_KNOWN, "ntf_seq"),
    Fate.REPEATED: _KNOWN,
    Fate.DROPPED: (*_KNOWN, "status"),
    Fate.UNKNOWN: ("notification", "subscription"),
}
"""The columns of each fate."""
_OF_FATED = ("notification", "at", "ntf_seq", "fate", "token", "subscription", "provider", "status")
"""The column of each field of `Fated`."""


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

    def token_verified(self, token: Token, repeated: bool) -> None:
        """`repeated` if it was active before: its owner did not hear of it."""
        columns = {"reason": "repeated"} if repeated else {}
        self.token("token_active", token.token_id, token.device, **columns)

    def token_deleted(self, token: Token) -> None:
        self.token("token_deleted", token.token_id, token.device, through=self._last_seq())

    def token_superseded(self, token_id: bytes) -> None:
        through = self._last_seq()
        self.journal("token_deleted", token=token_id, through=through, reason="superseded")

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
        fated = stored.fated
        if not fated:
            return
        host = self._server(server).host
        own = {"own_server": host is not None, "smp_host": host}
        columns = _columns(fated)
        received = {name: columns[name] for name in ("notification", "at")}
        self.journal.many("nmsg_received", len(fated), **received, **own)
        for fate in {*columns["fate"]}:
            some = [item for item in fated if item.fate is fate]
            if len(some) < len(fated):
                columns = _columns(some)
            known = {name: columns[name] for name in _OF_FATE[fate]}
            self.journal.many(f"nmsg_{fate.value}", len(some), **known, **own)
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

    def owed(self, owed: Sequence[Owed]) -> None:
        if self._is_kept and owed:
            through = [item.seq if item.kind is DebtKind.MESSAGE else None for item in owed]
            self.journal.many("push_owed", len(owed), **_pushes(owed), through=through)

    def attempted(self, owed: Owed) -> None:
        if self._is_kept:
            self.journal("push_attempted", **self._push(owed))

    async def settled(self, settled: Iterable[tuple[Owed, Outcome]]) -> None:
        """Returns once it is on disk: the store may then forget what was owed."""
        if not self._is_kept:
            return
        accepted = []
        for owed, outcome in settled:
            if isinstance(outcome, Accepted):
                accepted.append((owed, outcome.code))
                continue
            columns = self._push(owed)
            if outcome.code is not None:
                columns["code"] = outcome.code
            if isinstance(outcome, TokenInvalid):
                self.journal("push_rejected", reason=outcome.reason.value, **columns)
            else:
                columns["status"] = "refused" if isinstance(outcome, Refused) else "later"
                self.journal("push_retried", reason=outcome.reason, **columns)
        if accepted:
            pushes, codes = zip(*accepted, strict=True)
            through, notifications, reason = zip(*map(_carried, pushes), strict=True)
            self.journal.many(
                "push_accepted",
                len(accepted),
                **_pushes(pushes),
                through=through,
                notifications=notifications,
                reason=reason,
                code=codes,
            )
        await self.journal.synced()

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


def _columns(fated: Sequence[Fated]) -> dict[str, tuple[Any, ...]]:
    return dict(zip(_OF_FATED, zip(*fated, strict=True), strict=True))


def _pushes(owed: Sequence[Owed]) -> dict[str, list[Any]]:
    """As `_push`, for many."""
    return {
        "token": [item.token_id for item in owed],
        "provider": [item.device.provider.text for item in owed],
        "mode": [_MODES[item.kind] for item in owed],
        "push": [_push_id(item.token_id, item.kind, item.since) for item in owed],
        "attempt": [item.attempts + 1 for item in owed],
    }


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
