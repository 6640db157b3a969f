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

from heliograph.wire.ntf.tokens import InvalidReason, TokenStatus


class TokenTransition(Enum):
    REGISTERED_AGAIN = "TNEW with the same keys"
    VERIFICATION_ACCEPTED = "the provider took the verification push"
    VERIFIED = "TVFY with the right code"
    REPLACED = "TRPL"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The provider rejected the token for good."""

    reason: InvalidReason


TokenEvent = TokenTransition | Rejected

_VERIFIABLE = frozenset({TokenStatus.REGISTERED, TokenStatus.CONFIRMED, TokenStatus.ACTIVE})


def may_verify(status: TokenStatus) -> bool:
    """Return whether a verification code is accepted in this state."""
    return status in _VERIFIABLE


def may_subscribe(status: TokenStatus) -> bool:
    """Return whether subscription commands are accepted: INVALID may become valid again."""
    return status in (TokenStatus.ACTIVE, TokenStatus.EXPIRED) or status.is_invalid


def step(status: TokenStatus, event: TokenEvent) -> TokenStatus:
    """Return the state after an event; the same state if the event does not apply."""
    match event:
        case Rejected():
            return TokenStatus.invalid(event.reason)
        case TokenTransition.REPLACED:
            return TokenStatus.REGISTERED
        case TokenTransition.REGISTERED_AGAIN:
            return status if may_verify(status) else TokenStatus.REGISTERED
        case TokenTransition.VERIFIED:
            return TokenStatus.ACTIVE if may_verify(status) else status
        case TokenTransition.VERIFICATION_ACCEPTED:
            return TokenStatus.CONFIRMED if status is TokenStatus.REGISTERED else status
