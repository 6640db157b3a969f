"""What is to be done next for a connection: a pure function of what the store has of it.

Our queues are secured before the other side is told that they are. Messages for the current queue
keep their order and wait until it is active; those bound to one queue (its first, its last) wait
for nobody else. A queue that rests, since its router just failed, holds up only what is for it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heliograph.agent.envelope import Kind
from heliograph.agent.records import Outgoing, RcvQueue, RcvStatus, SndQueue, SndStatus


@dataclass(frozen=True, slots=True)
class Secure:
    """KEY: tell the router the sender's key."""

    queue: RcvQueue


@dataclass(frozen=True, slots=True)
class SecureBySender:
    """SKEY: secure the queue that we send to."""

    queue: SndQueue


@dataclass(frozen=True, slots=True)
class Send:
    """SEND, with authorization unless the recipient is still to set our key."""

    item: Outgoing
    queue: SndQueue
    authorized: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """It can never be sent."""

    item: Outgoing


Step = Secure | SecureBySender | Send | Fail

Resting = tuple[str, int]
"""`rcv` or `snd`, and the ID of the queue."""


_TELLS = (Kind.CONFIRMATION.value, Kind.HELLO.value)
"""Kinds that may say that a queue of ours is secured."""


def next_step(
    rcv: Sequence[RcvQueue],
    snd: Sequence[SndQueue],
    outgoing: Sequence[Outgoing],
    resting: Collection[Resting] = (),
) -> Step | None:
    """None: nothing can be done until something comes from the other side, or is rested."""
    securing = [queue for queue in rcv if queue.status is RcvStatus.SECURING]
    for queue in securing:
        if ("rcv", queue.queue_id) not in resting:
            return Secure(queue)
    current = next((queue for queue in snd if queue.is_current), None)
    by_id = {queue.queue_id: queue for queue in snd}
    blocked = False
    for item in outgoing:
        if item.queue_id is None and blocked:
            continue
        target = current if item.queue_id is None else by_id.get(item.queue_id)
        step = None
        rests = target is not None and ("snd", target.queue_id) in resting
        if not (rests or (securing and item.kind in _TELLS)):
            step = _unbound(item, target) if item.queue_id is None else _bound(item, target)
        if step is not None:
            return step
        blocked = blocked or item.queue_id is None
    return None


def _bound(item: Outgoing, queue: SndQueue | None) -> Step | None:
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


def _unbound(item: Outgoing, current: SndQueue | None) -> Step | None:
    if current is None:
        return None
    match current.status:
        case SndStatus.ACTIVE:
            return Send(item, current, authorized=True)
        case SndStatus.REFUSED:
            return Fail(item)
        case SndStatus.NEW | SndStatus.SECURED | SndStatus.CONFIRMED | SndStatus.ENDED:
            return None


def _is_first(item: Outgoing) -> bool:
    return item.kind == Kind.CONFIRMATION.value
