"""Build the encrypted, padded payload of a pending push."""

from dataclasses import replace
from typing import NamedTuple

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


class BuiltPush(NamedTuple):
    """A payload, or None if no notification is left, and the push with what the payload carries."""

    payload: Push | None
    push: PendingPush


def build(push: PendingPush, nonce: bytes, size: int) -> BuiltPush:
    """Build the payload, its text padded to `size`.

    It carries the newest notifications that fit. Others are coalesced, as are all but the last few
    of a token.
    """
    match push.kind:
        case PushKind.CHECK:
            return BuiltPush(CheckMessagesPush(), push)
        case PushKind.VERIFICATION:
            box = box_padded(push.dh_secret, nonce, push.code, size)
            return BuiltPush(VerificationPush(nonce, box), push)
        case PushKind.MESSAGE:
            notices, text = _fitting(push.notices, size)
            if len(notices) < len(push.notices):
                push = replace(push, notices=notices)
            if not notices:
                return BuiltPush(None, push)
            return BuiltPush(
                MessagePush(nonce, box_padded(push.dh_secret, nonce, text, size)), push
            )


def _fitting(notices: tuple[Notice, ...], size: int) -> tuple[tuple[Notice, ...], bytes]:
    """Return the newest notifications that fit, and their text: some addresses are long."""
    while notices:
        text = encode_pn_messages([_message(notice) for notice in notices])
        if len(text) <= size - 2:
            return notices, text
        notices = notices[1:]
    return (), b""


def _message(notice: Notice) -> PNMessageData:
    queue = SMPQueueNtf(decode_address(notice.address), notice.notifier_id)
    return PNMessageData(queue, notice.timestamp, notice.nonce, notice.meta)
