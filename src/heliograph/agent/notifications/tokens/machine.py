"""The registration of a device's token, as a pure machine over (token ID, pending action).

              Ask                Registered              Code                 Verified
    ABSENT ───────> REGISTERING ───────────> WAITING ───────────> VERIFYING ───────────> CHECKING
                    (-, REGISTER)            (id, -)              (id, VERIFY)           (id, CHECK)

    WAITING, VERIFYING, CHECKING ──Ask with another device token: TRPL──Replaced──> WAITING
    CHECKING ──Checked, not active──> WAITING       WAITING ──Checked, active──> CHECKING
    VERIFYING ──code refused──> WAITING, TCHK       any ──router does not know it──> REGISTERING
    any ──Checked, invalid or expired──> REGISTERING, at most once an hour
    any ──DeleteAsked──> ABSENT, and a worker deletes the token at the router

A step gives the token to store, then the effects. The commands for the router follow from what is
stored, so that `Resume` continues from any phase after a restart.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from heliograph.agent.notifications.records import CronIntervals, NtfToken, TokenAction
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus


class TokenPhase(Enum):
    """The phase of (token ID, pending action), which decides the next step."""

    ABSENT = auto()
    REGISTERING = auto()
    WAITING = auto()
    VERIFYING = auto()
    CHECKING = auto()


def phase(token: NtfToken | None) -> TokenPhase:
    if token is None:
        return TokenPhase.ABSENT
    if token.token_id is None or token.action is TokenAction.REGISTER:
        return TokenPhase.REGISTERING
    match token.action:
        case TokenAction.VERIFY:
            return TokenPhase.VERIFYING
        case TokenAction.CHECK:
            return TokenPhase.CHECKING
        case _:
            return TokenPhase.WAITING


# Inputs of the app.


@dataclass(frozen=True, slots=True)
class Register:
    """Register this device token at this router in this mode, or resume that."""

    device: DeviceToken = field(repr=False)
    mode: NotificationsMode
    ntf_address: ServerAddress


@dataclass(frozen=True, slots=True)
class VerificationCode:
    """The content of a verification push."""

    code: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetMode:
    mode: NotificationsMode


class TokenEvent(Enum):
    RESUME = "the agent started, or the router can be reached again"
    CHECK_ASKED = "the app wants to know the status"
    DELETE_ASKED = "the app wants no notifications"
    VERIFIED = "TVFY was answered OK"


# Answers of the router.


@dataclass(frozen=True, slots=True)
class Registered:
    """IDTKN: the router registered the token."""

    token_id: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Replaced:
    """OK to TRPL: the router replaced the device token."""

    device: DeviceToken = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenChecked:
    """TKN. `may_replace` allows a new registration in place of an invalid or expired one."""

    status: TokenStatus
    may_replace: bool = False


@dataclass(frozen=True, slots=True)
class CronConfirmed:
    """OK to TCRN: the router set the wake-up interval."""

    minutes: int


class TokenCommand(Enum):
    """The commands whose refusal has consequences."""

    TNEW = auto()
    TVFY = auto()
    TCHK = auto()
    TRPL = auto()
    TCRN = auto()


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """ERR that a retry cannot change. `unknown` is AUTH: no such token, or a wrong code."""

    request: TokenCommand
    unknown: bool
    asked: Register | None = None
    """The registration that a refused TRPL was for."""


Input = (
    Register
    | VerificationCode
    | SetMode
    | TokenEvent
    | Registered
    | Replaced
    | TokenChecked
    | CronConfirmed
    | CommandRefused
)


# Effects.


@dataclass(frozen=True, slots=True)
class Create:
    """Generate keys for a new token, store it, and register it."""

    asked: Register


@dataclass(frozen=True, slots=True)
class SendCommand:
    """A command to the router. TNEW and TCHK need only the token."""

    request: TokenCommand
    code: bytes = field(default=b"", repr=False)
    minutes: int = 0
    asked: Register | None = None


@dataclass(frozen=True, slots=True)
class QueueDeletion:
    """Store, with the token's removal, that the router is to delete it."""

    token: NtfToken


class SubscriptionsAction(Enum):
    CREATE = auto()
    DELETE = auto()


@dataclass(frozen=True, slots=True)
class RaiseProhibited:
    """Raise `Prohibited` to the app; nothing is changed."""

    reason: str


Effect = Create | SendCommand | QueueDeletion | SubscriptionsAction | RaiseProhibited


@dataclass(frozen=True, slots=True)
class TokenStep:
    """The token to store, or None, and the effects to perform once it is stored."""

    token: NtfToken | None
    effects: tuple[Effect, ...] = ()


NO_TOKEN = RaiseProhibited("no token is registered: register one first")
NOT_REGISTERED = RaiseProhibited("the token is not registered yet: register it again")
OFF_IS_DELETE = RaiseProhibited("a token cannot be registered with notifications off")

_DEFAULT_CRON = CronIntervals()


def step(token: NtfToken | None, event: Input, cron: CronIntervals = _DEFAULT_CRON) -> TokenStep:
    """Return the next step. Total: an input that is impossible in a phase changes nothing."""
    match event:
        case Register():
            return _asked(token, event)
        case SetMode() if event.mode is NotificationsMode.OFF:
            return TokenStep(None) if token is None else _delete(token)
    if token is None:
        absent = isinstance(event, VerificationCode | SetMode) or event in _ASKED_WITHOUT_TOKEN
        return TokenStep(None, (NO_TOKEN,) if absent else ())
    match event:
        case VerificationCode():
            return _code(token, event.code)
        case SetMode():
            return _resume(replace(token, mode=event.mode))
        case TokenEvent.RESUME:
            return _resume(token)
        case TokenEvent.CHECK_ASKED:
            missing = phase(token) is TokenPhase.REGISTERING
            return TokenStep(
                token, (NOT_REGISTERED,) if missing else (SendCommand(TokenCommand.TCHK),)
            )
        case TokenEvent.DELETE_ASKED:
            return _delete(token)
        case TokenEvent.VERIFIED:
            return _verified(token, cron)
        case Registered():
            return _registered(token, event)
        case Replaced():
            return _replaced(token, event)
        case TokenChecked():
            return _checked(token, event, cron)
        case CronConfirmed():
            return TokenStep(replace(token, cron_minutes=event.minutes))
        case CommandRefused():
            return _refused(token, event)


_ASKED_WITHOUT_TOKEN = (TokenEvent.CHECK_ASKED, TokenEvent.DELETE_ASKED)


def _asked(token: NtfToken | None, asked: Register) -> TokenStep:
    if asked.mode is NotificationsMode.OFF:
        return TokenStep(token, (OFF_IS_DELETE,))
    if token is None:
        return TokenStep(None, (Create(asked),))
    if token.ntf_address.fingerprint != asked.ntf_address.fingerprint:
        return TokenStep(None, (*_deletion(token), Create(asked)))
    # A router is identified by its fingerprint, not by its address.
    token = replace(token, mode=asked.mode, ntf_address=asked.ntf_address)
    if phase(token) is TokenPhase.REGISTERING:
        return TokenStep(replace(token, device=asked.device), (SendCommand(TokenCommand.TNEW),))
    if token.device != asked.device:
        return TokenStep(token, (SendCommand(TokenCommand.TRPL, asked=asked),))
    if phase(token) is TokenPhase.WAITING:
        return TokenStep(token, (SendCommand(TokenCommand.TNEW),))
    return _resume(token)


def _resume(token: NtfToken) -> TokenStep:
    match phase(token):
        case TokenPhase.REGISTERING:
            return TokenStep(token, (SendCommand(TokenCommand.TNEW),))
        case TokenPhase.VERIFYING:
            return TokenStep(token, (SendCommand(TokenCommand.TVFY, code=token.code or b""),))
        case _:
            return TokenStep(token, (SendCommand(TokenCommand.TCHK),))


def _code(token: NtfToken, code: bytes) -> TokenStep:
    verify = SendCommand(TokenCommand.TVFY, code=code)
    match phase(token):
        case TokenPhase.REGISTERING:
            return TokenStep(token, (NOT_REGISTERED,))
        case TokenPhase.CHECKING:
            return TokenStep(token, (verify,))  # active already: keep subscriptions running
        case _:
            pending = replace(
                token, status=TokenStatus.CONFIRMED, action=TokenAction.VERIFY, code=code
            )
            return TokenStep(pending, (verify,))


def _registered(token: NtfToken, event: Registered) -> TokenStep:
    if phase(token) not in (TokenPhase.REGISTERING, TokenPhase.WAITING):
        return TokenStep(token)
    same = token.token_id == event.token_id
    waiting = replace(
        token,
        token_id=event.token_id,
        dh_secret=event.dh_secret,
        status=TokenStatus.REGISTERED,
        action=None,
        code=None,
        cron_minutes=token.cron_minutes if same else 0,
    )
    return TokenStep(waiting)


def _replaced(token: NtfToken, event: Replaced) -> TokenStep:
    if phase(token) is TokenPhase.REGISTERING:
        return TokenStep(token)
    return TokenStep(
        replace(token, device=event.device, status=TokenStatus.REGISTERED, action=None, code=None)
    )


def _verified(token: NtfToken, cron: CronIntervals) -> TokenStep:
    return TokenStep(token) if phase(token) is TokenPhase.REGISTERING else _activated(token, cron)


def _activated(token: NtfToken, cron: CronIntervals) -> TokenStep:
    active = replace(token, status=TokenStatus.ACTIVE, action=TokenAction.CHECK, code=None)
    effects: list[Effect] = []
    minutes = cron.minutes(token.mode)
    if minutes != token.cron_minutes:
        effects.append(SendCommand(TokenCommand.TCRN, minutes=minutes))
    instant = token.mode is NotificationsMode.INSTANT
    effects.append(SubscriptionsAction.CREATE if instant else SubscriptionsAction.DELETE)
    return TokenStep(active, tuple(effects))


def _checked(token: NtfToken, event: TokenChecked, cron: CronIntervals) -> TokenStep:
    where, status = phase(token), event.status
    if where is TokenPhase.REGISTERING:
        return TokenStep(token)
    if status is TokenStatus.ACTIVE:
        return _activated(token, cron)
    if _is_dead(status) and event.may_replace:
        again = Register(token.device, token.mode, token.ntf_address)
        return TokenStep(None, (*_deletion(token), Create(again)))
    if where is TokenPhase.VERIFYING and not _is_dead(status):
        return TokenStep(token)  # its code is still to be sent
    return TokenStep(replace(token, status=status, action=None, code=None))


def _is_dead(status: TokenStatus) -> bool:
    return status.is_invalid or status is TokenStatus.EXPIRED


def _refused(token: NtfToken, event: CommandRefused) -> TokenStep:
    where = phase(token)
    if where is TokenPhase.REGISTERING:
        return TokenStep(token)  # the app gets an error, and may register again
    match event.request:
        case TokenCommand.TVFY:
            if where is TokenPhase.VERIFYING:
                token = replace(token, status=TokenStatus.REGISTERED, action=None, code=None)
            return TokenStep(token, (SendCommand(TokenCommand.TCHK),))
        case TokenCommand.TCHK if event.unknown:
            return TokenStep(None, (Create(Register(token.device, token.mode, token.ntf_address)),))
        case TokenCommand.TCRN if event.unknown:
            return TokenStep(token, (SendCommand(TokenCommand.TCHK),))
        case TokenCommand.TRPL if event.asked is not None:
            deletion = () if event.unknown else _deletion(token)
            return TokenStep(None, (*deletion, Create(event.asked)))
        case TokenCommand.TNEW if event.unknown:
            again = Register(token.device, token.mode, token.ntf_address)
            return TokenStep(None, (*_deletion(token), Create(again)))
        case _:
            return TokenStep(token)


def _delete(token: NtfToken) -> TokenStep:
    return TokenStep(None, (*_deletion(token), SubscriptionsAction.DELETE))


def _deletion(token: NtfToken) -> tuple[Effect, ...]:
    return () if token.token_id is None else (QueueDeletion(token),)
