"""Observation of pushes: their counters, and their events in the journal."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

from heliograph.journal.events import (
    PushAcceptedColumns,
    PushAttempted,
    PushExpired,
    PushPending,
    PushPendingColumns,
    PushRejected,
    PushRetried,
)
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.ntf.observing.stats import Stats, is_real_device
from heliograph.ntf.store.pending import ExpiredPush
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.push.provider import Accepted, DeviceTokenInvalid, Misconfigured, PushOutcome

__all__ = ["AnsweredPush", "PushObserver", "add_count"]

MODES = {
    PushKind.MESSAGE: "message",
    PushKind.VERIFICATION: "verification",
    PushKind.CHECK: "periodic",
}


class AnsweredPush(NamedTuple):
    """A push and the provider's answer, received at Unix time `at`."""

    push: PendingPush
    outcome: PushOutcome
    at: float


def push_id(token_id: bytes, kind: PushKind, since: float) -> bytes:
    """Return an ID that stays the same while the push is pending."""
    return b"%b %b %d" % (token_id, kind.value.encode(), round(since * 1000))


class PushFields(TypedDict):
    token: bytes
    provider: str
    mode: str
    push: bytes
    attempt: int


class PushColumns(TypedDict):
    token: list[bytes]
    provider: list[str]
    mode: list[str]
    push: list[bytes]
    attempt: list[int]


def push_fields(push: PendingPush) -> PushFields:
    """Return the fields that events of one attempt have in common."""
    return {
        "token": push.token_id,
        "provider": push.device.provider.text,
        "mode": MODES[push.kind],
        "push": push_id(push.token_id, push.kind, push.since),
        "attempt": push.attempts + 1,
    }


def push_columns(pushes: Sequence[PendingPush]) -> PushColumns:
    """Return what `push_fields` returns, column by column."""
    return {
        "token": [push.token_id for push in pushes],
        "provider": [push.device.provider.text for push in pushes],
        "mode": [MODES[push.kind] for push in pushes],
        "push": [push_id(push.token_id, push.kind, push.since) for push in pushes],
        "attempt": [push.attempts + 1 for push in pushes],
    }


def _contents(push: PendingPush) -> tuple[int | None, list[bytes] | None, str | None]:
    """Return the `seq` that a push settles, the nonces in it, and "empty" if it has none."""
    if push.kind is not PushKind.MESSAGE:
        return None, None, None
    return push.seq, [notice.nonce for notice in push.notices], None if push.notices else "empty"


class PushObserver:
    """Counts what becomes of pushes, and records it in the journal."""

    def __init__(
        self, journal: Journal, stats: Stats, own_host: Callable[[str], str | None]
    ) -> None:
        """`own_host` returns the host of an own server's address."""
        self._journal = journal
        self._is_journaling = journal is not NO_JOURNAL
        self._stats = stats
        self._own_host = own_host

    def recovered(self, pushes: Sequence[PendingPush]) -> None:
        """Record pushes that are pending since an earlier run."""
        for push in pushes:
            is_message = push.kind is PushKind.MESSAGE
            self._journal.record(
                PushPending(
                    token=push.token_id,
                    provider=push.device.provider.text,
                    mode=MODES[push.kind],
                    push=push_id(push.token_id, push.kind, push.since),
                    attempt=0,
                    notifications=[notice.nonce for notice in push.notices] if is_message else None,
                    through=push.seq if is_message else None,
                    reason="recovered",
                )
            )

    def pending(self, pushes: Sequence[PendingPush]) -> None:
        if self._is_journaling and pushes:
            through = [push.seq if push.kind is PushKind.MESSAGE else None for push in pushes]
            columns = PushPendingColumns(**push_columns(pushes), through=through)
            self._journal.record_columns(columns)

    def attempted(self, push: PendingPush) -> None:
        if push.attempts and is_real_device(push.device):
            self._stats.counters.ntf_retried += 1
        if self._is_journaling:
            self._journal.record(PushAttempted(**push_fields(push)))

    async def answered(self, answered: Sequence[AnsweredPush]) -> None:
        """Record outcomes; return once they are on disk, so that the store may change after.

        The pipeline's ledger is made from these events: see `heliograph.pipeline.jobs.ledger`.
        """
        for item in answered:
            if is_real_device(item.push.device):
                self._count_answered(*item)
        if self._is_journaling:
            self._record_answered(answered)
            await self._journal.synced()

    def expired(self, expired: Sequence[ExpiredPush]) -> None:
        self._stats.counters.ntf_expired += len(expired)
        for item in expired:
            self._journal.record(
                PushExpired(
                    token=item.token_id,
                    provider=item.provider,
                    mode=MODES[item.kind],
                    push=push_id(item.token_id, item.kind, item.since),
                    attempt=item.attempts,
                    reason="ttl",
                    through=item.seq if item.kind is PushKind.MESSAGE else None,
                )
            )

    def _record_answered(self, answered: Sequence[AnsweredPush]) -> None:
        accepted = []
        for item in answered:
            outcome = item.outcome
            if isinstance(outcome, Accepted):
                accepted.append((item.push, outcome.code))
                continue
            fields = push_fields(item.push)
            if isinstance(outcome, DeviceTokenInvalid):
                event = PushRejected(reason=outcome.reason.value, code=outcome.code, **fields)
                self._journal.record(event)
            else:
                status = "refused" if isinstance(outcome, Misconfigured) else "later"
                reason, code = outcome.reason, outcome.code
                self._journal.record(PushRetried(reason=reason, status=status, code=code, **fields))
        if accepted:
            pushes, codes = zip(*accepted, strict=True)
            through, notifications, reasons = zip(*map(_contents, pushes), strict=True)
            self._journal.record_columns(
                PushAcceptedColumns(
                    **push_columns(pushes),
                    through=through,
                    notifications=notifications,
                    reason=reasons,
                    code=codes,
                )
            )

    def _count_answered(self, push: PendingPush, outcome: PushOutcome, at: float) -> None:
        accepted = isinstance(outcome, Accepted)
        counters = self._stats.counters
        self._stats.answered(push.device.provider.text, accepted)
        if not isinstance(outcome, Accepted):
            reason = outcome.reason
            self._stats.failed(reason if isinstance(reason, str) else reason.value)
        match push.kind, accepted:
            case PushKind.VERIFICATION, True:
                counters.ntf_vrf_delivered += 1
            case PushKind.VERIFICATION, False if isinstance(outcome, DeviceTokenInvalid):
                counters.ntf_vrf_invalid_tkn += 1
            case PushKind.VERIFICATION, False:
                counters.ntf_vrf_failed += 1
            case PushKind.CHECK, True:
                counters.ntf_cron_delivered += 1
            case PushKind.CHECK, False:
                counters.ntf_cron_failed += 1
            case PushKind.MESSAGE, True:
                counters.ntf_delivered += 1
                self._stats.push_latency.observe(at - push.since)
                self._count_own(counters.delivered_own, push)
            case PushKind.MESSAGE, False:
                counters.ntf_failed += 1
                self._count_own(counters.failed_own, push)

    def _count_own(self, counts: dict[str, int], push: PendingPush) -> None:
        """Count a push for the own server of its newest notification."""
        if push.notices:
            host = self._own_host(push.notices[-1].address)
            if host is not None:
                add_count(counts, host, 1)


def add_count(counts: dict[str, int], host: str, number: int) -> None:
    counts[host] = counts.get(host, 0) + number
