"""Commands and responses for the notifications of queues."""

from dataclasses import dataclass

from heliograph.wire.keys import auth_public_key, x25519_public_key
from heliograph.wire.primitives import raw, short
from heliograph.wire.smp.subscriptions import COUNT_AND_HASH, NO_COUNT, NO_HASH, SOK, SOKS
from heliograph.wire.table import OK, Command, Credentials, Field, Message

NONCE_SIZE = 24


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
class NKEY(Command[NID]):
    """Create or replace the notifier credentials of a queue."""

    auth_key: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class NDEL(Command[OK]):
    """Remove the notifier credentials of a queue."""


@dataclass(frozen=True, slots=True)
class NSUB(Command[SOK | OK]):
    """Subscribe to the notifications of a queue."""


@dataclass(frozen=True, slots=True)
class NSUBS(Command[SOKS]):
    """Subscribe to the notifications of all queues of a service."""

    count: int = NO_COUNT
    ids_hash: bytes = NO_HASH


NOTIFICATION_COMMANDS = (
    Message(
        NKEY,
        Credentials.ENTITY_AUTH,
        (Field("auth_key", auth_public_key), Field("dh_key", x25519_public_key)),
    ),
    Message(NDEL, Credentials.ENTITY_AUTH),
    Message(NSUB, Credentials.ENTITY_AUTH),
    Message(NSUBS, Credentials.ENTITY_AUTH, COUNT_AND_HASH),
)
NOTIFICATION_RESPONSES = (
    Message(
        NID,
        Credentials.REPLY,
        (Field("notifier_id", short), Field("dh_key", x25519_public_key)),
    ),
    Message(NMSG, Credentials.REPLY, (Field("nonce", raw(NONCE_SIZE)), Field("meta", short))),
)
