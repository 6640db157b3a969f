"""From what is owed to the push: the plain text, boxed for the device and padded to one size."""

from heliograph.crypto.boxes import box_padded
from heliograph.ntf.records import DebtKind, Notice, Owed
from heliograph.wire.addresses import SMPQueueNtf, decode_address
from heliograph.wire.push import (
    CheckMessagesPush,
    MessagePush,
    PNMessageData,
    Push,
    VerificationPush,
    encode_pn_messages,
    push_size,
)


def build(owed: Owed, nonce: bytes) -> Push | None:
    """The push, or None if there is nothing to tell any more."""
    size = push_size(owed.device.provider)
    match owed.kind:
        case DebtKind.CHECK:
            return CheckMessagesPush()
        case DebtKind.VERIFICATION:
            return VerificationPush(nonce, box_padded(owed.dh_secret, nonce, owed.code, size))
        case DebtKind.MESSAGE:
            if not owed.notices:
                return None
            text = _fitting(owed.notices, size)
            return MessagePush(nonce, box_padded(owed.dh_secret, nonce, text, size))


def _fitting(notices: tuple[Notice, ...], size: int) -> bytes:
    """As many of the newest as fit: addresses with many hosts are long."""
    for start in range(len(notices)):
        text = encode_pn_messages([_message(notice) for notice in notices[start:]])
        if len(text) <= size - 2:
            break
    return text


def _message(notice: Notice) -> PNMessageData:
    queue = SMPQueueNtf(decode_address(notice.address), notice.notifier_id)
    return PNMessageData(queue, notice.timestamp, notice.nonce, notice.meta)
