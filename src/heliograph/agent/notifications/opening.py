"""Decrypts a push: both layers, the list in the outer one, and the queue of each entry.

The outer layer is between the notification router and the device, the inner ones between messaging
routers and the device: neither router can decrypt the other's.
"""

from collections.abc import Callable, Sequence

from heliograph.agent.errors import BadNotification
from heliograph.agent.records import NotificationInfo, RcvQueue
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.wire.addresses import SMPQueueNtf
from heliograph.wire.errors import WireError
from heliograph.wire.ntf.push import (
    NMsgMeta,
    PNMessageData,
    decode_nmsg_meta,
    decode_pn_messages,
)

Find = Callable[[SMPQueueNtf], RcvQueue | None]


def open_push(secret: bytes, nonce: bytes, payload: bytes) -> list[PNMessageData]:
    """Return the entries of a push, oldest first."""
    try:
        return decode_pn_messages(open_box_padded(secret, nonce, payload))
    except CryptoError:
        raise BadNotification("the push cannot be decrypted by this registration") from None
    except WireError as exc:
        raise BadNotification(f"the push is damaged: {exc}") from None


def connections_of(entries: Sequence[PNMessageData], find: Find) -> list[NotificationInfo]:
    """Return the notifications of a push that are new; the last entry always is.

    An earlier entry was in an earlier push too, so it counts only if it is newer than any message
    that was received from its queue. Entries of unknown queues are left out.
    """
    found = []
    for position, entry in enumerate(entries):
        queue = find(entry.queue)
        if queue is None or queue.notifier is None:
            continue
        meta = _open_meta(queue.notifier.dh_secret, entry)
        is_last = position == len(entries) - 1
        if is_last or (meta is not None and _is_news(meta, queue)):
            found.append(_info(queue, entry, meta))
    return found


def _is_news(meta: NMsgMeta, queue: RcvQueue) -> bool:
    return queue.last_broker_ts is None or meta.timestamp > queue.last_broker_ts


def _open_meta(secret: bytes, entry: PNMessageData) -> NMsgMeta | None:
    try:
        return decode_nmsg_meta(open_box_padded(secret, entry.nonce, entry.meta))
    except (CryptoError, WireError):
        return None


def _info(queue: RcvQueue, entry: PNMessageData, meta: NMsgMeta | None) -> NotificationInfo:
    return NotificationInfo(
        queue.conn_id,
        queue.queue_id,
        entry.timestamp,
        None if meta is None else meta.msg_id,
        None if meta is None else meta.timestamp,
        entry.nonce,
    )
