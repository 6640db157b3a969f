"""Judge the rows of the table: which are actions that this router may apply. Does no I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from heliograph.actions.contract import (
    Action,
    MalformedAction,
    Refusal,
    check,
    decode_action,
)
from heliograph.documents import JsonMapping

__all__ = ["Judged", "Refused", "judge"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is refused. What it says of itself is not trusted."""

    action_id: str
    kind: str
    reason: Refusal


@dataclass(frozen=True, slots=True)
class Judged:
    """Valid actions in the order of their decision, and what is refused."""

    actions: list[Action] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def judge(rows: Iterable[JsonMapping], router: str, signer: bytes | None, now: int) -> Judged:
    """Judge all rows; of rows with the same ID the first that is valid counts."""
    found: dict[str, Action] = {}
    refused = []
    for row in rows:
        try:
            action = decode_action(row)
        except MalformedAction:
            refused.append(Refused(_text(row, "action_id"), _text(row, "kind"), Refusal.MALFORMED))
            continue
        reason = check(action, router, signer, now)
        if reason is None:
            found.setdefault(action.action_id, action)
        else:
            refused.append(Refused(action.action_id, action.kind.value, reason))
    return Judged(sorted(found.values(), key=lambda a: (a.decided_at, a.action_id)), refused)


def _text(row: JsonMapping, name: str) -> str:
    """Return a short printable text, whatever the column has."""
    value = row.get(name)
    is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return value[:40] if is_plain and isinstance(value, str) else "?"
