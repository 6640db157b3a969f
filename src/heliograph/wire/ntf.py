"""Commands and responses of the notification router protocol, versions 1 to 3."""

from dataclasses import dataclass

from heliograph.wire.addresses import SMPQueueNtf, smp_queue_ntf
from heliograph.wire.errors import ErrorType
from heliograph.wire.fields import error_type
from heliograph.wire.keys import auth_private_key, auth_public_key, x25519_public_key
from heliograph.wire.primitives import literal, short, u16
from heliograph.wire.table import OK as OK
from heliograph.wire.table import PING as PING
from heliograph.wire.table import PONG as PONG
from heliograph.wire.table import Credentials, Field, Message, Table
from heliograph.wire.tokens import (
    DeviceToken,
    SubscriptionStatus,
    TokenStatus,
    device_token,
    subscription_status,
    token_status,
)
from heliograph.wire.versions import NTF_INVALID_REASON


@dataclass(frozen=True, slots=True)
class TNEW:
    """Register a device token."""

    token: DeviceToken
    auth_key: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class TVFY:
    """Verify a token with the code its device received."""

    code: bytes


@dataclass(frozen=True, slots=True)
class TCHK:
    """Check the status of a token."""


@dataclass(frozen=True, slots=True)
class TRPL:
    """Replace the device token, keeping all subscriptions."""

    token: DeviceToken


@dataclass(frozen=True, slots=True)
class TDEL:
    """Delete a token and its subscriptions."""


@dataclass(frozen=True, slots=True)
class TCRN:
    """Wake the device every so many minutes; 0 never."""

    minutes: int


@dataclass(frozen=True, slots=True)
class SNEW:
    """Subscribe to the notifications of a queue."""

    token_id: bytes
    queue: SMPQueueNtf
    notifier_key: bytes


@dataclass(frozen=True, slots=True)
class SCHK:
    """Check the status of a subscription."""


@dataclass(frozen=True, slots=True)
class SDEL:
    """Delete a subscription."""


@dataclass(frozen=True, slots=True)
class IDTKN:
    """The ID of a new token, and the router's key to agree the token's secret."""

    token_id: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class IDSUB:
    """The ID of a new subscription."""

    subscription_id: bytes


@dataclass(frozen=True, slots=True)
class TKN:
    """The status of a token."""

    status: TokenStatus


@dataclass(frozen=True, slots=True)
class SUB:
    """The status of a subscription."""

    status: SubscriptionStatus


@dataclass(frozen=True, slots=True)
class ERR:
    """Refused, and why."""

    error: ErrorType


NtfCommand = TNEW | TVFY | TCHK | TRPL | TDEL | TCRN | SNEW | SCHK | SDEL | PING
NtfResponse = IDTKN | IDSUB | OK | ERR | TKN | SUB | PONG


def _hide_reason(message: TKN, version: int) -> TKN:
    return message if version >= NTF_INVALID_REASON else TKN(message.status.without_reason())


NTF_COMMANDS = Table(
    "NTF command",
    (
        Message(
            TNEW,
            Credentials.AUTH,
            (
                Field("", literal(b"T")),
                Field("token", device_token),
                Field("auth_key", auth_public_key),
                Field("dh_key", x25519_public_key),
            ),
        ),
        Message(TVFY, Credentials.ENTITY_AUTH, (Field("code", short),)),
        Message(TCHK, Credentials.ENTITY_AUTH),
        Message(TRPL, Credentials.ENTITY_AUTH, (Field("token", device_token),)),
        Message(TDEL, Credentials.ENTITY_AUTH),
        Message(TCRN, Credentials.ENTITY_AUTH, (Field("minutes", u16),)),
        Message(
            SNEW,
            Credentials.AUTH,
            (
                Field("", literal(b"S")),
                Field("token_id", short),
                Field("queue", smp_queue_ntf),
                Field("notifier_key", auth_private_key),
            ),
        ),
        Message(SCHK, Credentials.ENTITY_AUTH),
        Message(SDEL, Credentials.ENTITY_AUTH),
        Message(PING, Credentials.NONE),
    ),
)

NTF_RESPONSES = Table(
    "NTF response",
    (
        Message(
            IDTKN,
            Credentials.REPLY_NO_ENTITY,
            (Field("token_id", short), Field("dh_key", x25519_public_key)),
        ),
        Message(IDSUB, Credentials.REPLY_NO_ENTITY, (Field("subscription_id", short),)),
        Message(OK, Credentials.REPLY),
        Message(ERR, Credentials.REPLY_ANY, (Field("error", error_type),)),
        Message(TKN, Credentials.REPLY, (Field("status", token_status),), downgrade=_hide_reason),
        Message(SUB, Credentials.REPLY, (Field("status", subscription_status),)),
        Message(PONG, Credentials.REPLY_NO_ENTITY),
    ),
)
