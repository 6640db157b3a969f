"""Commands and responses for queues and their messages."""

from dataclasses import dataclass

from heliograph.wire.keys import auth_public_key, x25519_public_key
from heliograph.wire.primitives import list_of, maybe, short, tail
from heliograph.wire.smp.fields import (
    MsgFlags,
    NewNtfCreds,
    QueueInfo,
    QueueMode,
    QueueReqData,
    ServerNtfCreds,
    SubscriptionMode,
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
from heliograph.wire.smp.subscriptions import COUNT_AND_HASH, NO_COUNT, NO_HASH, SOK, SOKS
from heliograph.wire.table import OK, Command, Credentials, Field, Message
from heliograph.wire.versions import (
    SMP_ENCRYPTED_BLOCK,
    SMP_NEW_NTF_CREDS,
    SMP_SENDER_AUTH_KEY,
    SMP_SENDING_PROXY,
    SMP_SERVICE_CERTS,
    SMP_SHORT_LINKS,
)


def max_message_length(version: int) -> int:
    """Return the maximum length of the body of SEND."""
    if version >= SMP_ENCRYPTED_BLOCK:
        return 16048
    return 16064 if version >= SMP_SENDING_PROXY else 16088


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
class MSG:
    """A message; `body` is a box for the recipient."""

    msg_id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class ALLS:
    """Every message that waited for SUBS was sent."""


@dataclass(frozen=True, slots=True)
class INFO:
    """The state of a queue at the router."""

    info: QueueInfo


@dataclass(frozen=True, slots=True)
class NEW(Command[IDS]):
    """Create a queue."""

    rcv_auth_key: bytes
    rcv_dh_key: bytes
    password: bytes | None = None
    mode: SubscriptionMode = SubscriptionMode.SUBSCRIBE
    queue_data: QueueReqData | None = None
    ntf_creds: NewNtfCreds | None = None


@dataclass(frozen=True, slots=True)
class SUB(Command[SOK | OK | MSG]):
    """Subscribe to a queue."""


@dataclass(frozen=True, slots=True)
class SUBS(Command[SOKS]):
    """Subscribe to all queues of a service."""

    count: int = NO_COUNT
    ids_hash: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class KEY(Command[OK]):
    """Secure a queue with its sender's key."""

    sender_key: bytes


@dataclass(frozen=True, slots=True)
class RKEY(Command[OK]):
    """Replace the recipient keys of a contact queue."""

    recipient_keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class GET(Command[MSG | OK]):
    """Receive one message without subscribing."""


@dataclass(frozen=True, slots=True)
class ACK(Command[OK | MSG]):
    """Acknowledge a message; the next one may follow."""

    msg_id: bytes


@dataclass(frozen=True, slots=True)
class OFF(Command[OK]):
    """Suspend a queue."""


@dataclass(frozen=True, slots=True)
class DEL(Command[OK]):
    """Delete a queue."""


@dataclass(frozen=True, slots=True)
class QUE(Command[INFO]):
    """Get the state of a queue at the router."""


@dataclass(frozen=True, slots=True)
class SKEY(Command[OK]):
    """Secure a queue, by its sender."""

    sender_key: bytes


@dataclass(frozen=True, slots=True)
class SEND(Command[OK]):
    """Send a message."""

    flags: MsgFlags
    body: bytes


QUEUE_COMMANDS = (
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
    Message(SUBS, Credentials.ENTITY_AUTH, COUNT_AND_HASH),
    Message(KEY, Credentials.ENTITY_AUTH, (Field("sender_key", auth_public_key),)),
    Message(
        RKEY,
        Credentials.ENTITY_AUTH,
        (Field("recipient_keys", list_of(auth_public_key)),),
    ),
    Message(GET, Credentials.ENTITY_AUTH),
    Message(ACK, Credentials.ENTITY_AUTH, (Field("msg_id", short),)),
    Message(OFF, Credentials.ENTITY_AUTH),
    Message(DEL, Credentials.ENTITY_AUTH),
    Message(QUE, Credentials.ENTITY_AUTH),
    Message(SKEY, Credentials.ENTITY_AUTH, (Field("sender_key", auth_public_key),)),
    Message(SEND, Credentials.ENTITY, (Field("flags", msg_flags), Field("body", tail))),
)
QUEUE_RESPONSES = (
    Message(
        IDS,
        Credentials.REPLY_ANY,
        (
            Field("rcv_id", short),
            Field("snd_id", short),
            Field("dh_key", x25519_public_key),
            Field("mode", sender_can_secure, since=SMP_SENDER_AUTH_KEY, until=SMP_SHORT_LINKS - 1),
            Field("mode", maybe(queue_mode), since=SMP_SHORT_LINKS),
            Field("link_id", maybe(short), since=SMP_SHORT_LINKS),
            Field("service_id", maybe(short), since=SMP_SERVICE_CERTS),
            Field("ntf_creds", server_ntf_creds, since=SMP_NEW_NTF_CREDS),
        ),
    ),
    Message(MSG, Credentials.REPLY, (Field("msg_id", short), Field("body", tail))),
    Message(ALLS, Credentials.REPLY_NO_ENTITY),
    Message(INFO, Credentials.REPLY, (Field("info", queue_info),)),
)
