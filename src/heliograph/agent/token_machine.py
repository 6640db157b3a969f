"""The registration of a device's token, as a pure machine over (token ID, pending action).

              Ask                Registered              Code                 Verified
    ABSENT ───────> REGISTERING ───────────> WAITING ───────────> VERIFYING ───────────> CHECKING
                    (-, REGISTER)            (id, -)              (id, VERIFY)           (id, CHECK)

    WAITING, VERIFYING, CHECKING ──Ask with another device token: TRPL──Replaced──> WAITING
    CHECKING ──Checked, not active──> WAITING       WAITING ──Checked, active──> CHECKING
    VERIFYING ──code refused──> WAITING, TCHK       any ──router does not know it──> REGISTERING
    any ──DeleteAsked──> ABSENT, and what the router has is deleted by a worker

A step says what to store and then what to do. What is to be done at the router follows from what is
stored, so that `Resume` goes on after a restart wherever it was.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from heliograph.agent.ntf_records import NotificationsMode, NtfToken, TokenAction
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.tokens import DeviceToken, TokenStatus


class Phase(Enum):
    """(token ID, pending action), as far as it decides what happens."""

    ABSENT = auto()
    REGISTERING = auto()
    WAITING = auto()
    VERIFYING = auto()
    CHECKING = auto()


def phase(token: NtfToken | None) -> Phase:
    if token is None:
        return Phase.ABSENT
    if token.token_id is None or token.action is TokenAction.REGISTER:
        return Phase.REGISTERING
    match token.action:
        case TokenAction.VERIFY:
            return Phase.VERIFYING
        case TokenAction.CHECK:
            return Phase.CHECKING
        case _:
            return Phase.WAITING


# What the app asks.


@dataclass(frozen=True, slots=True)
class Ask:
    """Register this device token at this router, in this mode, however far that has come."""

    device: DeviceToken = field(repr=False)
    mode: NotificationsMode
    ntf_address: ServerAddress


@dataclass(frozen=True, slots=True)
class Code:
    """What the verification push said."""

    code: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetMode:
    mode: NotificationsMode


class Simple(Enum):
    RESUME = "the agent started, or the router can be reached again"
    CHECK_ASKED = "the app wants to know the status"
    DELETE_ASKED = "the app wants no notifications"
    VERIFIED = "TVFY was answered OK"


# What the router answers.


@dataclass(frozen=True, slots=True)
class Registered:
    """IDTKN."""

    token_id: bytes = field(repr=False)
    dh_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Replaced:
    """OK to TRPL."""

    device: DeviceToken = field(repr=False)


@dataclass(frozen=True, slots=True)
class Checked:
    """TKN."""

    status: TokenStatus


@dataclass(frozen=True, slots=True)
class CronSet:
    """OK to TCRN."""

    minutes: int


class Request(Enum):
    """The commands whose refusal means something."""

    TNEW = auto()
    TVFY = auto()
    TCHK = auto()
    TRPL = auto()
    TCRN = auto()


@dataclass(frozen=True, slots=True)
class Refused:
    """ERR for good. `unknown` is AUTH: no such token, or not this code."""

    request: Request
    unknown: bool
    asked: Ask | None = None
    """What a TRPL was for."""


Input = Ask | Code | SetMode | Simple | Registered | Replaced | Checked | CronSet | Refused


# What is to be done.


@dataclass(frozen=True, slots=True)
class Create:
    """Draw keys for a new token, store it, and register it."""

    asked: Ask


@dataclass(frozen=True, slots=True)
class Send:
    """A command to the router. TNEW and TCHK need no more than the token."""

    request: Request
    code: bytes = field(default=b"", repr=False)
    minutes: int = 0
    asked: Ask | None = None


@dataclass(frozen=True, slots=True)
class QueueDeletion:
    """Store, with the token's removal, that the router is to delete it."""

    token: NtfToken


class Do(Enum):
    CREATE_SUBSCRIPTIONS = auto()
    DELETE_SUBSCRIPTIONS = auto()


@dataclass(frozen=True, slots=True)
class Prohibited:
    """The app must be told; nothing else happens."""

    reason: str


Effect = Create | Send | QueueDeletion | Do | Prohibited


@dataclass(frozen=True, slots=True)
class Step:
    """The token to store, None for none, and what to do once it is stored."""

    token: NtfToken | None
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Cron:
    """How often the router wakes the device, in minutes; 0 never."""

    instant: int = 0
    periodic: int = 20

    def minutes(self, mode: NotificationsMode) -> int:
        return self.periodic if mode is NotificationsMode.PERIODIC else self.instant


NO_TOKEN = Prohibited("no token is registered: register one first")
NOT_REGISTERED = Prohibited("the token is not registered yet: register it again")
OFF_IS_DELETE = Prohibited("a token cannot be registered with notifications off")

_DEFAULT_CRON = Cron()


def step(token: NtfToken | None, event: Input, cron: Cron = _DEFAULT_CRON) -> Step:
    """Total: what cannot happen in a phase changes nothing."""
    match event:
        case Ask():
            return _asked(token, event)
        case SetMode() if event.mode is NotificationsMode.OFF:
            return Step(None) if token is None else _delete(token)
    if token is None:
        absent = isinstance(event, Code | SetMode) or event in _ASKED_WITHOUT_TOKEN
        return Step(None, (NO_TOKEN,) if absent else ())
    match event:
        case Code():
            return _code(token, event.code)
        case SetMode():
            return _resume(replace(token, mode=event.mode))
        case Simple.RESUME:
            return _resume(token)
        case Simple.CHECK_ASKED:
            missing = phase(token) is Phase.REGISTERING
            return Step(token, (NOT_REGISTERED,) if missing else (Send(Request.TCHK),))
        case Simple.DELETE_ASKED:
            return _delete(token)
        case Simple.VERIFIED:
            return _verified(token, cron)
        case Registered():
            return _registered(token, event)
        case Replaced():
            return _replaced(token, event)
        case Checked():
            return _checked(token, event.status, cron)
        case CronSet():
            return Step(replace(token, cron_minutes=event.minutes))
        case Refused():
            return _refused(token, event)


_ASKED_WITHOUT_TOKEN = (Simple.CHECK_ASKED, Simple.DELETE_ASKED)


def _asked(token: NtfToken | None, asked: Ask) -> Step:
    if asked.mode is NotificationsMode.OFF:
        return Step(token, (OFF_IS_DELETE,))
    if token is None:
        return Step(None, (Create(asked),))
    if token.ntf_address.fingerprint != asked.ntf_address.fingerprint:
        return Step(None, (*_deletion(token), Create(asked)))
    # The same identity at another place is the same router.
    token = replace(token, mode=asked.mode, ntf_address=asked.ntf_address)
    if phase(token) is Phase.REGISTERING:
        return Step(replace(token, device=asked.device), (Send(Request.TNEW),))
    if token.device != asked.device:
        return Step(token, (Send(Request.TRPL, asked=asked),))
    if phase(token) is Phase.WAITING:
        return Step(token, (Send(Request.TNEW),))
    return _resume(token)


def _resume(token: NtfToken) -> Step:
    match phase(token):
        case Phase.REGISTERING:
            return Step(token, (Send(Request.TNEW),))
        case Phase.VERIFYING:
            return Step(token, (Send(Request.TVFY, code=token.code or b""),))
        case _:
            return Step(token, (Send(Request.TCHK),))


def _code(token: NtfToken, code: bytes) -> Step:
    verify = Send(Request.TVFY, code=code)
    match phase(token):
        case Phase.REGISTERING:
            return Step(token, (NOT_REGISTERED,))
        case Phase.CHECKING:
            return Step(token, (verify,))  # active already: nothing is to stop meanwhile
        case _:
            pending = replace(
                token, status=TokenStatus.CONFIRMED, action=TokenAction.VERIFY, code=code
            )
            return Step(pending, (verify,))


def _registered(token: NtfToken, event: Registered) -> Step:
    if phase(token) not in (Phase.REGISTERING, Phase.WAITING):
        return Step(token)
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
    return Step(waiting)


def _replaced(token: NtfToken, event: Replaced) -> Step:
    if phase(token) is Phase.REGISTERING:
        return Step(token)
    return Step(
        replace(token, device=event.device, status=TokenStatus.REGISTERED, action=None, code=None)
    )


def _verified(token: NtfToken, cron: Cron) -> Step:
    return Step(token) if phase(token) is Phase.REGISTERING else _activated(token, cron)


def _activated(token: NtfToken, cron: Cron) -> Step:
    active = replace(token, status=TokenStatus.ACTIVE, action=TokenAction.CHECK, code=None)
    effects: list[Effect] = []
    minutes = cron.minutes(token.mode)
    if minutes != token.cron_minutes:
        effects.append(Send(Request.TCRN, minutes=minutes))
    instant = token.mode is NotificationsMode.INSTANT
    effects.append(Do.CREATE_SUBSCRIPTIONS if instant else Do.DELETE_SUBSCRIPTIONS)
    return Step(active, tuple(effects))


def _checked(token: NtfToken, status: TokenStatus, cron: Cron) -> Step:
    where = phase(token)
    if where is Phase.REGISTERING:
        return Step(token)
    if status is TokenStatus.ACTIVE:
        return _activated(token, cron)
    if where is Phase.VERIFYING and not _is_dead(status):
        return Step(token)  # its code is still to be sent
    return Step(replace(token, status=status, action=None, code=None))


def _is_dead(status: TokenStatus) -> bool:
    return status.is_invalid or status is TokenStatus.EXPIRED


def _refused(token: NtfToken, event: Refused) -> Step:
    where = phase(token)
    if where is Phase.REGISTERING:
        return Step(token)  # the app is told, and may ask again
    match event.request:
        case Request.TVFY:
            if where is Phase.VERIFYING:
                token = replace(token, status=TokenStatus.REGISTERED, action=None, code=None)
            return Step(token, (Send(Request.TCHK),))
        case Request.TCHK if event.unknown:
            return Step(None, (Create(Ask(token.device, token.mode, token.ntf_address)),))
        case Request.TCRN if event.unknown:
            return Step(token, (Send(Request.TCHK),))
        case Request.TRPL if event.asked is not None:
            deletion = () if event.unknown else _deletion(token)
            return Step(None, (*deletion, Create(event.asked)))
        case Request.TNEW if event.unknown:
            again = Ask(token.device, token.mode, token.ntf_address)
            return Step(None, (*_deletion(token), Create(again)))
        case _:
            return Step(token)


def _delete(token: NtfToken) -> Step:
    return Step(None, (*_deletion(token), Do.DELETE_SUBSCRIPTIONS))


def _deletion(token: NtfToken) -> tuple[Effect, ...]:
    return () if token.token_id is None else (QueueDeletion(token),)
