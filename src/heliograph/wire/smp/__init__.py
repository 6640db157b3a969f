"""Commands and responses of the messaging router protocol, versions 6 to 19.

The modules define them by subject; this one has the tables of both directions, and all names.
"""

from dataclasses import dataclass, replace

from heliograph.wire.errors import BLOCKED, ErrorCode, ErrorType
from heliograph.wire.smp.forwarding import (
    FORWARDING_COMMANDS,
    FORWARDING_RESPONSES,
    PFWD as PFWD,
    PKEY as PKEY,
    PRES as PRES,
    PRXY as PRXY,
    RFWD as RFWD,
    RRES as RRES,
)
from heliograph.wire.smp.links import (
    LDEL as LDEL,
    LGET as LGET,
    LINK_COMMANDS,
    LINK_RESPONSES,
    LKEY as LKEY,
    LNK as LNK,
    LSET as LSET,
)
from heliograph.wire.smp.notifications import (
    NDEL as NDEL,
    NID as NID,
    NKEY as NKEY,
    NMSG as NMSG,
    NONCE_SIZE as NONCE_SIZE,
    NOTIFICATION_COMMANDS,
    NOTIFICATION_RESPONSES,
    NSUB as NSUB,
    NSUBS as NSUBS,
)
from heliograph.wire.smp.queues import (
    ACK as ACK,
    ALLS as ALLS,
    DEL as DEL,
    GET as GET,
    IDS as IDS,
    INFO as INFO,
    KEY as KEY,
    MSG as MSG,
    NEW as NEW,
    OFF as OFF,
    QUE as QUE,
    QUEUE_COMMANDS,
    QUEUE_RESPONSES,
    RKEY as RKEY,
    SEND as SEND,
    SKEY as SKEY,
    SUB as SUB,
    SUBS as SUBS,
    max_message_length as max_message_length,
)
from heliograph.wire.smp.subscriptions import (
    DELD as DELD,
    END as END,
    ENDS as ENDS,
    NO_COUNT as NO_COUNT,
    NO_HASH as NO_HASH,
    SOK as SOK,
    SOKS as SOKS,
    SUBSCRIPTION_RESPONSES,
)
from heliograph.wire.table import (
    OK as OK,
    PING as PING,
    PONG as PONG,
    Credentials,
    Field,
    Message,
    Table,
    error_type,
)
from heliograph.wire.versions import SMP_BLOCKED_ENTITY, SMP_CLIENT_NOTICES


@dataclass(frozen=True, slots=True)
class ERR:
    """Refused, and why."""

    error: ErrorType


SmpCommand = (
    NEW
    | SUB
    | SUBS
    | KEY
    | RKEY
    | LSET
    | LDEL
    | NKEY
    | NDEL
    | GET
    | ACK
    | OFF
    | DEL
    | QUE
    | SKEY
    | SEND
    | LKEY
    | LGET
    | PRXY
    | PFWD
    | RFWD
    | NSUB
    | NSUBS
    | PING
)
SmpResponse = (
    IDS
    | LNK
    | SOK
    | SOKS
    | MSG
    | ALLS
    | NID
    | NMSG
    | PKEY
    | PRES
    | RRES
    | END
    | ENDS
    | DELD
    | INFO
    | OK
    | ERR
    | PONG
)


def _hide_blocked(message: ERR, version: int) -> ERR:
    if version >= SMP_CLIENT_NOTICES or not isinstance(message.error, BLOCKED):
        return message
    if version >= SMP_BLOCKED_ENTITY:
        return ERR(replace(message.error, notice=None))
    return ERR(ErrorCode.AUTH)


SMP_COMMANDS: Table[SmpCommand] = Table(
    "SMP command",
    (
        *QUEUE_COMMANDS,
        *LINK_COMMANDS,
        *FORWARDING_COMMANDS,
        *NOTIFICATION_COMMANDS,
        Message(PING, Credentials.NONE),
    ),
)

SMP_RESPONSES: Table[SmpResponse] = Table(
    "SMP response",
    (
        *QUEUE_RESPONSES,
        *LINK_RESPONSES,
        *FORWARDING_RESPONSES,
        *NOTIFICATION_RESPONSES,
        *SUBSCRIPTION_RESPONSES,
        Message(OK, Credentials.REPLY),
        Message(ERR, Credentials.REPLY_ANY, (Field("error", error_type),), downgrade=_hide_blocked),
        Message(PONG, Credentials.REPLY_NO_ENTITY),
    ),
)
