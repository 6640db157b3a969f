"""The notification outbox of a client: order, bounds, confirmation, loads."""

import pytest

from heliograph.smp.clients import outbox as module
from heliograph.smp.clients.outbox import NotificationOutbox
from heliograph.smp.store.records import StoredNotification


def notification(seq: int, notifier_id: bytes = b"n") -> StoredNotification:
    return StoredNotification(seq, notifier_id, b"", b"", 0)


def wanted(_: bytes) -> bool:
    return True


def seqs(outbox: NotificationOutbox, limit: int = 100) -> list[int]:
    return [item.seq for item in outbox.take(limit, wanted)]


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> NotificationOutbox:
    monkeypatch.setattr(module, "MAX_QUEUED", 3)
    monkeypatch.setattr(module, "MAX_UNCONFIRMED", 4)
    return NotificationOutbox()


def test_keeps_the_order_and_drops_repetitions(outbox: NotificationOutbox) -> None:
    assert not outbox.is_due
    for seq in (1, 2, 2, 1):
        outbox.add(notification(seq))
    assert outbox.is_due
    assert len(outbox) == 2
    assert seqs(outbox, 1) == [1]
    outbox.add(notification(1))  # sent, and not confirmed
    assert seqs(outbox) == [2]
    assert outbox.unconfirmed == 2


def test_drops_what_is_no_longer_wanted(outbox: NotificationOutbox) -> None:
    outbox.add(notification(1, b"a"))
    outbox.add(notification(2, b"b"))
    assert [item.seq for item in outbox.take(2, lambda notifier_id: notifier_id == b"b")] == [2]
    assert outbox.unconfirmed == 1
    assert not outbox.take(2, wanted)


def test_overflows_and_is_loaded_once_it_is_empty(outbox: NotificationOutbox) -> None:
    for seq in range(1, 6):
        outbox.add(notification(seq))
    assert outbox.overflowed
    assert seqs(outbox) == [1, 2, 3]
    assert outbox.is_due  # for the load
    outbox.begin_catch_up()
    assert not outbox.is_due
    for seq in range(1, 6):
        outbox.add_loaded(notification(seq))
    outbox.end_load()
    assert seqs(outbox) == [4, 5]


def test_what_is_stored_during_a_load_comes_after_it(outbox: NotificationOutbox) -> None:
    outbox.begin_load()
    assert outbox.is_loading
    outbox.add(notification(3))
    outbox.add_loaded(notification(1))
    outbox.add_loaded(notification(2))
    assert seqs(outbox) == [1, 2]
    outbox.end_load()
    assert seqs(outbox) == [3]


def test_holds_back_a_bounded_number(outbox: NotificationOutbox) -> None:
    outbox.begin_load()
    for seq in range(1, 5):
        outbox.add(notification(seq))
    assert outbox.overflowed
    outbox.end_load()
    assert len(outbox) == 0


def test_withdrawn_notifiers(outbox: NotificationOutbox) -> None:
    outbox.add(notification(1, b"a"))
    outbox.add(notification(2, b"b"))
    outbox.begin_load()
    outbox.add(notification(3, b"a"))
    outbox.withdraw(b"a")
    outbox.add_loaded(notification(4, b"a"))
    outbox.end_load()
    assert seqs(outbox) == [2]
    outbox.add(notification(5, b"a"))  # subscribed again
    assert seqs(outbox) == [5]


def test_confirmed_some_time_after_arrival(outbox: NotificationOutbox) -> None:
    outbox.add(notification(1))
    assert seqs(outbox) == [1]
    assert outbox.awaits_arrival
    assert outbox.take_confirmed(100.0) == []
    outbox.arrived(10.0)
    assert not outbox.awaits_arrival
    outbox.add(notification(2))
    assert seqs(outbox) == [2]
    assert outbox.take_confirmed(9.0) == []
    assert outbox.take_confirmed(10.0) == [1]
    outbox.arrived(11.0)
    assert outbox.take_confirmed(11.0) == [2]
    assert outbox.unconfirmed == 0


def test_what_a_client_acknowledges_is_confirmed_by_count(outbox: NotificationOutbox) -> None:
    outbox.confirm(0)
    for seq in (7, 8, 9):
        outbox.add(notification(seq))
    assert seqs(outbox) == [7, 8, 9]
    assert not outbox.awaits_arrival  # arrival confirms nothing
    assert outbox.take_confirmed(100.0) == []
    outbox.confirm(2)
    assert outbox.take_confirmed(0.0) == [7, 8]
    outbox.restore([7, 8])  # they could not be removed
    assert outbox.take_confirmed(0.0) == [7, 8]
    outbox.confirm(1)  # nothing new
    outbox.confirm(10**9)  # more than was sent
    assert outbox.take_confirmed(0.0) == [9]
    outbox.add(notification(10))
    assert seqs(outbox) == [10]
    assert outbox.take_confirmed(0.0) == []
    assert outbox.unconfirmed == 1


def test_sent_before_the_first_acknowledgement_is_counted_too(outbox: NotificationOutbox) -> None:
    outbox.add(notification(1))
    assert seqs(outbox) == [1]
    outbox.arrived(1.0)
    outbox.confirm(0)
    assert outbox.take_confirmed(100.0) == []
    outbox.confirm(1)
    assert outbox.take_confirmed(0.0) == [1]


def test_overdue_without_progress(outbox: NotificationOutbox) -> None:
    outbox.confirm(0)
    assert not outbox.is_overdue(0.0, 10.0)
    for seq in (1, 2):
        outbox.add(notification(seq))
    assert seqs(outbox) == [1, 2]
    assert not outbox.is_overdue(100.0, 10.0)
    assert not outbox.is_overdue(110.0, 10.0)
    assert outbox.is_overdue(110.1, 10.0)
    outbox.confirm(1)
    outbox.take_confirmed(0.0)
    assert not outbox.is_overdue(110.2, 10.0)
    assert outbox.is_overdue(121.0, 10.0)


def test_one_that_never_acknowledges_is_not_overdue(outbox: NotificationOutbox) -> None:
    outbox.add(notification(1))
    assert seqs(outbox) == [1]
    assert not outbox.is_overdue(0.0, 10.0)
    assert not outbox.is_overdue(1000.0, 10.0)


def test_has_room_until_too_much_is_unconfirmed(outbox: NotificationOutbox) -> None:
    for seq in range(4):
        assert outbox.has_room
        outbox.add(notification(seq))
        assert seqs(outbox) == [seq]
    assert not outbox.has_room
    assert outbox.take_unconfirmed() == [0, 1, 2, 3]
    assert outbox.has_room
    assert not outbox.awaits_arrival


def test_restored_if_it_could_not_be_removed(outbox: NotificationOutbox) -> None:
    for seq in (1, 2):
        outbox.add(notification(seq))
        assert seqs(outbox) == [seq]
        outbox.arrived(float(seq))
    assert outbox.take_confirmed(1.0) == [1]
    outbox.restore([1])
    assert outbox.unconfirmed == 2
    assert outbox.take_confirmed(1.0) == [1]


def test_forgotten_once_removed(outbox: NotificationOutbox) -> None:
    outbox.add(notification(1))
    assert seqs(outbox) == [1]
    outbox.arrived(0.0)
    confirmed = outbox.take_confirmed(0.0)
    outbox.begin_load()
    outbox.add_loaded(notification(1))  # still stored
    outbox.end_load()
    assert not outbox.is_due
    outbox.removed(confirmed)
    assert outbox.is_known_empty
