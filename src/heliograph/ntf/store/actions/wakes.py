"""Actions about wakes: `wake_fleet` and `control_wake`. Their subject is the ID of a wake."""

from heliograph.actions.contract import ActionKind, Refusal
from heliograph.actions.wakes import CONTROLS, MAX_RATE
from heliograph.db.dialects import Transaction
from heliograph.ntf.store import wakes
from heliograph.ntf.store.actions.rules import ActionRule, Applied, ResolvedAction

__all__ = ["RULES"]

LATEST_CONTROL = 1 << 62
"""Later than every control of the pipeline: what the operator aborts here stays aborted."""


def rate_of(item: ResolvedAction) -> float | None:
    """Return the tokens in a second that an action asks for, None if it asks for nonsense."""
    rate = item.evidence.get("rate")
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    return float(rate) if is_number and 0 < rate <= MAX_RATE else None  # type: ignore[operator, arg-type]


def _refuse_wake(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    """Refuse a second wake beside one that is not over: together they would be faster."""
    is_other = any(
        not wake.state.is_over or wake.wake_id == item.subject for wake in wakes.all_wakes(tx)
    )
    return Refusal.DISAGREED if is_other or rate_of(item) is None else None


def _wake(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    wakes.begin(tx, item.subject, rate_of(item) or 1.0, now)
    return Applied(), item.subject


def _abort(tx: Transaction, removed: bytes, now: int) -> Applied | Refusal:
    state = wakes.control(tx, removed, "abort", LATEST_CONTROL)
    return Refusal.DISAGREED if state is None else Applied()


def _word(item: ResolvedAction) -> str | None:
    word = item.evidence.get("do")
    return word if isinstance(word, str) and word in CONTROLS else None


def _at(item: ResolvedAction) -> int:
    at = item.evidence.get("at")
    return at if isinstance(at, int) else 0


def _refuse_control(tx: Transaction, item: ResolvedAction, now: int) -> Refusal | None:
    word, wake = _word(item), wakes.find(tx, item.subject)
    if word is None or wake is None:
        return Refusal.DISAGREED
    return None if wakes.allows(wake, word, _at(item)) else Refusal.DISAGREED


def _control(tx: Transaction, item: ResolvedAction, now: int) -> tuple[Applied, bytes]:
    wakes.control(tx, item.subject, _word(item) or "", _at(item))
    return Applied(), b""


RULES = {
    ActionKind.WAKE_FLEET: ActionRule(_wake, _refuse_wake, _abort),
    ActionKind.CONTROL_WAKE: ActionRule(_control, _refuse_control),
}
