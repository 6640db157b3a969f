"""The life of one subscription, as a pure machine over its pending action.

              NID               IDSUB                 SUB, subscribed
    SMP_KEY ───────> NTF_CREATE ───────> NTF_CHECK ───────────────────> NTF_CHECK, due later
       ^                                     │
       └───────── AUTH, or an ended status ──┘

    delete ──> SMP_DELETE ──OK──> NTF_DELETE ──OK──> removed     (no NTF_DELETE if there is nothing)
    forget ──────────────────────> NTF_DELETE ──OK──> removed
    any but deletions ──refused for good──> parked (no action); the next create begins again

A worker performs the action that is stored and gives the outcome to `after`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from heliograph.agent.ntf_records import NtfSubscription, NtfToken, Stage, SubAction
from heliograph.runtime.backoff import Backoff
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.tokens import SubscriptionState


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What deciding needs of a connection's receive queue."""

    smp_address: ServerAddress
    notifier_id: bytes | None = field(default=None, repr=False)


class Decision(Enum):
    """What a create means for one connection."""

    NEW = auto()
    RESET = auto()
    CONTINUE_SMP = auto()
    CONTINUE_NTF = auto()


def decide(queue: QueueFacts, sub: NtfSubscription | None, token: NtfToken) -> Decision:
    """The partition of a create: there is none, it must begin again, or it goes on."""
    if sub is None:
        return Decision.NEW
    if sub.action is None or sub.action.is_delete:
        return Decision.RESET
    if sub.smp_address != queue.smp_address or sub.notifier_id != queue.notifier_id:
        return Decision.RESET
    if not _same(sub.ntf_address, token.ntf_address) or sub.token_id not in (None, token.token_id):
        return Decision.RESET
    return Decision.CONTINUE_SMP if sub.action.at_smp else Decision.CONTINUE_NTF


def begin(
    conn_id: str, queue: QueueFacts, sub: NtfSubscription | None, token: NtfToken
) -> NtfSubscription:
    """A new subscription, or one that forgets how far it had come.

    A new one has its first step behind it if the queue was created with notifier credentials.
    """
    if sub is not None:
        return NtfSubscription(
            conn_id, queue.smp_address, token.ntf_address, revision=sub.revision + 1
        )
    keyed = queue.notifier_id is not None
    return NtfSubscription(
        conn_id,
        queue.smp_address,
        token.ntf_address,
        notifier_id=queue.notifier_id,
        stage=Stage.KEY if keyed else Stage.NEW,
        action=SubAction.NTF_CREATE if keyed else SubAction.SMP_KEY,
    )


def at(sub: NtfSubscription, token: NtfToken) -> NtfSubscription:
    """A subscription that goes on, where its notification router is reached now."""
    if sub.ntf_address == token.ntf_address:
        return sub
    return replace(sub, ntf_address=token.ntf_address, revision=sub.revision + 1)


def delete(sub: NtfSubscription, queue: QueueFacts | None) -> NtfSubscription:
    """Notifications are off for it. Its queue says where its notifier is to be deleted."""
    address = sub.smp_address if queue is None else queue.smp_address
    return _then(replace(sub, smp_address=address, revision=sub.revision + 1), SubAction.SMP_DELETE)


def forget(sub: NtfSubscription, token: NtfToken | None) -> NtfSubscription | None:
    """Its queue is being deleted, and its notifier with it; None to remove it at once."""
    if not _known(sub, token):
        return None
    return _then(replace(sub, revision=sub.revision + 1), SubAction.NTF_DELETE)


class Failure(Enum):
    """Why an action was not performed."""

    UNREACHABLE = auto()
    """No answer. What was asked may have been done; asking again is safe."""
    LATER = auto()
    """The router cannot just now."""
    AUTH = auto()
    REFUSED = auto()
    NO_QUEUE = auto()
    """The connection has no receive queue, or the queue no credentials."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """NID."""

    notifier_id: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Created:
    """IDSUB."""

    subscription_id: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StateIs:
    """SUB."""

    state: SubscriptionState


class Done(Enum):
    DELETED = auto()


Outcome = KeySet | Created | StateIs | Done | Failure


@dataclass(frozen=True, slots=True)
class Intervals:
    """In seconds: from creation to the first check, between checks, after LATER."""

    first_check: float = 86_400.0
    check: float = 3 * 86_400.0
    later: Backoff = field(default_factory=lambda: Backoff(first=60.0, last=6 * 3600.0))

    def longest(self, action: SubAction) -> float:
        """How far in the future an action may be due, if the clock was not set back since."""
        if action is SubAction.NTF_CHECK:
            return max(self.first_check, self.check, self.later.last)
        return self.later.last


_SUBSCRIBED = frozenset(
    {
        SubscriptionState.NEW,
        SubscriptionState.PENDING,
        SubscriptionState.ACTIVE,
        SubscriptionState.INACTIVE,
    }
)


def is_subscribed(state: SubscriptionState) -> bool:
    """Whether the router keeps it, or tries to."""
    return state in _SUBSCRIBED


def after(
    sub: NtfSubscription,
    outcome: Outcome,
    token: NtfToken | None,
    intervals: Intervals,
    now: float,
) -> NtfSubscription | None:
    """What to store after the pending action had this outcome; None to remove it. Total."""
    if sub.action is None or outcome is Failure.UNREACHABLE:
        return sub
    if outcome is Failure.LATER:
        wait = intervals.later.delay(sub.attempts + 1, 0.0)
        return replace(sub, attempts=sub.attempts + 1, due=now + wait)
    match sub.action, outcome:
        case SubAction.SMP_KEY, KeySet(notifier_id):
            keyed = replace(sub, notifier_id=notifier_id, stage=Stage.KEY)
            return _then(keyed, SubAction.NTF_CREATE)
        case SubAction.NTF_CREATE, Created(subscription_id):
            created = replace(
                sub,
                subscription_id=subscription_id,
                token_id=None if token is None else token.token_id,
                stage=Stage.CREATED,
                state=SubscriptionState.NEW,
            )
            return _then(created, SubAction.NTF_CHECK, now + intervals.first_check)
        case SubAction.NTF_CHECK, StateIs(state) if is_subscribed(state):
            return _then(replace(sub, state=state), SubAction.NTF_CHECK, now + intervals.check)
        case SubAction.NTF_CHECK, StateIs() | Failure.AUTH:
            return _recreate(sub, token)
        case SubAction.SMP_DELETE, _:
            deleted = replace(sub, notifier_id=None, stage=Stage.DELETED, state=None)
            return _then(deleted, SubAction.NTF_DELETE) if _known(sub, token) else None
        case SubAction.NTF_DELETE, _:
            return None
        case _:
            return replace(sub, action=None, attempts=0)


def allowed(actions: Sequence[SubAction], token: NtfToken | None) -> list[SubAction]:
    """Those that may be done with this token: without an active one in instant mode, deletions."""
    instant = token is not None and token.is_instant
    return [action for action in actions if instant or action.is_delete]


def is_due(sub: NtfSubscription, intervals: Intervals, now: float) -> bool:
    """Also when due later than any interval allows: then the clock was set back."""
    if sub.action is None:
        return False
    return sub.due <= now or sub.due > now + intervals.longest(sub.action)


def _recreate(sub: NtfSubscription, token: NtfToken | None) -> NtfSubscription:
    return NtfSubscription(
        sub.conn_id,
        sub.smp_address,
        sub.ntf_address if token is None else token.ntf_address,
        revision=sub.revision,
    )


def _known(sub: NtfSubscription, token: NtfToken | None) -> bool:
    """Whether the router has it and the token's key opens it."""
    return (
        sub.subscription_id is not None
        and token is not None
        and token.token_id == sub.token_id
        and _same(token.ntf_address, sub.ntf_address)
    )


def _same(one: ServerAddress, other: ServerAddress) -> bool:
    """A router is its identity, wherever it is reached."""
    return one.fingerprint == other.fingerprint


def _then(sub: NtfSubscription, action: SubAction, due: float = 0.0) -> NtfSubscription:
    return replace(sub, action=action, due=due, attempts=0)
