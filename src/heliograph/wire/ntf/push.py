"""Content of pushes: NMsgMeta, the list of PNMessageData, and the JSON around their boxes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from heliograph.wire.addresses import SMPQueueNtf, decode_queue, encode_queue
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.ntf.tokens import PushProvider
from heliograph.wire.primitives import Reader, b64decode, b64encode, encode_short, i64

NMSG_META_SIZE = 128  # padded, before encryption
PUSH_SIZE = 3072  # padded, before encryption
APNS_DOCUMENTED_SIZE = 2912  # padded, too: the APNs body then has at most 4096 bytes
FCM_PUSH_SIZE = 3008  # padded, too: names and base64 values may have 4096 bytes in all
WEB_PUSH_SIZE = 2928  # padded, too: the encrypted body then has at most 4096 bytes
MAX_PUSH_MESSAGES = 6
NONCE_SIZE = 24

ALERT_TEXT = "Encrypted message or another app event"
CHECK_MESSAGE_CATEGORY = "NTF_CAT_CHECK_MESSAGE"


@dataclass(frozen=True, slots=True)
class NMsgMeta:
    """ID and time of an arrived message, known only to the SMP router and the recipient."""

    msg_id: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class PNMessageData:
    """One notification as the NTF router knows it: `meta` stays encrypted for the recipient."""

    queue: SMPQueueNtf
    timestamp: int
    nonce: bytes
    meta: bytes


def encode_nmsg_meta(meta: NMsgMeta) -> bytes:
    return encode_short(meta.msg_id) + i64.encode(meta.timestamp)


def decode_nmsg_meta(data: bytes) -> NMsgMeta:
    """Decode NMsgMeta. Bytes after the time are for later versions and ignored."""
    reader = Reader(data)
    return NMsgMeta(reader.short(), i64.decode(reader))


def encode_pn_messages(messages: Sequence[PNMessageData]) -> bytes:
    return ";".join(map(_encode_message, messages)).encode()


def decode_pn_messages(data: bytes) -> list[PNMessageData]:
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise _bad("the list is not ASCII") from None
    return [_decode_message(item) for item in text.split(";")]


def _encode_message(message: PNMessageData) -> str:
    return " ".join(
        (
            encode_queue(message.queue),
            str(message.timestamp),
            b64encode(message.nonce),
            b64encode(message.meta),
        )
    )


def _decode_message(text: str) -> PNMessageData:
    parts = text.split(" ")
    if len(parts) != 4:
        raise _bad("four parts separated by spaces are needed")
    queue, timestamp, nonce, meta = parts
    digits = timestamp.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise _bad("the time is not a number")
    return PNMessageData(decode_queue(queue), int(timestamp), _nonce(nonce), b64decode(meta))


def _nonce(text: str) -> bytes:
    """Decode a nonce; cut or zero-fill it, so that opening a box with it is always possible."""
    return b64decode(text)[:NONCE_SIZE].ljust(NONCE_SIZE, b"\0")


@dataclass(frozen=True, slots=True)
class VerificationPush:
    """The registration code, boxed; delivered silently."""

    nonce: bytes
    box: bytes


@dataclass(frozen=True, slots=True)
class MessagePush:
    """The list of PNMessageData, boxed; delivered as an alert that the app may rewrite."""

    nonce: bytes
    box: bytes


@dataclass(frozen=True, slots=True)
class CheckMessagesPush:
    """Wakes the app to look for messages."""


Push = VerificationPush | MessagePush | CheckMessagesPush


def push_size(provider: PushProvider) -> int:
    """Return the size to which the plain text of a box is padded; a device opens any size."""
    return _SIZES.get(provider, PUSH_SIZE)


_SIZES = {PushProvider.FCM: FCM_PUSH_SIZE, PushProvider.WEB_PUSH: WEB_PUSH_SIZE}


def notification_data(push: Push) -> dict[str, object]:
    """Return the JSON object that every provider carries."""
    match push:
        case VerificationPush():
            return {"nonce": b64encode(push.nonce), "verification": b64encode(push.box)}
        case MessagePush():
            return {"message": b64encode(push.box), "nonce": b64encode(push.nonce)}
        case CheckMessagesPush():
            return {"checkMessages": True}
        case _:
            assert_never(push)


def encode_web_push(push: Push) -> bytes:
    """Return the message of Web Push: the JSON object alone, as in the reference's branch."""
    return json.dumps(notification_data(push), separators=(",", ":")).encode("ascii")


def encode_apns(push: Push) -> bytes:
    """Return the APNs body, members in the reference's order. Nothing in it needs escaping."""
    match push:
        case VerificationPush():
            data = f'"nonce":"{b64encode(push.nonce)}","verification":"{b64encode(push.box)}"'
        case MessagePush():
            data = f'"message":"{b64encode(push.box)}","nonce":"{b64encode(push.nonce)}"'
        case CheckMessagesPush():
            data = '"checkMessages":true'
        case _:
            assert_never(push)
    aps = _ALERT if isinstance(push, MessagePush) else _SILENT
    return f'{{"notificationData":{{{data}}},"aps":{aps}}}'.encode("ascii")


_SILENT = '{"content-available":1}'
_ALERT = f'{{"category":"{CHECK_MESSAGE_CATEGORY}","mutable-content":1,"alert":"{ALERT_TEXT}"}}'


def decode_push(data: bytes) -> Push:
    """Decode a push from the whole APNs body, or from `notificationData` alone."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise _bad("not JSON") from None
    if isinstance(body, dict) and "notificationData" in body:
        body = body["notificationData"]
    match body:
        case {"nonce": str(nonce), "verification": str(box)}:
            return VerificationPush(_nonce(nonce), b64decode(box))
        case {"nonce": str(nonce), "message": str(box)}:
            return MessagePush(_nonce(nonce), b64decode(box))
        case {"checkMessages": True | "true"}:  # FCM carries only strings
            return CheckMessagesPush()
    raise _bad("no notification data")


def _bad(reason: str) -> WireError:
    return WireError(ErrorCode.CMD_SYNTAX, f"malformed push: {reason}")
