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

from heliograph.crypto.boxes import TAG_SIZE
from heliograph.runtime.reference.storelog import BadLine, decode_line
from heliograph.smp.reference.records import (
    LinkSet,
    MessageLogged,
    NotificationLogged,
    NotifierSet,
    QueueCreated,
    QueueDeleted,
    QueueServiceSet,
    QueueStatusSet,
    QueueUsed,
    RecipientKeysSet,
    SenderKeySet,
    ServiceCreated,
    SmpRecord,
)
from heliograph.smp.store.records import (
    ID_SIZE,
    LinkRecord,
    NotifierRecord,
    QueueRecord,
    QueueStatus,
    StoredLinkData,
)
from heliograph.wire.errors import BLOCKED, decode_error, encode_error
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import public_key_algorithm
from heliograph.wire.ntf.push import NMSG_META_SIZE
from heliograph.wire.primitives import b64decode, b64encode
from heliograph.wire.requests import encode_reply
from heliograph.wire.smp import LNK, NONCE_SIZE, SMP_RESPONSES, max_message_length
from heliograph.wire.smp.fields import QueueMode
from heliograph.wire.transmissions import Session, max_transmission_size
from heliograph.wire.versions import SMP_VERSIONS

SECRET_SIZE = 32
MAX_ID_SIZE = 255
MAX_KEYS = 255
MAX_BODY_SIZE = max_message_length(SMP_VERSIONS.min)
META_SIZE = NMSG_META_SIZE + TAG_SIZE


def _max_link_data() -> int:
    """Return how many bytes of link data fit in LNK, beside IDs of the usual size."""
    session = Session.smp(bytes(SECRET_SIZE), SMP_VERSIONS.max)
    an_id = bytes(ID_SIZE)
    empty = encode_reply(session, SMP_RESPONSES, an_id, an_id, LNK(an_id, b"", b""))
    return max_transmission_size(session) - len(empty)


MAX_LINK_DATA = _max_link_data()


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
    return decode_line(line, _KINDS, "store log, message log or notification log")


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
    if queue.link is not None and queue.link.link_id and data is not None:
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
        _id(recipient_id),
        _id(sender_id),
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
        queue.service_id = _id(service_id)
    if link_id is None or fixed is None or user is None:
        return QueueCreated(queue)
    found, data = _link(link_id, fixed, user)
    queue.link = LinkRecord.of(found, data.fixed)
    return QueueCreated(queue, data)


def _notifier(
    notifier_id: str, key: str, secret: str, service_id: str | None = None
) -> NotifierRecord:
    service = None if service_id is None else _id(service_id)
    return NotifierRecord(_id(notifier_id), _key(key), _secret(secret), service)


def _service(
    service_id: str, role: str, _chain: str, fingerprint: str, created_at: str
) -> SmpRecord:
    return ServiceCreated(
        _id(service_id),
        ServiceRole(role.encode()),
        b64decode(fingerprint),
        int(created_at),
    )


def _message(
    recipient_id: str, msg_id: str, at: str, quota: str | None, flag: str | None, body: str | None
) -> SmpRecord:
    content = None if quota or body is None else _data(body)
    if content is not None and len(content) > MAX_BODY_SIZE:
        raise BadLine(f"the message has more than {MAX_BODY_SIZE} bytes")
    return MessageLogged(_id(recipient_id), _id(msg_id), int(at), flag == "T", content)


def _notification(
    notifier_id: str, msg_id: str, at: str, nonce_text: str, meta_text: str
) -> SmpRecord:
    nonce, meta = b64decode(nonce_text), b64decode(meta_text)
    if len(nonce) != NONCE_SIZE or len(meta) != META_SIZE:
        raise BadLine("its nonce or its content has a wrong length")
    return NotificationLogged(_id(notifier_id), _id(msg_id), int(at), nonce, meta)


def _link(link_id: str, fixed: str, user: str) -> tuple[bytes, StoredLinkData]:
    """Return the link and its data, which the router must be able to send in one block."""
    found, data = _id(link_id), StoredLinkData(_data(fixed), _data(user))
    if sum(map(len, data)) > MAX_LINK_DATA:
        raise BadLine(f"the data of the link has more than {MAX_LINK_DATA} bytes")
    return found, data


def _id(text: str) -> bytes:
    entity_id = b64decode(text)
    if len(entity_id) > MAX_ID_SIZE:
        raise BadLine(f"an ID has more than {MAX_ID_SIZE} bytes")
    return entity_id


def _data(text: str) -> bytes:
    return b64decode(text) if text else b""


def _keys(text: str) -> tuple[bytes, ...]:
    keys = tuple(map(_key, text.split(",")))
    if len(keys) > MAX_KEYS:
        raise BadLine(f"it has more than {MAX_KEYS} keys")
    return keys


def _key(text: str) -> bytes:
    key = b64decode(text)
    if public_key_algorithm(key) is None:
        raise BadLine("a key is not a public key")
    return key


def _secret(text: str) -> bytes:
    secret = b64decode(text)
    if len(secret) != SECRET_SIZE:
        raise BadLine("a secret does not have 32 bytes")
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
        lambda r, *link: LinkSet(_id(r), *_link(*link)),
    ),
    "LDELETE": (_ONE, lambda r: LinkSet(_id(r), None)),
    "SECURE": (re.compile(rf"{_B} {_B}"), lambda r, k: SenderKeySet(_id(r), _key(k))),
    "KEYS": (re.compile(rf"{_B} {_LIST}"), lambda r, k: RecipientKeysSet(_id(r), _keys(k))),
    "NOTIFIER": (
        re.compile(rf"{_B} {_B} {_B} {_B}(?: nsrv={_B})?"),
        lambda r, *credentials: NotifierSet(_id(r), _notifier(*credentials)),
    ),
    "NDELETE": (_ONE, lambda r: NotifierSet(_id(r))),
    "SUSPEND": (_ONE, lambda r: QueueStatusSet(_id(r), QueueStatus.OFF)),
    "BLOCK": (
        re.compile(rf"{_B} (.+)"),
        lambda r, reason: QueueStatusSet(_id(r), QueueStatus.BLOCKED, _reason(reason)),
    ),
    "UNBLOCK": (_ONE, lambda r: QueueStatusSet(_id(r), QueueStatus.ACTIVE)),
    "DELETE": (_ONE, lambda r: QueueDeleted(_id(r))),
    "TIME": (re.compile(rf"{_B} {_NUMBER}"), lambda r, at: QueueUsed(_id(r), int(at))),
    "NEW_SERVICE": (_SERVICE, _service),
    "QUEUE_SERVICE": (
        re.compile(rf"{_B} ([RN])(?: {_B}?)?"),
        lambda r, party, s: QueueServiceSet(
            _id(r),
            ServiceRole.NOTIFIER if party == "N" else ServiceRole.MESSAGING,
            None if s is None else _id(s),
        ),
    ),
    "v1": (
        re.compile(rf"{_B} {_B} {_NUMBER} {_B} {_B}"),
        _notification,
    ),
    "v3": (
        re.compile(rf"{_B} {_B} {_NUMBER} (?:(quota)|(?:flags=([TF])\S* )?{_D})"),
        _message,
    ),
}
