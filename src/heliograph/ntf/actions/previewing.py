"""Preview what would become of actions, for `apply --dry-run`."""

from collections.abc import Sequence

from heliograph.actions.contract import Action, Refusal
from heliograph.db.dialects import Transaction
from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import JournalIdentity
from heliograph.ntf.actions.resolving import resolve_in
from heliograph.ntf.store.actions.applying import Caps, preview_batch
from heliograph.ntf.store.actions.rules import Applied, ResolvedAction

__all__ = ["preview"]


def preview(
    tx: Transaction,
    actions: Sequence[Action],
    identity: JournalIdentity,
    caps: Caps,
    now: int,
) -> dict[str, str]:
    """Return a word for each action: `would_apply`, or why it would not be applied."""
    entities = resolve_in(tx, actions, Hasher(identity.key))
    results: dict[str, str] = {}
    chosen = []
    for action in actions:
        subject = entities.get((action.kind.subject, action.subject))
        if subject is None:
            results[action.action_id] = Refusal.UNKNOWN_SUBJECT.value
        else:
            chosen.append(ResolvedAction.of(action, subject))
    for item, result in zip(chosen, preview_batch(tx, chosen, caps, now), strict=True):
        word = "would_apply" if isinstance(result, Applied) else result.value
        results[item.action_id] = word
    return results
