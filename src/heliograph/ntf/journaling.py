"""Journal events of NMSG and pushes, from the records of the store."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from heliograph.journal.events import (
    EventColumns,
    NmsgDroppedColumns,
    NmsgRepeatedColumns,
    NmsgStoredColumns,
    NmsgUnknownColumns,
    PushAcceptedColumns,
    PushPending,
    PushRejected,
    PushRetried,
)
from heliograph.journal.journal import Journal
from heliograph.ntf.store.pending import NmsgOutcome, ReceivedNmsg
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.push.provider import Accepted, DeviceTokenInvalid, Misconfigured, Outcome

MODES = {
    PushKind.MESSAGE: "message",
    PushKind.VERIFICATION: "verification",
    PushKind.CHECK: "periodic",
}


class SettledPush(NamedTuple):
    """A push and the provider's answer, received at Unix time `at`."""

    push: PendingPush
    outcome: Outcome
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


def recovered(push: PendingPush) -> PushPending:
    """Return the event of a push that is pending since an earlier run."""
    is_message = push.kind is PushKind.MESSAGE
    return PushPending(
        token=push.token_id,
        provider=push.device.provider.text,
        mode=MODES[push.kind],
        push=push_id(push.token_id, push.kind, push.since),
        attempt=0,
        notifications=[notice.nonce for notice in push.notices] if is_message else None,
        through=push.seq if is_message else None,
        reason="recovered",
    )


def record_settled(journal: Journal, settled: Sequence[SettledPush]) -> None:
    """Record the outcomes of delivery attempts."""
    accepted = []
    for item in settled:
        outcome = item.outcome
        if isinstance(outcome, Accepted):
            accepted.append((item.push, outcome.code))
            continue
        fields = push_fields(item.push)
        if isinstance(outcome, DeviceTokenInvalid):
            journal.record(PushRejected(reason=outcome.reason.value, code=outcome.code, **fields))
        else:
            status = "refused" if isinstance(outcome, Misconfigured) else "later"
            reason, code = outcome.reason, outcome.code
            journal.record(PushRetried(reason=reason, status=status, code=code, **fields))
    if accepted:
        pushes, codes = zip(*accepted, strict=True)
        through, notifications, reasons = zip(*map(_contents, pushes), strict=True)
        journal.record_columns(
            PushAcceptedColumns(
                **push_columns(pushes),
                through=through,
                notifications=notifications,
                reason=reasons,
                code=codes,
            )
        )


def _contents(push: PendingPush) -> tuple[int | None, list[bytes] | None, str | None]:
    """Return the `seq` that a push settles, the nonces in it, and "empty" if it has none."""
    if push.kind is not PushKind.MESSAGE:
        return None, None, None
    return push.seq, [notice.nonce for notice in push.notices], None if push.notices else "empty"


def nmsg_columns(
    outcome: NmsgOutcome, some: Sequence[ReceivedNmsg], host: str | None
) -> EventColumns:
    """Return the events of NMSG with the same outcome; `host` is that of an own server."""
    own = host is not None
    nonces, _, seqs, _, tokens, subscriptions, providers, statuses = zip(*some, strict=True)
    match outcome:
        case NmsgOutcome.UNKNOWN:
            return NmsgUnknownColumns(
                notification=nonces, subscription=subscriptions, own_server=own, smp_host=host
            )
        case NmsgOutcome.STORED:
            return NmsgStoredColumns(
                notification=nonces,
                token=tokens,
                subscription=subscriptions,
                ntf_seq=seqs,
                provider=providers,
                own_server=own,
                smp_host=host,
            )
        case NmsgOutcome.REPEATED:
            return NmsgRepeatedColumns(
                notification=nonces,
                token=tokens,
                subscription=subscriptions,
                provider=providers,
                own_server=own,
                smp_host=host,
            )
        case NmsgOutcome.DROPPED:
            return NmsgDroppedColumns(
                notification=nonces,
                token=tokens,
                subscription=subscriptions,
                status=statuses,
                provider=providers,
                own_server=own,
                smp_host=host,
            )
