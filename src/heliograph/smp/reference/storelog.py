"""The reference's logs of queues, messages and notifications: one record a line.

    CREATE rid=I rk=K[,K] rdh=S sid=I sk=[K][ queue_mode=M|C][ link_id=I queue_data=D D]
           [ notifier=I K S[ nsrv=I]][ updated_at=N][ status=off|blocked,reason=R][ rsrv=I]
    LINK I I D D      LDELETE I         SECURE I K      KEYS I K[,K]     DELETE I     TIME I N
    NOTIFIER I I K S[ nsrv=I]           NDELETE I       SUSPEND I        BLOCK I reason=R
    UNBLOCK I         QUEUE_SERVICE I R|N [I]
    NEW_SERVICE service_id=I role=M|N|P cert=[D,D] cert_hash=D created_at=N

A message log has `v3 I I SECONDS flags=T|F D`, or `v3 I I SECONDS quota`; a notification log has
`v1 I I SECONDS NONCE META`. Bytes are base64url.

Pure: text in, values out. No error text quotes a line, because lines hold keys.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.runtime.reference.storelog import BadLine
from heliograph.smp.store.records import (
    LinkRecord,
    NotifierRecord,
    QueueRecord,
    QueueStatus,
    StoredLinkData,
)
from heliograph.wire.errors import BLOCKED, WireError, decode_error, encode_error
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import public_key_algorithm
from heliograph.wire.primitives import b64decode, b64encode
from heliograph.wire.smp.fields import QueueMode

SECRET_SIZE = 32


@dataclass(frozen=True, slots=True)
class QueueCreated:
    queue: QueueRecord
    link_data: StoredLinkData | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class LinkSet:
    """The link of a queue, or None if it was deleted."""

    recipient_id: bytes
    link_id: bytes | None
    data: StoredLinkData | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SenderKeySet:
    recipient_id: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class RecipientKeysSet:
    recipient_id: bytes
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NotifierSet:
    """The notifier credentials of a queue, or None if they were deleted."""

    recipient_id: bytes
    notifier: NotifierRecord | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class QueueStatusSet:
    recipient_id: bytes
    status: QueueStatus
    reason: BLOCKED | None = None


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    recipient_id: bytes


@dataclass(frozen=True, slots=True)
class QueueUsed:
    """The day a queue was used, which is not stored here."""

    recipient_id: bytes
    at: int


@dataclass(frozen=True, slots=True)
class ServiceCreated:
    service_id: bytes
    role: ServiceRole
    fingerprint: bytes
    created_at: int = 0


@dataclass(frozen=True, slots=True)
class QueueServiceSet:
    """The service of a queue's messages or, with NOTIFIER, of its notifications."""

    recipient_id: bytes
    role: ServiceRole
    service_id: bytes | None


@dataclass(frozen=True, slots=True)
class MessageLogged:
    """A message of the message log; `body` is None for the quota marker."""

    recipient_id: bytes
    msg_id: bytes
    timestamp: int
    notification: bool
    body: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotificationLogged:
    """A pending notification of the notification log."""

    notifier_id: bytes
    msg_id: bytes
    timestamp: int
    nonce: bytes = field(repr=False)
    meta: bytes = field(repr=False)


SmpRecord = (
    QueueCreated
    | LinkSet
    | SenderKeySet
    | RecipientKeysSet
    | NotifierSet
    | QueueStatusSet
    | QueueDeleted
    | QueueUsed
    | ServiceCreated
    | QueueServiceSet
    | MessageLogged
    | NotificationLogged
)

_B = r"([A-Za-z0-9_-]+=*)"
_D = r"([A-Za-z0-9_=-]*)"
"""Bytes that may be empty."""
_LIST = r"([A-Za-z0-9_=,-]+)"
_NUMBER = r"(-?[0-9]{1,18})"
_CREATE = re.compile(
    rf"rid={_B} rk={_LIST} rdh={_B} sid={_B} sk={_B}?"
    r"(?: sndSecure=([TF])| queue_mode=([MC]))?"
    rf"(?: link_id={_B} queue_data={_D} {_D})?"
    rf"(?: notifier={_B} {_B} {_B}(?: nsrv={_B})?)?"
    rf"(?: updated_at={_NUMBER})?(?: status=(active|off|blocked,.+?))?(?: rsrv={_B})?"
)
_SERVICE = re.compile(
    rf"service_id={_B} role=([MNP]) cert=([A-Za-z0-9_=,-]*) cert_hash={_B} created_at={_NUMBER}"
)
_BLOCKED = "BLOCKED "


def decode_smp_record(line: str) -> SmpRecord:
    """Decode a line. Raises `BadLine`."""
    kind, _, rest = line.partition(" ")
    known = _KINDS.get(kind)
    if known is None:
        raise BadLine("not a record of a store log, message log or notification log")
    pattern, decode = known
    match = pattern.fullmatch(rest)
    if match is None:
        raise BadLine(f"{kind}: its parts are not what they should be")
    try:
        return decode(*match.groups())
    except (WireError, BadLine) as exc:
        raise BadLine(f"{kind}: {exc}") from None


def encode_smp_record(
    record: QueueCreated | ServiceCreated | MessageLogged | NotificationLogged,
) -> str:
    """Encode a record of an export."""
    match record:
        case QueueCreated():
            return _encode_queue(record)
        case ServiceCreated():
            return (
                f"NEW_SERVICE service_id={b64encode(record.service_id)}"
                f" role={record.role.value.decode()} cert="
                f" cert_hash={b64encode(record.fingerprint)} created_at={record.created_at}"
            )
        case MessageLogged():
            start = f"v3 {b64encode(record.recipient_id)} {b64encode(record.msg_id)}"
            if record.body is None:
                return f"{start} {record.timestamp} quota"
            flag = "T" if record.notification else "F"
            return f"{start} {record.timestamp} flags={flag} {b64encode(record.body)}"

        case NotificationLogged():
            values = (record.msg_id, record.nonce, record.meta)
            msg_id, nonce, meta = map(b64encode, values)
            return f"v1 {b64encode(record.notifier_id)} {msg_id} {record.timestamp} {nonce} {meta}"


def _encode_queue(record: QueueCreated) -> str:
    queue, data, notifier = record.queue, record.link_data, record.queue.notifier
    line = (
        f"CREATE rid={b64encode(queue.recipient_id)}"
        f" rk={','.join(map(b64encode, queue.recipient_keys))} rdh={b64encode(queue.secret)}"
        f" sid={b64encode(queue.sender_id)} sk={b64encode(queue.sender_key or b'')}"
    )
    if queue.mode is not None:
        line += f" queue_mode={queue.mode.value.decode()}"
    if queue.link is not None and data is not None:
        line += f" link_id={b64encode(queue.link.link_id)}"
        line += f" queue_data={b64encode(data.fixed)} {b64encode(data.user)}"
    if notifier is not None:
        line += f" notifier={b64encode(notifier.notifier_id)} {b64encode(notifier.key)}"
        line += f" {b64encode(notifier.secret)}"
        if notifier.service_id is not None:
            line += f" nsrv={b64encode(notifier.service_id)}"
    if queue.blocked is not None:
        line += f" status=blocked,{encode_error(queue.blocked).decode().removeprefix(_BLOCKED)}"
    elif queue.status is QueueStatus.OFF:
        line += " status=off"
    if queue.service_id is not None:
        line += f" rsrv={b64encode(queue.service_id)}"
    return line


def _queue(
    recipient_id: str,
    keys: str,
    secret: str,
    sender_id: str,
    sender_key: str | None,
    sender_secures: str | None,
    mode: str | None,
    link_id: str | None,
    fixed: str | None,
    user: str | None,
    notifier_id: str | None,
    notifier_key: str | None,
    notifier_secret: str | None,
    notifier_service: str | None,
    _updated_at: str | None,
    status: str | None,
    service_id: str | None,
) -> SmpRecord:
    if sender_secures is not None:
        mode = "M" if sender_secures == "T" else "C"
    queue = QueueRecord(
        b64decode(recipient_id),
        b64decode(sender_id),
        _keys(keys),
        _secret(secret),
        None if sender_key is None else _key(sender_key),
        None if mode is None else QueueMode(mode.encode()),
    )
    if status == "off":
        queue.status = QueueStatus.OFF
    elif status is not None and status != "active":
        queue.status, queue.blocked = QueueStatus.BLOCKED, _reason(status.partition(",")[2])
    if notifier_id is not None and notifier_key is not None and notifier_secret is not None:
        queue.notifier = _notifier(notifier_id, notifier_key, notifier_secret, notifier_service)
    if service_id is not None:
        queue.service_id = b64decode(service_id)
    if link_id is None or fixed is None or user is None:
        return QueueCreated(queue)
    data = StoredLinkData(_data(fixed), _data(user))
    queue.link = LinkRecord.of(b64decode(link_id), data.fixed)
    return QueueCreated(queue, data)


def _notifier(
    notifier_id: str, key: str, secret: str, service_id: str | None = None
) -> NotifierRecord:
    service = None if service_id is None else b64decode(service_id)
    return NotifierRecord(b64decode(notifier_id), _key(key), _secret(secret), service)


def _service(
    service_id: str, role: str, _chain: str, fingerprint: str, created_at: str
) -> SmpRecord:
    return ServiceCreated(
        b64decode(service_id),
        ServiceRole(role.encode()),
        b64decode(fingerprint),
        int(created_at),
    )


def _message(
    recipient_id: str, msg_id: str, at: str, quota: str | None, flag: str | None, body: str | None
) -> SmpRecord:
    content = None if quota or body is None else _data(body)
    return MessageLogged(b64decode(recipient_id), b64decode(msg_id), int(at), flag == "T", content)


def _data(text: str) -> bytes:
    return b64decode(text) if text else b""


def _keys(text: str) -> tuple[bytes, ...]:
    return tuple(map(_key, text.split(",")))


def _key(text: str) -> bytes:
    key = b64decode(text)
    if public_key_algorithm(key) is None:
        raise BadLine("a key is not a public key")
    return key


def _secret(text: str) -> bytes:
    secret = b64decode(text)
    if len(secret) != SECRET_SIZE:
        raise BadLine("a secret has not 32 bytes")
    return secret


def _reason(text: str) -> BLOCKED:
    reason = decode_error(f"{_BLOCKED}{text}".encode())
    if not isinstance(reason, BLOCKED):
        raise BadLine("not a reason to block")
    return reason


_ONE = re.compile(_B)
_Decode = Callable[..., SmpRecord]

_KINDS: dict[str, tuple[re.Pattern[str], _Decode]] = {
    "CREATE": (_CREATE, _queue),
    "LINK": (
        re.compile(rf"{_B} {_B} {_D} {_D}"),
        lambda r, i, f, u: LinkSet(b64decode(r), b64decode(i), StoredLinkData(_data(f), _data(u))),
    ),
    "LDELETE": (_ONE, lambda r: LinkSet(b64decode(r), None)),
    "SECURE": (re.compile(rf"{_B} {_B}"), lambda r, k: SenderKeySet(b64decode(r), _key(k))),
    "KEYS": (re.compile(rf"{_B} {_LIST}"), lambda r, k: RecipientKeysSet(b64decode(r), _keys(k))),
    "NOTIFIER": (
        re.compile(rf"{_B} {_B} {_B} {_B}(?: nsrv={_B})?"),
        lambda r, *credentials: NotifierSet(b64decode(r), _notifier(*credentials)),
    ),
    "NDELETE": (_ONE, lambda r: NotifierSet(b64decode(r))),
    "SUSPEND": (_ONE, lambda r: QueueStatusSet(b64decode(r), QueueStatus.OFF)),
    "BLOCK": (
        re.compile(rf"{_B} (.+)"),
        lambda r, reason: QueueStatusSet(b64decode(r), QueueStatus.BLOCKED, _reason(reason)),
    ),
    "UNBLOCK": (_ONE, lambda r: QueueStatusSet(b64decode(r), QueueStatus.ACTIVE)),
    "DELETE": (_ONE, lambda r: QueueDeleted(b64decode(r))),
    "TIME": (re.compile(rf"{_B} {_NUMBER}"), lambda r, at: QueueUsed(b64decode(r), int(at))),
    "NEW_SERVICE": (_SERVICE, _service),
    "QUEUE_SERVICE": (
        re.compile(rf"{_B} ([RN])(?: {_B}?)?"),
        lambda r, party, s: QueueServiceSet(
            b64decode(r),
            ServiceRole.NOTIFIER if party == "N" else ServiceRole.MESSAGING,
            None if s is None else b64decode(s),
        ),
    ),
    "v1": (
        re.compile(rf"{_B} {_B} {_NUMBER} {_B} {_B}"),
        lambda n, m, at, nonce, meta: NotificationLogged(
            b64decode(n), b64decode(m), int(at), b64decode(nonce), b64decode(meta)
        ),
    ),
    "v3": (
        re.compile(rf"{_B} {_B} {_NUMBER} (?:(quota)|(?:flags=([TF])\S* )?{_D})"),
        _message,
    ),
}
