"""What the rules of every kind of action have in common."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.actions.contract import Action, ActionKind, Refusal
from heliograph.db.dialects import Transaction
from heliograph.ntf.store.records import Subscription
from heliograph.ntf.store.subscriptions.subscriptions import Added

__all__ = ["ActionRule", "Applied", "ResolvedAction"]


class ResolvedAction(NamedTuple):
    """An action whose hash was resolved. `subject` is an ID of the store; times in milliseconds."""

    action_id: str
    kind: ActionKind
    subject: bytes
    valid_until: int = 0
    evidence: Mapping[str, object] = {}

    @classmethod
    def of(cls, action: Action, subject: bytes) -> "ResolvedAction":
        evidence = json.loads(action.evidence)
        return cls(action.action_id, action.kind, subject, action.valid_until // 1000, evidence)


@dataclass(frozen=True, slots=True)
class Applied:
    """The effect of an action: queues are to be subscribed, or nothing follows."""

    queues: tuple[Added, ...] = ()
    was_active: bool = False


def _agree(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    return None


def _nothing(removed: bytes) -> tuple[Subscription, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class ActionRule:
    """What the store does with actions of one kind. `now` is in milliseconds.

    `apply` returns what follows, and what `undo` needs to restore the state before; `deleted`
    returns from the latter which subscriptions were deleted, for the journal.
    """

    apply: Callable[[Transaction, ResolvedAction, int], tuple[Applied, bytes]]
    refusal: Callable[[Transaction, ResolvedAction, int], Refusal | None] = _agree
    undo: Callable[[Transaction, bytes, int], Applied | Refusal] | None = None
    deleted: Callable[[bytes], tuple[Subscription, ...]] = _nothing
