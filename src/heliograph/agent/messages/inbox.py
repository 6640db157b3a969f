"""Process a message that a router delivered: a function of a transaction.

Everything that a message changes is committed with the record of the message. So it is acknowledged
to the router only when it can no longer be lost, and a duplicate changes nothing.
"""

from dataclasses import dataclass, field
from enum import Enum

from heliograph.agent.connections import queues
from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.keys import Vault
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.envelope import (
    AddQueue,
    Body,
    Confirmation,
    EndQueue,
    Hello,
    Opened,
    unseal,
)
from heliograph.agent.records import RcvQueue, RcvStatus, SndStatus
from heliograph.crypto.boxes import nonce_from, open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.messages import RcvMessage, RcvQuota, decode_rcv_message


@dataclass(frozen=True, slots=True)
class Arrival:
    """An MSG, with the router and queue that delivered it."""

    fingerprint: bytes = field(repr=False)
    rcv_id: bytes = field(repr=False)
    msg_id: bytes = field(repr=False)
    box: bytes = field(repr=False)


class Change(Enum):
    """What a stored message changed."""

    MESSAGE = "the user has a message"
    WORK = "something is to be sent, or a queue secured"
    READY = "messages can be sent on the connection"
    QUEUES = "a queue is to be deleted"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of `receive`. Without `acknowledge`, the message must stay at the router."""

    queue: RcvQueue
    acknowledge: bool
    changes: frozenset[Change] = frozenset()


def receive(
    tx: Transaction, vault: Vault, arrival: Arrival, at: int, max_unhandled: int
) -> Receipt | None:
    """Store a delivered message. Return None if the queue is not, or no longer, ours."""
    queue = queues.rcv_queue_by_id(tx, vault, arrival.fingerprint, arrival.rcv_id)
    if queue is None:
        return None
    if queue.status in (RcvStatus.DELETING, RcvStatus.GONE):
        return Receipt(queue, acknowledge=False)
    if messages.is_known(tx, queue.queue_id, arrival.msg_id):
        return Receipt(queue, acknowledge=True)
    content, opened = _open(queue, arrival)
    timestamp = 0 if content is None else content.timestamp
    number, body, notification = None, None, False
    changes: set[Change] = set()
    if opened is not None and _is_new(tx, queue, opened):
        number = opened.number
        if isinstance(opened.content, Body):
            if messages.count_unhandled(tx, queue.conn_id) >= max_unhandled:
                return Receipt(queue, acknowledge=False)
            body = opened.content.body
            notification = isinstance(content, RcvMessage) and content.flags.notification
            changes.add(Change.MESSAGE)
        else:
            changes |= _apply(tx, vault, queue, opened, at)
    messages.add_received(
        tx,
        vault,
        queue.conn_id,
        queue.queue_id,
        arrival.msg_id,
        timestamp,
        at,
        number=number,
        notification=notification,
        body=body,
    )
    if content is not None:
        queues.set_broker_ts(tx, queue.queue_id, timestamp)
    return Receipt(queue, True, frozenset(changes))


def _is_new(tx: Transaction, queue: RcvQueue, opened: Opened) -> bool:
    """Return whether a message is new. In a new queue only a confirmation counts."""
    if queue.status is RcvStatus.NEW and not isinstance(opened.content, Confirmation):
        return False
    return not messages.is_repeated(tx, queue.conn_id, opened.number)


def _open(queue: RcvQueue, arrival: Arrival) -> tuple[RcvMessage | RcvQuota | None, Opened | None]:
    """Decrypt both layers; None if that fails, as anyone may write to a new queue."""
    try:
        plain = open_box_padded(queue.dh_secret, nonce_from(arrival.msg_id), arrival.box)
        content = decode_rcv_message(plain)
    except (CryptoError, WireError):
        return None, None
    if isinstance(content, RcvQuota):
        return content, None
    try:
        return content, unseal(content.body, queue.e2e_key, queue.e2e_secret)
    except (CryptoError, WireError):
        return content, None


def _apply(tx: Transaction, vault: Vault, queue: RcvQueue, opened: Opened, at: int) -> set[Change]:
    content = opened.content
    match content:
        case Confirmation():
            return _confirm(tx, vault, queue, opened, content, at)
        case Hello():
            return mark_secured(tx, vault, queue.conn_id, content.secured, at)
        case AddQueue():
            return _add_queue(tx, vault, queue.conn_id, content.queue, at)
        case EndQueue():
            return _end_queue(tx, vault, queue)
        case Body():
            return set()


def _confirm(
    tx: Transaction,
    vault: Vault,
    queue: RcvQueue,
    opened: Opened,
    content: Confirmation,
    at: int,
) -> set[Change]:
    """Accept the first confirmation only: anyone who knows an invitation can send one."""
    if queue.status is not RcvStatus.NEW or not _is_usable(content.reply):
        return set()
    queues.set_sender(tx, vault, queue.queue_id, opened.secret, opened.sender_key)
    secured = None if opened.sender_key is None else queue.snd_id
    changes = {Change.WORK}
    if content.reply is not None and not queues.snd_queues_of(tx, vault, queue.conn_id):
        answer = Confirmation(secured=secured)
        send_to(tx, vault, queue.conn_id, content.reply, answer, at, is_current=True)
    elif secured is not None:
        messages.add_outgoing(tx, vault, queue.conn_id, Hello(secured), at)
    if content.secured is not None:
        changes |= mark_secured(tx, vault, queue.conn_id, content.secured, at)
    return changes


def send_to(
    tx: Transaction,
    vault: Vault,
    conn_id: str,
    queue: Invitation,
    first: Confirmation,
    at: int,
    *,
    is_current: bool,
    sender_key: bytes | None = None,
) -> None:
    """Add a queue to send to. With `sender_key` it is secured already."""
    e2e = generate_key_pair(Algorithm.X25519)
    new = queues.NewSndQueue(
        queue.address,
        queue.snd_id,
        sender_key or generate_key_pair(Algorithm.X25519).private,
        e2e.public,
        dh(queue.dh_key, e2e.private),
        queue.sender_can_secure,
        is_current,
    )
    queue_id = queues.add_snd_queue(tx, vault, conn_id, new)
    if sender_key is not None:
        queues.set_snd_status(tx, queue_id, SndStatus.SECURED)
    messages.add_outgoing(tx, vault, conn_id, first, at, queue_id=queue_id)


def mark_secured(
    tx: Transaction, vault: Vault, conn_id: str, snd_id: bytes, at: int
) -> set[Change]:
    """Mark that the recipient has set our key, possibly before our SEND is answered."""
    for queue in queues.snd_queues_of(tx, vault, conn_id):
        waits = queue.status in (SndStatus.NEW, SndStatus.CONFIRMED)
        if queue.snd_id == snd_id and waits and not queue.sender_can_secure:
            messages.delete_bound(tx, queue.queue_id)
            return activate(tx, vault, conn_id, queue.queue_id, at)
    return set()


def activate(tx: Transaction, vault: Vault, conn_id: str, queue_id: int, at: int) -> set[Change]:
    """Make this the current queue to send to; the previous one, if any, gets its last message."""
    queues.set_snd_status(tx, queue_id, SndStatus.ACTIVE)
    replaced = queues.make_current(tx, conn_id, queue_id)
    for queue in queues.snd_queues_of(tx, vault, conn_id):
        # Nothing can be sent to one that is not secured yet: it ends when it is.
        is_secured = queue.status in (SndStatus.ACTIVE, SndStatus.REFUSED)
        if queue.queue_id in replaced and is_secured:
            queues.set_snd_status(tx, queue.queue_id, SndStatus.ENDED)
            messages.add_outgoing(tx, vault, conn_id, EndQueue(), at, queue_id=queue.queue_id)
    return {Change.READY, Change.WORK}


def _add_queue(
    tx: Transaction, vault: Vault, conn_id: str, queue: Invitation, at: int
) -> set[Change]:
    known = queues.snd_queues_of(tx, vault, conn_id)
    place = queue.address.fingerprint, queue.snd_id
    if any((item.address.fingerprint, item.snd_id) == place for item in known):
        return set()
    if not _is_usable(queue):
        return set()
    send_to(tx, vault, conn_id, queue, Confirmation(), at, is_current=False)
    return {Change.WORK}


def _is_usable(queue: Invitation | None) -> bool:
    """Return whether a secret can be agreed with this public key."""
    try:
        return queue is None or bool(dh(queue.dh_key, generate_key_pair(Algorithm.X25519).private))
    except CryptoError:
        return False


def _end_queue(tx: Transaction, vault: Vault, queue: RcvQueue) -> set[Change]:
    """Mark a queue to be deleted if a later one of ours replaces it."""
    later = [
        other
        for other in queues.rcv_queues_of(tx, vault, [queue.conn_id])
        if other.queue_id > queue.queue_id
    ]
    # The next one may have been replaced and deleted before.
    if all(other.replaces is None for other in later):
        return set()
    queues.set_rcv_status(tx, queue.queue_id, RcvStatus.DELETING)
    return {Change.QUEUES}
