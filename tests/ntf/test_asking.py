"""What answers to NSUBs say, and how it is written."""

import os

from heliograph.ntf.asking import ACTIVE, Findings
from heliograph.ntf.records import QueueKey
from heliograph.transport.errors import Disconnected, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.tokens import SubscriptionState, SubscriptionStatus

AUTH = SubscriptionStatus(SubscriptionState.AUTH)
SERVICE_ID = b"service"


def queue(*, is_inactive: bool = True) -> QueueKey:
    return QueueKey(os.urandom(24), os.urandom(24), os.urandom(48), is_inactive)


def test_most_are_confirmed_and_what_differs_is_named() -> None:
    plain, new, old, associated, refused = queues = [
        queue(),
        queue(is_inactive=False),
        queue(),
        queue(),
        queue(),
    ]
    found = Findings()
    answers = [smp.SOK(), smp.SOK(), smp.OK(), smp.SOK(SERVICE_ID)]
    found.note(queues, [*answers, RequestRefused(ErrorCode.AUTH)])
    assert (found.subscribed, found.unanswered, found.mostly_associated) == (4, 0, False)
    assert set(found.statuses(confirming=True)) == {
        (new.notifier_id, ACTIVE, False),
        (associated.notifier_id, ACTIVE, True),
        (refused.notifier_id, AUTH, False),
    }
    assert set(found.statuses(confirming=False)) == {
        *found.statuses(confirming=True),
        (plain.notifier_id, ACTIVE, False),
        (old.notifier_id, ACTIVE, False),
    }


def test_a_service_confirms_what_it_is_associated_with() -> None:
    found = Findings()
    other, *queues = [queue() for _ in range(4)]
    found.note([other], [smp.SOK()])
    found.note(queues, [smp.SOK(SERVICE_ID)] * 3)
    assert found.mostly_associated
    assert list(found.statuses(confirming=True)) == [(other.notifier_id, ACTIVE, False)]


def test_no_answer_says_nothing() -> None:
    found = Findings()
    found.note([queue(), queue()], [Disconnected("gone"), smp.SOK()])
    assert (found.unanswered, found.subscribed) == (1, 1)
    assert len(list(found.statuses(confirming=False))) == 1
