"""The life of one subscription, as a pure machine over its pending action.

              NID               IDSUB                 SUB, subscribed
    SMP_KEY ───────> NTF_CREATE ───────> NTF_CHECK ───────────────────> NTF_CHECK, due later
       ^                                     │
       └───────── AUTH, or an ended status ──┘

    delete ──> SMP_DELETE ──OK──> NTF_DELETE ──OK──> removed     (no NTF_DELETE if there is nothing)
    forget ──────────────────────> NTF_DELETE ──OK──> removed
    any but deletions ──refused for good──> parked (no action); the next create begins again

A worker performs the stored action and passes the outcome to `after`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from heliograph.agent.notifications.records import (
    NtfSubscription,
    NtfToken,
    SubAction,
    SubscriptionStage,
)
from heliograph.runtime.backoff import Backoff
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.ntf.tokens import SubscriptionState


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The part of a connection's receive queue that decisions depend on."""

    smp_address: ServerAddress
    notifier_id: bytes | None = field(default=None, repr=False)


class Decision(Enum):
    """What a create does for one connection."""

    NEW = auto()
    RESET = auto()
    CONTINUE_SMP = auto()
    CONTINUE_NTF = auto()


def decide(queue: QueueFacts, sub: NtfSubscription | None, token: NtfToken) -> Decision:
    """Return whether a subscription must be created, reset, or can continue."""
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
    """Return a new subscription, past SMP_KEY if its queue has credentials; or a reset one."""
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
        stage=SubscriptionStage.KEY if keyed else SubscriptionStage.NEW,
        action=SubAction.NTF_CREATE if keyed else SubAction.SMP_KEY,
    )


def at(sub: NtfSubscription, token: NtfToken) -> NtfSubscription:
    """Return the subscription with the current address of its notification router."""
    if sub.ntf_address == token.ntf_address:
        return sub
    return replace(sub, ntf_address=token.ntf_address, revision=sub.revision + 1)


def delete(sub: NtfSubscription, queue: QueueFacts | None) -> NtfSubscription:
    """Return the first step of a deletion, which starts at the router of the queue."""
    address = sub.smp_address if queue is None else queue.smp_address
    return _then(replace(sub, smp_address=address, revision=sub.revision + 1), SubAction.SMP_DELETE)


def forget(sub: NtfSubscription, token: NtfToken | None) -> NtfSubscription | None:
    """Return the deletion for a deleted queue, or None to remove it at once."""
    if not _known(sub, token):
        return None
    return _then(replace(sub, revision=sub.revision + 1), SubAction.NTF_DELETE)


class ActionFailure(Enum):
    """Why an action was not performed."""

    UNREACHABLE = auto()
    """No answer. The command may have been performed; repeating it is safe."""
    LATER = auto()
    """The router cannot serve the command now."""
    AUTH = auto()
    REFUSED = auto()
    NO_QUEUE = auto()
    """The connection has no receive queue, or the queue no credentials."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """NID: the router accepted the notifier key."""

    notifier_id: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NtfSubscriptionCreated:
    """IDSUB: the router created the subscription."""

    subscription_id: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StateIs:
    """SUB: the router reported the subscription's state."""

    state: SubscriptionState


class Done(Enum):
    DELETED = auto()


ActionOutcome = KeySet | NtfSubscriptionCreated | StateIs | Done | ActionFailure


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds from creation to the first check, between checks, and after LATER."""

    first_check: float = 86_400.0
    check: float = 3 * 86_400.0
    later: Backoff = field(default_factory=lambda: Backoff(first=60.0, last=6 * 3600.0))

    def longest(self, action: SubAction) -> float:
        """Return the longest time until an action is due, unless the clock was set back."""
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
    """Return whether the router keeps the subscription active, or tries to."""
    return state in _SUBSCRIBED


def after(
    sub: NtfSubscription,
    outcome: ActionOutcome,
    token: NtfToken | None,
    intervals: Intervals,
    now: float,
) -> NtfSubscription | None:
    """Return what to store after an outcome of the pending action; None to remove it. Total."""
    if sub.action is None or outcome is ActionFailure.UNREACHABLE:
        return sub
    if outcome is ActionFailure.LATER:
        wait = intervals.later.delay(sub.attempts + 1, 0.0)
        return replace(sub, attempts=sub.attempts + 1, due=now + wait)
    match sub.action, outcome:
        case SubAction.SMP_KEY, KeySet(notifier_id):
            keyed = replace(sub, notifier_id=notifier_id, stage=SubscriptionStage.KEY)
            return _then(keyed, SubAction.NTF_CREATE)
        case SubAction.NTF_CREATE, NtfSubscriptionCreated(subscription_id):
            created = replace(
                sub,
                subscription_id=subscription_id,
                token_id=None if token is None else token.token_id,
                stage=SubscriptionStage.CREATED,
                state=SubscriptionState.NEW,
            )
            return _then(created, SubAction.NTF_CHECK, now + intervals.first_check)
        case SubAction.NTF_CHECK, StateIs(state) if is_subscribed(state):
            return _then(replace(sub, state=state), SubAction.NTF_CHECK, now + intervals.check)
        case SubAction.NTF_CHECK, StateIs() | ActionFailure.AUTH:
            return _recreate(sub, token)
        case SubAction.SMP_DELETE, _:
            deleted = replace(sub, notifier_id=None, stage=SubscriptionStage.DELETED, state=None)
            return _then(deleted, SubAction.NTF_DELETE) if _known(sub, token) else None
        case SubAction.NTF_DELETE, _:
            return None
        case _:
            return replace(sub, action=None, attempts=0)


def allowed(actions: Sequence[SubAction], token: NtfToken | None) -> list[SubAction]:
    """Return the actions that the token allows: unless active and instant, only deletions."""
    instant = token is not None and token.is_instant
    return [action for action in actions if instant or action.is_delete]


def is_due(sub: NtfSubscription, intervals: Intervals, now: float) -> bool:
    """Return whether it is due. A time beyond every interval is due too: the clock was set back."""
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
    """Return whether the subscription belongs to this token."""
    return (
        sub.subscription_id is not None
        and token is not None
        and token.token_id == sub.token_id
        and _same(token.ntf_address, sub.ntf_address)
    )


def _same(one: ServerAddress, other: ServerAddress) -> bool:
    """Return whether two addresses are of one router: its identity is the fingerprint."""
    return one.fingerprint == other.fingerprint


def _then(sub: NtfSubscription, action: SubAction, due: float = 0.0) -> NtfSubscription:
    return replace(sub, action=action, due=due, attempts=0)
