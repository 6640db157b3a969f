"""Commands and responses for the link data of queues, which short links point to."""

import hashlib
from dataclasses import dataclass

from heliograph.wire.keys import auth_public_key
from heliograph.wire.primitives import large, short
from heliograph.wire.table import OK, Command, Credentials, Field, Message

SENDER_ID_SIZE = 24


@dataclass(frozen=True, slots=True)
class LNK:
    """The link data of a queue."""

    sender_id: bytes
    fixed_data: bytes
    user_data: bytes


@dataclass(frozen=True, slots=True)
class LSET(Command[OK]):
    """Set the link data of a queue, or change its user data."""

    link_id: bytes
    fixed_data: bytes
    user_data: bytes


@dataclass(frozen=True, slots=True)
class LDEL(Command[OK]):
    """Delete the link data of a queue."""


@dataclass(frozen=True, slots=True)
class LKEY(Command[LNK]):
    """Secure a messaging queue by its link, and get the link data."""

    sender_key: bytes


@dataclass(frozen=True, slots=True)
class LGET(Command[LNK]):
    """Get the link data of a contact queue."""


def sender_id_of(corr_id: bytes) -> bytes:
    """Return the sender ID of a queue created with link data, from the correlation ID of its NEW.

    The client needs it in the data, which it signs, before the router answers.
    """
    return hashlib.sha3_384(corr_id).digest()[:SENDER_ID_SIZE]


_DATA = (Field("fixed_data", large), Field("user_data", large))

LINK_COMMANDS = (
    Message(LSET, Credentials.ENTITY_AUTH, (Field("link_id", short), *_DATA)),
    Message(LDEL, Credentials.ENTITY_AUTH),
    Message(LKEY, Credentials.ENTITY_AUTH, (Field("sender_key", auth_public_key),)),
    Message(LGET, Credentials.ENTITY_NO_AUTH),
)
LINK_RESPONSES = (Message(LNK, Credentials.REPLY, (Field("sender_id", short), *_DATA)),)
