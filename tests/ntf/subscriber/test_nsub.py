"""Answers to NSUB, and the statuses written for them."""

import os

from heliograph.ntf.store.records import QueueKey
from heliograph.ntf.subscriber.nsub import ACTIVE, NsubResults
from heliograph.transport.errors import Disconnected, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.ntf.tokens import NtfSubStatus, SubscriptionState

AUTH = NtfSubStatus(SubscriptionState.AUTH)
SERVICE_ID = b"service"


def queue(*, is_inactive: bool = True) -> QueueKey:
    return QueueKey(os.urandom(24), os.urandom(24), os.urandom(48), is_inactive)


def test_the_larger_group_is_confirmed_and_the_others_are_written_by_row() -> None:
    plain, new, old, associated, refused = queues = [
        queue(),
        queue(is_inactive=False),
        queue(),
        queue(),
        queue(),
    ]
    results = NsubResults()
    answers = [smp.SOK(), smp.SOK(), smp.OK(), smp.SOK(SERVICE_ID)]
    results.add(queues, [*answers, RequestRefused(ErrorCode.AUTH)])
    assert (results.subscribed, results.unanswered, results.mostly_associated) == (4, 0, False)
    assert set(results.statuses(by_range=True)) == {
        (new.notifier_id, ACTIVE, False),
        (associated.notifier_id, ACTIVE, True),
        (refused.notifier_id, AUTH, False),
    }
    assert set(results.statuses(by_range=False)) == {
        *results.statuses(by_range=True),
        (plain.notifier_id, ACTIVE, False),
        (old.notifier_id, ACTIVE, False),
    }


def test_associated_queues_are_confirmed_if_they_are_the_larger_group() -> None:
    results = NsubResults()
    other, *queues = [queue() for _ in range(4)]
    results.add([other], [smp.SOK()])
    results.add(queues, [smp.SOK(SERVICE_ID)] * 3)
    assert results.mostly_associated
    assert list(results.statuses(by_range=True)) == [(other.notifier_id, ACTIVE, False)]


def test_no_answer_changes_no_status() -> None:
    results = NsubResults()
    results.add([queue(), queue()], [Disconnected("gone"), smp.SOK()])
    assert (results.unanswered, results.subscribed) == (1, 1)
    assert len(list(results.statuses(by_range=False))) == 1
