"""Decide the next step of a connection: a pure function of its stored state.

Our queues are secured before the other side is informed. Messages for the current queue keep their
order and wait until it is active; those bound to one queue (its first, its last) wait for no other
message. A queue that backs off after a failure of its router delays only its own messages.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heliograph.agent.messages.envelope import MessageKind
from heliograph.agent.records import OutgoingMessage, RcvQueue, RcvStatus, SndQueue, SndStatus


@dataclass(frozen=True, slots=True)
class Secure:
    """KEY: set the sender's key at the router."""

    queue: RcvQueue


@dataclass(frozen=True, slots=True)
class SecureBySender:
    """SKEY: secure the queue that we send to."""

    queue: SndQueue


@dataclass(frozen=True, slots=True)
class Send:
    """SEND, with authorization unless the recipient is still to set our key."""

    item: OutgoingMessage
    queue: SndQueue
    authorized: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """Report a message that can never be sent as failed."""

    item: OutgoingMessage


Step = Secure | SecureBySender | Send | Fail

QueueRef = tuple[str, int]
"""`rcv` or `snd`, and the ID of the queue."""


_CONFIRMS_SECURING = (MessageKind.CONFIRMATION.value, MessageKind.HELLO.value)
"""Kinds of messages that may confirm that a queue of ours is secured."""


def next_step(
    rcv: Sequence[RcvQueue],
    snd: Sequence[SndQueue],
    outgoing: Sequence[OutgoingMessage],
    backing_off: Collection[QueueRef] = (),
) -> Step | None:
    """Return the next step; None if all wait for the other side or for the end of a backoff."""
    securing = [queue for queue in rcv if queue.status is RcvStatus.SECURING]
    for queue in securing:
        if ("rcv", queue.queue_id) not in backing_off:
            return Secure(queue)
    current = next((queue for queue in snd if queue.is_current), None)
    by_id = {queue.queue_id: queue for queue in snd}
    blocked = False
    for item in outgoing:
        if item.queue_id is None and blocked:
            continue
        target = current if item.queue_id is None else by_id.get(item.queue_id)
        step = None
        waits = target is not None and ("snd", target.queue_id) in backing_off
        if not (waits or (securing and item.kind in _CONFIRMS_SECURING)):
            step = _unbound(item, target) if item.queue_id is None else _bound(item, target)
        if step is not None:
            return step
        blocked = blocked or item.queue_id is None
    return None


def _bound(item: OutgoingMessage, queue: SndQueue | None) -> Step | None:
    if queue is None:
        return Fail(item)
    match queue.status:
        case SndStatus.REFUSED:
            return Fail(item)
        case SndStatus.NEW if queue.sender_can_secure:
            return SecureBySender(queue)
        case SndStatus.NEW:
            return Send(item, queue, authorized=False) if _is_first(item) else None
        case SndStatus.CONFIRMED:
            return None
        case SndStatus.SECURED | SndStatus.ACTIVE | SndStatus.ENDED:
            return Send(item, queue, authorized=True)


def _unbound(item: OutgoingMessage, current: SndQueue | None) -> Step | None:
    if current is None:
        return None
    match current.status:
        case SndStatus.ACTIVE:
            return Send(item, current, authorized=True)
        case SndStatus.REFUSED:
            return Fail(item)
        case SndStatus.NEW | SndStatus.SECURED | SndStatus.CONFIRMED | SndStatus.ENDED:
            return None


def _is_first(item: OutgoingMessage) -> bool:
    return item.kind == MessageKind.CONFIRMATION.value
