"""Build the encrypted, padded payload of a pending push."""

from heliograph.crypto.boxes import box_padded
from heliograph.ntf.store.records import Notice, PendingPush, PushKind
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.ntf.push import (
    CheckMessagesPush,
    MessagePush,
    PNMessageData,
    Push,
    VerificationPush,
    encode_pn_messages,
)


def build(push: PendingPush, nonce: bytes, size: int) -> Push | None:
    """Return the payload, its text padded to `size`, or None if no notification is left."""
    match push.kind:
        case PushKind.CHECK:
            return CheckMessagesPush()
        case PushKind.VERIFICATION:
            return VerificationPush(nonce, box_padded(push.dh_secret, nonce, push.code, size))
        case PushKind.MESSAGE:
            if not push.notices:
                return None
            text = _fitting(push.notices, size)
            return MessagePush(nonce, box_padded(push.dh_secret, nonce, text, size))


def _fitting(notices: tuple[Notice, ...], size: int) -> bytes:
    """Encode as many of the newest notifications as fit: addresses with many hosts are long."""
    for start in range(len(notices)):
        text = encode_pn_messages([_message(notice) for notice in notices[start:]])
        if len(text) <= size - 2:
            break
    return text


def _message(notice: Notice) -> PNMessageData:
    queue = SMPQueueNtf(decode_address(notice.address), notice.notifier_id)
    return PNMessageData(queue, notice.timestamp, notice.nonce, notice.meta)
