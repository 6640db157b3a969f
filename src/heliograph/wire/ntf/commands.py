"""Commands and responses of the notification router protocol, versions 1 to 3."""

from dataclasses import dataclass

from heliograph.wire.addresses import SMPQueueNtf, smp_queue_ntf
from heliograph.wire.errors import ErrorType
from heliograph.wire.keys import auth_private_key, auth_public_key, x25519_public_key
from heliograph.wire.ntf.tokens import (
    DeviceToken,
    NtfSubStatus,
    TokenStatus,
    device_token,
    subscription_status,
    token_status,
)
from heliograph.wire.primitives import literal, short, u16
from heliograph.wire.table import (
    OK,
    PING,
    PONG,
    Command,
    Credentials,
    Field,
    Message,
    Table,
    error_type,
)
from heliograph.wire.versions import NTF_INVALID_REASON


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

    status: NtfSubStatus


@dataclass(frozen=True, slots=True)
class ERR:
    """Refused, and why."""

    error: ErrorType


@dataclass(frozen=True, slots=True)
class TNEW(Command[IDTKN]):
    """Register a device token."""

    token: DeviceToken
    auth_key: bytes
    dh_key: bytes


@dataclass(frozen=True, slots=True)
class TVFY(Command[OK]):
    """Verify a token with the code its device received."""

    code: bytes


@dataclass(frozen=True, slots=True)
class TCHK(Command[TKN]):
    """Check the status of a token."""


@dataclass(frozen=True, slots=True)
class TRPL(Command[OK]):
    """Replace the device token, keeping all subscriptions."""

    token: DeviceToken


@dataclass(frozen=True, slots=True)
class TDEL(Command[OK]):
    """Delete a token and its subscriptions."""


@dataclass(frozen=True, slots=True)
class TCRN(Command[OK]):
    """Set the minutes between wake-ups of the device; 0 for none."""

    minutes: int


@dataclass(frozen=True, slots=True)
class SNEW(Command[IDSUB]):
    """Subscribe to the notifications of a queue."""

    token_id: bytes
    queue: SMPQueueNtf
    notifier_key: bytes


@dataclass(frozen=True, slots=True)
class SCHK(Command[SUB]):
    """Check the status of a subscription."""


@dataclass(frozen=True, slots=True)
class SDEL(Command[OK]):
    """Delete a subscription."""


NtfCommand = TNEW | TVFY | TCHK | TRPL | TDEL | TCRN | SNEW | SCHK | SDEL | PING
NtfResponse = IDTKN | IDSUB | OK | ERR | TKN | SUB | PONG


def _hide_reason(message: TKN, version: int) -> TKN:
    return message if version >= NTF_INVALID_REASON else TKN(message.status.without_reason())


NTF_COMMANDS: Table[NtfCommand] = Table(
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

NTF_RESPONSES: Table[NtfResponse] = Table(
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
