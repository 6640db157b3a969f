"""Codecs of composite fields of the messaging router protocol."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from heliograph.wire.addresses import valid_password
from heliograph.wire.keys import auth_public_key, x25519_public_key
from heliograph.wire.primitives import (
    Codec,
    Reader,
    boolean,
    encode_large,
    encode_short,
    maybe,
    short,
)


@dataclass(frozen=True, slots=True)
class MsgFlags:
    notification: bool


_FLAGS = {boolean.encode(flag): MsgFlags(flag) for flag in (True, False)}


def _decode_flags(reader: Reader) -> MsgFlags:
    flags = _FLAGS.get(reader.take(1))
    if flags is None:
        raise reader.fail("neither T nor F")
    space = reader.data.find(b" ", reader.pos)
    if space < 0:
        raise reader.fail("no space after the flags")
    reader.pos = space + 1  # characters before it are flags of a later version
    return flags


msg_flags = Codec[MsgFlags](
    "flags + SP", lambda flags: boolean.encode(flags.notification) + b" ", _decode_flags
)


class SubscriptionMode(Enum):
    SUBSCRIBE = b"S"
    CREATE_ONLY = b"C"


class QueueMode(Enum):
    MESSAGING = b"M"
    CONTACT = b"C"


_Member = TypeVar("_Member", bound=Enum)


def _enum_codec(name: str, members: type[_Member]) -> Codec[_Member]:
    def decode(reader: Reader) -> _Member:
        try:
            return members(reader.take(1))
        except ValueError:
            raise reader.fail(f"unknown {name}") from None

    return Codec(name, lambda member: member.value, decode)


subscription_mode: Codec[SubscriptionMode] = _enum_codec("`S` or `C`", SubscriptionMode)
queue_mode: Codec[QueueMode] = _enum_codec("`M` or `C`", QueueMode)


@dataclass(frozen=True, slots=True)
class QueueLink:
    """Short-link data that a queue is created with; `link_id` only for contact queues."""

    link_id: bytes
    sender_id: bytes
    fixed_data: bytes
    user_data: bytes


@dataclass(frozen=True, slots=True)
class QueueReqData:
    mode: QueueMode
    link: QueueLink | None = None


def _encode_link(link: QueueLink) -> bytes:
    return (
        encode_short(link.sender_id) + encode_large(link.fixed_data) + encode_large(link.user_data)
    )


def _decode_messaging_link(reader: Reader) -> QueueLink:
    return QueueLink(b"", reader.short(), reader.large(), reader.large())


def _decode_contact_link(reader: Reader) -> QueueLink:
    return QueueLink(reader.short(), reader.short(), reader.large(), reader.large())


_link = {
    QueueMode.MESSAGING: maybe(Codec[QueueLink]("link", _encode_link, _decode_messaging_link)),
    QueueMode.CONTACT: maybe(
        Codec[QueueLink](
            "link",
            lambda link: encode_short(link.link_id) + _encode_link(link),
            _decode_contact_link,
        )
    ),
}


def _decode_queue_request(reader: Reader) -> QueueReqData:
    mode = queue_mode.decode(reader)
    return QueueReqData(mode, _link[mode].decode(reader))


queue_request = Codec[QueueReqData](
    "mode + maybe(link data)",
    lambda data: data.mode.value + _link[data.mode].encode(data.link),
    _decode_queue_request,
)

# Before short links, a queue was created and announced with one boolean: may its sender secure it?
sender_can_secure_request = Codec[QueueReqData | None](
    "bool sender can secure",
    lambda data: boolean.encode(data is not None and data.mode is QueueMode.MESSAGING),
    lambda reader: QueueReqData(_mode_of(boolean.decode(reader))),
)
sender_can_secure = Codec[QueueMode | None](
    "bool sender can secure",
    lambda mode: boolean.encode(mode is QueueMode.MESSAGING),
    lambda reader: _mode_of(boolean.decode(reader)),
)


def _mode_of(sender_secures: bool) -> QueueMode:
    return QueueMode.MESSAGING if sender_secures else QueueMode.CONTACT


def _decode_legacy_password(reader: Reader) -> bytes | None:
    if reader.data[reader.pos : reader.pos + 1] != b"A":
        return None
    reader.pos += 1
    return _decode_password(reader)


def _decode_password(reader: Reader) -> bytes:
    password = reader.short()
    if not valid_password(password):
        raise reader.fail("a character that a password may not have")
    return password


_password = Codec[bytes]("str password", encode_short, _decode_password)
password = maybe(_password)
legacy_password = Codec[bytes | None](
    "optional `A` + str password",
    lambda value: b"" if value is None else b"A" + encode_short(value),
    _decode_legacy_password,
)


@dataclass(frozen=True, slots=True)
class NewNtfCreds:
    auth_key: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class ServerNtfCreds:
    notifier_id: bytes
    dh_key: bytes


new_ntf_creds = maybe(
    Codec[NewNtfCreds](
        "notifier key + X25519 key",
        lambda creds: encode_short(creds.auth_key) + encode_short(creds.dh_key),
        lambda reader: NewNtfCreds(
            auth_public_key.decode(reader), x25519_public_key.decode(reader)
        ),
    )
)
server_ntf_creds = maybe(
    Codec[ServerNtfCreds](
        "str notifierId + X25519 key",
        lambda creds: encode_short(creds.notifier_id) + encode_short(creds.dh_key),
        lambda reader: ServerNtfCreds(short.decode(reader), x25519_public_key.decode(reader)),
    )
)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The state of a queue, which QUE reports to its recipient for diagnostics.

    `sub` has `qSubThread` and `qDelivered`; `msg` has `msgId`, `msgTs` and `msgType`.
    """

    snd: bool
    ntf: bool
    size: int
    sub: dict[str, str] | None = None
    msg: dict[str, str] | None = None


def _encode_info(info: QueueInfo) -> bytes:
    fields: dict[str, object] = {}
    if info.sub is not None:
        fields["qiSub"] = info.sub
    if info.msg is not None:
        fields["qiMsg"] = info.msg
    fields |= {"qiSnd": info.snd, "qiNtf": info.ntf, "qiSize": info.size}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def _decode_info(reader: Reader) -> QueueInfo:
    try:
        fields = json.loads(reader.tail())
    except (ValueError, RecursionError):
        raise reader.fail("malformed queue information") from None
    match fields:
        case {"qiSnd": bool(snd), "qiNtf": bool(ntf), "qiSize": int(size)} if type(size) is int:
            sub, msg = _texts(fields.get("qiSub"), reader), _texts(fields.get("qiMsg"), reader)
            return QueueInfo(snd, ntf, size, sub, msg)
    raise reader.fail("malformed queue information")


def _texts(fields: object, reader: Reader) -> dict[str, str] | None:
    if fields is None:
        return None
    if not isinstance(fields, dict) or not all(isinstance(text, str) for text in fields.values()):
        raise reader.fail("malformed queue information")
    return fields


queue_info = Codec[QueueInfo]("JSON", _encode_info, _decode_info)
