"""Windows of providers and of hosts that clients chose."""

import os
from dataclasses import replace

import pytest

from heliograph.ntf.push import lanes
from heliograph.ntf.push.lanes import BUSY_DELAY, Lane, Pause
from heliograph.ntf.store.records import PendingPush, PushKind
from heliograph.push.null import NullProvider
from heliograph.push.provider import (
    Accepted,
    DeviceTokenInvalid,
    Misconfigured,
    PushOutcome,
    RetryLater,
)
from heliograph.wire.ntf.tokens import DeviceToken, InvalidReason, WPDeviceToken
from tests.ntf.support import a_device

TIMED_OUT = RetryLater(None, "Timeout", connection=True)
BUSY = RetryLater(1.0, "TooManyRequests", code=429)
ACCOUNT_BUSY = RetryLater(None, "TooManyProviderTokenUpdates", code=429, account_wide=True)


def at(host: str, port: str = "443") -> WPDeviceToken:
    return WPDeviceToken(host, port, "/push", os.urandom(16), os.urandom(65))


def push(device: DeviceToken, kind: PushKind = PushKind.MESSAGE) -> PendingPush:
    return PendingPush(os.urandom(24), kind, device, b"", b"", 1, 0.0, 0, 0.0)


@pytest.fixture
def lane() -> Lane:
    return Lane(NullProvider(), 100)


def start(lane: Lane, *pushes: PendingPush) -> None:
    for each in pushes:
        assert lane.delay(each, 0.0) == 0.0
        lane.start(each)


def test_a_provider_without_hosts_has_one_window(lane: Lane) -> None:
    start(lane, *(push(a_device(), PushKind.VERIFICATION) for _ in range(100)))
    assert not lane.has_room(0.0)


def test_one_host_takes_a_tenth_of_the_window(lane: Lane) -> None:
    start(lane, *(push(at(host)) for _ in range(5) for host in ("busy", "Busy")))
    assert lane.delay(push(at("BUSY")), 0.0) == BUSY_DELAY
    start(lane, push(at("other")))
    assert lane.has_room(0.0)


def test_the_ports_of_a_host_share_its_tenth(lane: Lane) -> None:
    pushes = [push(at("busy", str(port))) for port in range(1, 11)]
    start(lane, *pushes)
    assert lane.delay(push(at("busy", "11")), 0.0) == BUSY_DELAY
    start(lane, push(at("busy", "12"), PushKind.VERIFICATION), push(at("other", "11")))
    lane.end(pushes[0], Accepted(None), 0.0)
    start(lane, push(at("busy", "11")))


def test_unverified_devices_take_a_fifth_of_the_window(lane: Lane) -> None:
    start(lane, *(push(at(f"host{n}"), PushKind.VERIFICATION) for n in range(20)))
    assert lane.delay(push(at("new"), PushKind.VERIFICATION), 0.0) == BUSY_DELAY
    start(lane, push(at("new")))


def test_hosts_that_do_not_answer_take_a_fifth_of_the_window(lane: Lane) -> None:
    """However many there are, and although their devices were verified."""
    silent = [push(at(f"host{n}")) for n in range(25)]
    start(lane, *silent)
    for each in silent:
        lane.end(each, TIMED_OUT, 0.0)
    for each in silent[:20]:
        assert lane.delay(each, 10.0) == 0.0
        lane.start(each)
    assert lane.delay(silent[20], 10.0) == BUSY_DELAY
    start(lane, *(push(at("new")) for _ in range(10)))
    lane.end(silent[0], TIMED_OUT, 25.0)
    assert lane.delay(silent[20], 25.0) == 0.0


def test_retries_of_unverified_devices_leave_room_for_new_ones(lane: Lane) -> None:
    silent = (push(at(f"host{n}"), PushKind.VERIFICATION) for n in range(11))
    *retried, last = (replace(each, attempts=3) for each in silent)
    start(lane, *retried)
    assert lane.delay(last, 0.0) == BUSY_DELAY
    start(lane, *(push(at(f"new{n}"), PushKind.VERIFICATION) for n in range(10)))


@pytest.mark.parametrize(
    ("port", "kind"),
    [("81", PushKind.VERIFICATION), ("443", PushKind.VERIFICATION), ("81", PushKind.MESSAGE)],
)
def test_registrations_that_are_not_answered_do_not_silence_a_host(
    lane: Lane, port: str, kind: PushKind
) -> None:
    rogue = push(at("good", port), kind)
    start(lane, rogue)
    assert lane.end(rogue, TIMED_OUT, 0.0) is not None
    assert lane.delay(push(at("good", port), kind), 0.5) > 0
    start(lane, push(at("good")), push(at("good", "")))


def test_a_host_that_does_not_answer_is_tried_ever_more_rarely(lane: Lane) -> None:
    now, waits = 0.0, []
    for _ in range(12):
        each = push(at("silent"))
        assert lane.delay(each, now) == 0.0
        lane.start(each)
        assert lane.delay(push(at("silent")), now) in (0.0, BUSY_DELAY)
        now += 30.0
        lane.end(each, TIMED_OUT, now)
        waits.append(lane.delay(push(at("silent")), now))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert lane.delay(push(at("other")), now) == 0.0


def test_a_failing_host_gets_one_push_at_a_time_until_it_answers(lane: Lane) -> None:
    first, second = push(at("slow")), push(at("slow"))
    start(lane, first, second)
    lane.end(first, TIMED_OUT, 0.0)
    assert lane.delay(push(at("slow")), 10.0) == BUSY_DELAY
    lane.end(second, BUSY, 10.0)  # also an answer
    start(lane, *(push(at("slow")) for _ in range(10)))
    assert lane.active == 10


def test_pushes_that_fail_together_are_one_failure(lane: Lane) -> None:
    pushes = [push(at("slow")) for _ in range(10)]
    start(lane, *pushes)
    for each in pushes:
        lane.end(each, TIMED_OUT, 30.0)
    assert lane.delay(push(at("slow")), 30.0) == 1.0


def test_hosts_are_forgotten(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MAX_IDLE_HOSTS", 10)
    for outcome in (Accepted(), TIMED_OUT):
        for number in range(50):
            each = push(at(f"host{number}"))
            lane.start(each)
            lane.end(each, outcome, number * 1000.0)
    assert lane.active == 0
    remembered = 0
    for number in range(50):
        first, second = (push(at(f"host{number}")) for _ in range(2))
        lane.start(first)
        remembered += lane.delay(second, 1_000_000.0) > 0.0  # one at a time, where one failed
        lane.end(first, Accepted(), 1_000_000.0)
    assert 0 < remembered <= 11


def answered(lane: Lane, outcome: PushOutcome, now: float) -> None:
    each = push(a_device())
    assert lane.has_room(now)
    lane.start(each)
    lane.end(each, outcome, now)


def test_a_lane_whose_account_is_rate_limited_pauses_ever_longer(lane: Lane) -> None:
    now, pauses = 0.0, []
    for _ in range(11):
        answered(lane, ACCOUNT_BUSY, now)
        assert not lane.has_room(now)
        pauses.append(lane.paused_until - now)
        now = lane.paused_until
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_lane_pauses_no_shorter_than_asked_and_never_for_long(lane: Lane) -> None:
    for asked, pause in ((60.0, 60.0), (86_400.0, 300.0)):
        answered(lane, replace(ACCOUNT_BUSY, after=asked), 0.0)
        assert lane.paused_until == pause
        answered(lane, Accepted(), pause)
        lane.paused_until = 0.0


def test_pushes_of_a_rate_limited_account_fail_together(lane: Lane) -> None:
    pushes = [push(a_device()) for _ in range(10)]
    start(lane, *pushes)
    for each in pushes:
        lane.end(each, ACCOUNT_BUSY, 0.0)
    assert lane.paused_until == 1.0


@pytest.mark.parametrize(
    ("outcome", "has_ended"),
    [
        (Accepted(), True),
        (DeviceTokenInvalid(InvalidReason.BAD), True),
        (BUSY, True),
        (Misconfigured("BadTopic"), True),
        (TIMED_OUT, False),
        (ACCOUNT_BUSY, False),
    ],
)
def test_a_paused_lane_tries_one_push_at_a_time(
    lane: Lane, outcome: PushOutcome, has_ended: bool
) -> None:
    answered(lane, ACCOUNT_BUSY, 0.0)
    lane.waiting = True
    assert not lane.wants_more(0.5)
    assert lane.wants_more(1.0)
    trial = push(a_device())
    lane.start(trial)
    assert not lane.has_room(1.0)
    assert not lane.wants_more(1.0)
    lane.end(trial, outcome, 1.0)
    lane.start(push(a_device()))
    assert lane.has_room(100.0) is has_ended


def test_pauses_of_other_processes_are_kept(lane: Lane) -> None:
    other = Lane(NullProvider(), 100)
    asked = replace(ACCOUNT_BUSY, after=30.0)
    start(lane, push(a_device()))
    pause = lane.end(push(a_device()), asked, 0.0)
    assert pause == Pause("", 30.0, 1)
    other.pause(pause, 0.0)
    assert not other.has_room(29.0)
    other.start(push(a_device()))
    assert not other.has_room(30.0)  # one at a time until the provider has answered
    other.pause(Pause("", 20.0, 1), 0.0)  # an earlier one does not shorten it
    assert not other.has_room(29.0)


def test_pauses_of_hosts_by_other_processes_are_kept(lane: Lane) -> None:
    silent = push(at("silent"))
    start(lane, silent)
    pause = lane.end(silent, TIMED_OUT, 0.0)
    assert pause == Pause("silent:443", 1.0, 1)
    other = Lane(NullProvider(), 100)
    other.pause(pause, 0.0)
    assert other.delay(push(at("Silent")), 0.5) == 0.5
    assert other.delay(push(at("other")), 0.5) == 0.0
    retried = push(at("silent"))
    assert other.delay(retried, 1.0) == 0.0
    other.start(retried)
    assert other.end(retried, TIMED_OUT, 1.0) == Pause("silent:443", 3.0, 2)


def test_answers_begin_no_pause(lane: Lane) -> None:
    answered = push(at("host"))
    for outcome in (Accepted(), BUSY, Misconfigured("BadRequest")):
        start(lane, answered)
        assert lane.end(answered, outcome, 0.0) is None
