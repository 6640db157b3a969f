"""Each outcome of each kind of push, in the journal and in the counters."""

from dataclasses import asdict

import pytest

from heliograph.journal.hashing import notification_id
from heliograph.ntf.observing.pushes import AnsweredPush, PushObserver
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.store.pending import ExpiredPush
from heliograph.ntf.store.records import Notice, PendingPush, PushKind
from heliograph.push.provider import (
    Accepted,
    DeviceTokenInvalid,
    Misconfigured,
    PushOutcome,
    RetryLater,
)
from heliograph.wire.ntf.tokens import InvalidReason
from tests.journal.recorder import Notes, hashed
from tests.ntf.support import a_device

OWN = "smp://LcJUMfVhwD8yxjAiSaDzzGF3-kLG4Uh0Fl_ZIjrRwjI=@smp.example.com"
NOTICES = tuple(Notice(seq, OWN, b"n" * 24, 1, bytes([seq]) * 24, b"meta") for seq in (6, 7))
MODES = {
    PushKind.MESSAGE: "message",
    PushKind.VERIFICATION: "verification",
    PushKind.CHECK: "periodic",
}
OUTCOMES: dict[PushOutcome, tuple[str, dict[str, object]]] = {
    Accepted("id", 200): ("push_accepted", {"code": 200}),
    DeviceTokenInvalid(InvalidReason.BAD, 400): ("push_rejected", {"reason": "BAD", "code": 400}),
    RetryLater(None, "TooManyRequests", code=429): (
        "push_retried",
        {"reason": "TooManyRequests", "status": "later", "code": 429},
    ),
    Misconfigured("BadTopic", 403): (
        "push_retried",
        {"reason": "BadTopic", "status": "refused", "code": 403},
    ),
}
COUNTED = {
    (PushKind.MESSAGE, Accepted): "ntf_delivered",
    (PushKind.MESSAGE, DeviceTokenInvalid): "ntf_failed",
    (PushKind.MESSAGE, RetryLater): "ntf_failed",
    (PushKind.MESSAGE, Misconfigured): "ntf_failed",
    (PushKind.VERIFICATION, Accepted): "ntf_vrf_delivered",
    (PushKind.VERIFICATION, DeviceTokenInvalid): "ntf_vrf_invalid_tkn",
    (PushKind.VERIFICATION, RetryLater): "ntf_vrf_failed",
    (PushKind.VERIFICATION, Misconfigured): "ntf_vrf_failed",
    (PushKind.CHECK, Accepted): "ntf_cron_delivered",
    (PushKind.CHECK, DeviceTokenInvalid): "ntf_cron_failed",
    (PushKind.CHECK, RetryLater): "ntf_cron_failed",
    (PushKind.CHECK, Misconfigured): "ntf_cron_failed",
}


class Rig:
    def __init__(self) -> None:
        self.journal, self.stats = Notes("ntf"), Stats()
        self.observer = PushObserver(self.journal, self.stats, {OWN: "smp.example.com"}.get)

    def counted(self) -> dict[str, int]:
        counters = asdict(self.stats.counters)
        return {name: value for name, value in counters.items() if isinstance(value, int) and value}


def push_of(kind: PushKind, attempts: int = 2) -> PendingPush:
    notices = NOTICES if kind is PushKind.MESSAGE else ()
    return PendingPush(b"t" * 24, kind, a_device(), b"", b"", 7, 1.5, attempts, 99.0, notices)


@pytest.mark.parametrize("outcome", list(OUTCOMES))
@pytest.mark.parametrize("kind", PushKind)
async def test_settled(kind: PushKind, outcome: PushOutcome) -> None:
    rig = Rig()
    await rig.observer.answered([AnsweredPush(push_of(kind), outcome, 2.0)])
    [event] = rig.journal.events
    name, columns = OUTCOMES[outcome]
    assert event.kind == name
    assert columns.items() <= event.columns.items()
    assert (event["token"], event["mode"]) == (hashed("token", b"t" * 24), MODES[kind])
    assert event["attempt"] == 3
    if isinstance(outcome, Accepted) and kind is PushKind.MESSAGE:
        assert event["through"] == 7
        assert event["notifications"] == [notification_id(notice.nonce) for notice in NOTICES]
    else:
        assert "through" not in event.columns
        assert "notifications" not in event.columns
    assert rig.counted() == {COUNTED[kind, type(outcome)]: 1}
    own = {"smp.example.com": 1} if kind is PushKind.MESSAGE else {}
    counters = rig.stats.counters
    assert {**counters.delivered_own, **counters.failed_own} == own
    assert not rig.journal.problems


async def test_several_accepted_pushes_are_recorded_in_order() -> None:
    rig = Rig()
    answered = [AnsweredPush(push_of(kind), Accepted(None, 200), 2.0) for kind in PushKind]
    await rig.observer.answered(answered)
    assert [event["mode"] for event in rig.journal.events] == [MODES[kind] for kind in PushKind]


@pytest.mark.parametrize("kind", PushKind)
def test_only_a_retry_is_counted_as_one(kind: PushKind) -> None:
    rig = Rig()
    rig.observer.attempted(push_of(kind, attempts=0))
    rig.observer.attempted(push_of(kind, attempts=1))
    assert rig.counted() == {"ntf_retried": 1}
    assert [event["attempt"] for event in rig.journal.of("push_attempted")] == [1, 2]


def test_pending_and_recovered() -> None:
    rig = Rig()
    pushes = [push_of(kind) for kind in PushKind]
    rig.observer.pending(pushes)
    rig.observer.recovered(pushes)
    for event in rig.journal.of("push_pending"):
        assert event.columns.get("through") == (7 if event["mode"] == "message" else None)
    recovered = [event["mode"] for event in rig.journal.events if event.columns.get("reason")]
    assert recovered == [MODES[kind] for kind in PushKind]
    assert not rig.journal.problems


@pytest.mark.parametrize("kind", PushKind)
def test_expired(kind: PushKind) -> None:
    rig = Rig()
    rig.observer.expired([ExpiredPush(b"token", kind, "apns_test", 7, 1.5, 3)])
    [event] = rig.journal.events
    assert (event["mode"], event["attempt"], event["reason"]) == (MODES[kind], 3, "ttl")
    assert event.columns.get("through") == (7 if kind is PushKind.MESSAGE else None)
    assert rig.counted() == {"ntf_expired": 1}
