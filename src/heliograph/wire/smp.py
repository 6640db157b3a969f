"""Commands and responses of the messaging router protocol, versions 6 to 19.

Only what queues and notifications need: no proxying, short links or files.
"""

from dataclasses import dataclass, replace

from heliograph.wire.errors import BLOCKED, ErrorCode, ErrorType
from heliograph.wire.fields import (
    MsgFlags,
    NewNtfCreds,
    QueueInfo,
    QueueMode,
    QueueReqData,
    ServerNtfCreds,
    SubscriptionMode,
    error_type,
    legacy_password,
    msg_flags,
    new_ntf_creds,
    password,
    queue_info,
    queue_mode,
    queue_request,
    sender_can_secure,
    sender_can_secure_request,
    server_ntf_creds,
    subscription_mode,
)
from heliograph.wire.keys import auth_public_key, x25519_public_key
from heliograph.wire.primitives import i64, maybe, raw, short, tail
from heliograph.wire.table import OK as OK
from heliograph.wire.table import PING as PING
from heliograph.wire.table import PONG as PONG
from heliograph.wire.table import Credentials, Field, Message, Table
from heliograph.wire.versions import (
    SMP_BLOCKED_ENTITY,
    SMP_CLIENT_NOTICES,
    SMP_DELETED_EVENT,
    SMP_ENCRYPTED_BLOCK,
    SMP_NEW_NTF_CREDS,
    SMP_SENDER_AUTH_KEY,
    SMP_SENDING_PROXY,
    SMP_SERVICE_CERTS,
    SMP_SERVICE_HASH,
    SMP_SHORT_LINKS,
)

NO_COUNT = -1  # what a version without counts stands for
NO_HASH = bytes(16)
NONCE_SIZE = 24


def max_message_length(version: int) -> int:
    """The longest body that SEND may carry."""
    if version >= SMP_ENCRYPTED_BLOCK:
        return 16048
    return 16064 if version >= SMP_SENDING_PROXY else 16088


@dataclass(frozen=True, slots=True)
class NEW:
    """Create a queue."""

    rcv_auth_key: bytes
    rcv_dh_key: bytes
    password: bytes | None = None
    mode: SubscriptionMode = SubscriptionMode.SUBSCRIBE
    queue_data: QueueReqData | None = None
    ntf_creds: NewNtfCreds | None = None


@dataclass(frozen=True, slots=True)
class SUB:
    """Subscribe to a queue."""


@dataclass(frozen=True, slots=True)
class SUBS:
    """Subscribe to all queues of a service."""

    count: int = NO_COUNT
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class KEY:
    """Secure a queue with its sender's key."""

    sender_key: bytes


@dataclass(frozen=True, slots=True)
class NKEY:
    """Create or replace the notifier credentials of a queue."""

    auth_key: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class NDEL:
    """Remove the notifier credentials of a queue."""


@dataclass(frozen=True, slots=True)
class GET:
    """Receive one message without subscribing."""


@dataclass(frozen=True, slots=True)
class ACK:
    """Acknowledge a message; the next one may follow."""

    msg_id: bytes


@dataclass(frozen=True, slots=True)
class OFF:
    """Suspend a queue."""


@dataclass(frozen=True, slots=True)
class DEL:
    """Delete a queue."""


@dataclass(frozen=True, slots=True)
class QUE:
    """Ask what the router knows of a queue."""


@dataclass(frozen=True, slots=True)
class SKEY:
    """Secure a queue, by its sender."""

    sender_key: bytes


@dataclass(frozen=True, slots=True)
class SEND:
    """Send a message."""

    flags: MsgFlags
    body: bytes


@dataclass(frozen=True, slots=True)
class NSUB:
    """Subscribe to the notifications of a queue."""


@dataclass(frozen=True, slots=True)
class NSUBS:
    """Subscribe to the notifications of all queues of a service."""

    count: int = NO_COUNT
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class IDS:
    """A queue was created."""

    rcv_id: bytes
    snd_id: bytes
    dh_key: bytes
    mode: QueueMode | None = None
    link_id: bytes | None = None
    service_id: bytes | None = None
    ntf_creds: ServerNtfCreds | None = None


@dataclass(frozen=True, slots=True)
class SOK:
    """Subscribed; with the service the queue is now associated with."""

    service_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class SOKS:
    """Subscribed to this many queues of a service."""

    count: int
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class MSG:
    """A message; `body` is a box for the recipient."""

    msg_id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class ALLS:
    """Every message that waited for SUBS was sent."""


@dataclass(frozen=True, slots=True)
class NID:
    """Notifier credentials were created."""

    notifier_id: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class NMSG:
    """A message arrived in the queue; `meta` is a box of NMsgMeta for the recipient."""

    nonce: bytes
    meta: bytes


@dataclass(frozen=True, slots=True)
class END:
    """Another connection took over the subscription."""


@dataclass(frozen=True, slots=True)
class ENDS:
    """Another connection took over the subscription of a service."""

    count: int
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class DELD:
    """The queue was deleted."""


@dataclass(frozen=True, slots=True)
class INFO:
    """What the router knows of a queue."""

    info: QueueInfo


@dataclass(frozen=True, slots=True)
class ERR:
    """Refused, and why."""

    error: ErrorType


SmpCommand = (
    NEW
    | SUB
    | SUBS
    | KEY
    | NKEY
    | NDEL
    | GET
    | ACK
    | OFF
    | DEL
    | QUE
    | SKEY
    | SEND
    | NSUB
    | NSUBS
    | PING
)
SmpResponse = (
    IDS | SOK | SOKS | MSG | ALLS | NID | NMSG | END | ENDS | DELD | INFO | OK | ERR | PONG
)


def _sok_as_ok(message: SOK, version: int) -> SOK | OK:
    return message if version >= SMP_SERVICE_CERTS else OK()


def _deld_as_end(message: DELD, version: int) -> DELD | END:
    return message if version >= SMP_DELETED_EVENT else END()


def _hide_blocked(message: ERR, version: int) -> ERR:
    if version >= SMP_CLIENT_NOTICES or not isinstance(message.error, BLOCKED):
        return message
    if version >= SMP_BLOCKED_ENTITY:
        return ERR(replace(message.error, notice=None))
    return ERR(ErrorCode.AUTH)


_COUNT_AND_HASH = (
    Field("count", i64, since=SMP_SERVICE_HASH),
    Field("ids_hash", short, since=SMP_SERVICE_HASH),
)
_COUNT_THEN_HASH = (Field("count", i64), Field("ids_hash", short, since=SMP_SERVICE_HASH))

SMP_COMMANDS = Table(
    "SMP command",
    (
        Message(
            NEW,
            Credentials.AUTH,
            (
                Field("rcv_auth_key", auth_public_key),
                Field("rcv_dh_key", x25519_public_key),
                Field("password", legacy_password, until=SMP_SENDER_AUTH_KEY - 1),
                Field("password", password, since=SMP_SENDER_AUTH_KEY),
                Field("mode", subscription_mode),
                Field(
                    "queue_data",
                    sender_can_secure_request,
                    since=SMP_SENDER_AUTH_KEY,
                    until=SMP_SHORT_LINKS - 1,
                ),
                Field("queue_data", maybe(queue_request), since=SMP_SHORT_LINKS),
                Field("ntf_creds", new_ntf_creds, since=SMP_NEW_NTF_CREDS),
            ),
        ),
        Message(SUB, Credentials.ENTITY_AUTH),
        Message(SUBS, Credentials.ENTITY_AUTH, _COUNT_AND_HASH),
        Message(KEY, Credentials.ENTITY_AUTH, (Field("sender_key", auth_public_key),)),
        Message(
            NKEY,
            Credentials.ENTITY_AUTH,
            (Field("auth_key", auth_public_key), Field("dh_key", x25519_public_key)),
        ),
        Message(NDEL, Credentials.ENTITY_AUTH),
        Message(GET, Credentials.ENTITY_AUTH),
        Message(ACK, Credentials.ENTITY_AUTH, (Field("msg_id", short),)),
        Message(OFF, Credentials.ENTITY_AUTH),
        Message(DEL, Credentials.ENTITY_AUTH),
        Message(QUE, Credentials.ENTITY_AUTH),
        Message(SKEY, Credentials.ENTITY_AUTH, (Field("sender_key", auth_public_key),)),
        Message(SEND, Credentials.ENTITY, (Field("flags", msg_flags), Field("body", tail))),
        Message(NSUB, Credentials.ENTITY_AUTH),
        Message(NSUBS, Credentials.ENTITY_AUTH, _COUNT_AND_HASH),
        Message(PING, Credentials.NONE),
    ),
)

SMP_RESPONSES = Table(
    "SMP response",
    (
        Message(
            IDS,
            Credentials.REPLY_ANY,
            (
                Field("rcv_id", short),
                Field("snd_id", short),
                Field("dh_key", x25519_public_key),
                Field(
                    "mode", sender_can_secure, since=SMP_SENDER_AUTH_KEY, until=SMP_SHORT_LINKS - 1
                ),
                Field("mode", maybe(queue_mode), since=SMP_SHORT_LINKS),
                Field("link_id", maybe(short), since=SMP_SHORT_LINKS),
                Field("service_id", maybe(short), since=SMP_SERVICE_CERTS),
                Field("ntf_creds", server_ntf_creds, since=SMP_NEW_NTF_CREDS),
            ),
        ),
        Message(SOK, Credentials.REPLY, (Field("service_id", maybe(short)),), downgrade=_sok_as_ok),
        Message(SOKS, Credentials.REPLY, _COUNT_THEN_HASH),
        Message(MSG, Credentials.REPLY, (Field("msg_id", short), Field("body", tail))),
        Message(ALLS, Credentials.REPLY_NO_ENTITY),
        Message(
            NID,
            Credentials.REPLY,
            (Field("notifier_id", short), Field("dh_key", x25519_public_key)),
        ),
        Message(NMSG, Credentials.REPLY, (Field("nonce", raw(NONCE_SIZE)), Field("meta", short))),
        Message(END, Credentials.REPLY),
        Message(ENDS, Credentials.REPLY, _COUNT_THEN_HASH),
        Message(DELD, Credentials.REPLY, downgrade=_deld_as_end),
        Message(INFO, Credentials.REPLY, (Field("info", queue_info),)),
        Message(OK, Credentials.REPLY),
        Message(ERR, Credentials.REPLY_ANY, (Field("error", error_type),), downgrade=_hide_blocked),
        Message(PONG, Credentials.REPLY_NO_ENTITY),
    ),
)
