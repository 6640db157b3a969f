"""What is to be done next: every status of a queue with every kind of message."""

import itertools

import pytest

from heliograph.agent.messages.envelope import MessageKind
from heliograph.agent.messages.steps import Fail, Secure, SecureBySender, Send, next_step
from heliograph.agent.records import OutgoingMessage, RcvQueue, RcvStatus, SndQueue, SndStatus
from heliograph.wire.addresses import decode_address

ADDRESS = decode_address("smp://AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=@one.example")


def rcv(status: RcvStatus, queue_id: int = 1) -> RcvQueue:
    return RcvQueue(queue_id, "c", ADDRESS, b"r", b"s", status, b"", b"", b"")


def snd(
    status: SndStatus, queue_id: int = 1, *, current: bool = True, can_secure: bool = True
) -> SndQueue:
    return SndQueue(queue_id, "c", ADDRESS, b"s", status, current, b"", b"", b"", can_secure)


def item(
    kind: MessageKind = MessageKind.MESSAGE, seq: int = 1, queue_id: int | None = None
) -> OutgoingMessage:
    return OutgoingMessage(seq, "c", queue_id, seq, kind.value, False, b"")


def test_nothing_to_do() -> None:
    assert next_step([], [], []) is None
    for status in RcvStatus:
        if status is not RcvStatus.SECURING:
            assert next_step([rcv(status)], [snd(SndStatus.ACTIVE)], []) is None


@pytest.mark.parametrize("status", SndStatus)
@pytest.mark.parametrize("can_secure", [True, False])
@pytest.mark.parametrize("kind", MessageKind)
def test_a_bound_message(status: SndStatus, can_secure: bool, kind: MessageKind) -> None:
    queue, message = snd(status, 7, current=False, can_secure=can_secure), item(kind, queue_id=7)
    expected: object
    match status:
        case SndStatus.NEW if can_secure:
            expected = SecureBySender(queue)
        case SndStatus.NEW:
            first = kind is MessageKind.CONFIRMATION
            expected = Send(message, queue, authorized=False) if first else None
        case SndStatus.CONFIRMED:
            expected = None
        case SndStatus.REFUSED:
            expected = Fail(message)
        case SndStatus.SECURED | SndStatus.ACTIVE | SndStatus.ENDED:
            expected = Send(message, queue, authorized=True)
    assert next_step([], [queue], [message]) == expected


@pytest.mark.parametrize("status", SndStatus)
@pytest.mark.parametrize("can_secure", [True, False])
@pytest.mark.parametrize("kind", MessageKind)
def test_a_message_for_the_current_queue(
    status: SndStatus, can_secure: bool, kind: MessageKind
) -> None:
    queue, message = snd(status, can_secure=can_secure), item(kind)
    expected: object = None
    if status is SndStatus.ACTIVE:
        expected = Send(message, queue, authorized=True)
    elif status is SndStatus.REFUSED:
        expected = Fail(message)
    assert next_step([], [queue], [message]) == expected


def test_a_message_waits_for_somebody_to_join() -> None:
    assert next_step([rcv(RcvStatus.NEW)], [], [item()]) is None


def test_a_message_for_a_queue_that_is_gone_fails() -> None:
    assert next_step([], [], [item(queue_id=9)]) == Fail(item(queue_id=9))


@pytest.mark.parametrize(("status", "kind"), list(itertools.product(RcvStatus, MessageKind)))
def test_queues_are_secured_before_it_is_confirmed(status: RcvStatus, kind: MessageKind) -> None:
    own, queue, message = rcv(status, 3), snd(SndStatus.ACTIVE), item(kind)
    sending = Send(message, queue, authorized=True)
    step = next_step([own], [queue], [message])
    assert step == (Secure(own) if status is RcvStatus.SECURING else sending)
    # While our queue backs off, only messages that do not depend on it are sent.
    waits = status is RcvStatus.SECURING and kind in (MessageKind.CONFIRMATION, MessageKind.HELLO)
    step = next_step([own], [queue], [message], {("rcv", 3)})
    assert step == (None if waits else sending)


def test_messages_keep_their_order() -> None:
    queue = snd(SndStatus.ACTIVE)
    messages = [item(seq=1), item(seq=2)]
    assert next_step([], [queue], messages) == Send(messages[0], queue, authorized=True)


def test_a_blocked_message_blocks_those_after_it_but_no_bound_one() -> None:
    own = rcv(RcvStatus.SECURING, 3)
    queue, other = snd(SndStatus.ACTIVE), snd(SndStatus.ENDED, 2, current=False)
    blocked, after = item(MessageKind.HELLO, seq=1), item(seq=2)
    last = item(MessageKind.END_QUEUE, seq=3, queue_id=2)
    backing_off = {("rcv", 3)}
    assert next_step([own], [queue], [blocked, after], backing_off) is None
    step = next_step([own], [queue, other], [blocked, after, last], backing_off)
    assert step == Send(last, other, authorized=True)


def test_a_resting_queue_holds_up_only_its_own() -> None:
    current, old = snd(SndStatus.ACTIVE, 1), snd(SndStatus.ENDED, 2, current=False)
    last, message = item(MessageKind.END_QUEUE, seq=1, queue_id=2), item(seq=2)
    step = next_step([], [current, old], [last, message], {("snd", 2)})
    assert step == Send(message, current, authorized=True)
    step = next_step([], [current, old], [last, message], {("snd", 1)})
    assert step == Send(last, old, authorized=True)
    assert next_step([], [current, old], [last, message], {("snd", 1), ("snd", 2)}) is None
