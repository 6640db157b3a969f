"""The life of a token, as a pure machine.

    TNEW ──> REGISTERED ──delivered──> CONFIRMED ──code──> ACTIVE
                 │  └──────────code───────────────────────────^
                 │
    any state ──rejected──> INVALID(reason)      any state ──replaced──> REGISTERED
    INVALID, EXPIRED, NEW ──registered again──> REGISTERED

NEW is a state of clients only, and EXPIRED comes only from imported stores; the machine is total
all the same.
"""

from dataclasses import dataclass
from enum import Enum

from heliograph.wire.tokens import InvalidReason, TokenStatus


class Simple(Enum):
    REGISTERED_AGAIN = "TNEW with the same keys"
    DELIVERED = "the provider took the verification push"
    VERIFIED = "TVFY with the right code"
    REPLACED = "TRPL"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The provider says that the token is dead."""

    reason: InvalidReason


TokenEvent = Simple | Rejected

_VERIFIABLE = frozenset({TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE})


def may_verify(status: TokenStatus) -> bool:
    """Whether a code is accepted in this state."""
    return status in _VERIFIABLE


def may_subscribe(status: TokenStatus) -> bool:
    """Whether subscription commands are. An invalid token may have been valid, and may be again."""
    return status in (TokenStatus.ACTIVE, TokenStatus.EXPIRED) or status.is_invalid


def step(status: TokenStatus, event: TokenEvent) -> TokenStatus:
    """The state after an event; the same state if the event means nothing in it."""
    match event:
        case Rejected():
            return TokenStatus.invalid(event.reason)
        case Simple.REPLACED:
            return TokenStatus.REGISTERED
        case Simple.REGISTERED_AGAIN:
            return status if may_verify(status) else TokenStatus.REGISTERED
        case Simple.VERIFIED:
            return TokenStatus.ACTIVE if may_verify(status) else status
        case Simple.DELIVERED:
            return TokenStatus.CONFIRMED if status is TokenStatus.REGISTERED else status
