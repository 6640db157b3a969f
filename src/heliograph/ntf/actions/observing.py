"""Count and journal what becomes of actions, and export the counts."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from heliograph.actions.contract import ActionKind
from heliograph.journal.events import ActionApplied, ActionRefused, ActionUndone
from heliograph.journal.journal import Journal
from heliograph.ntf.actions.judging import Refused
from heliograph.runtime.metrics import counter, gauge

__all__ = ["ActionObserver"]

MAX_REMEMBERED = 100_000
"""Refused actions that are recognised, so that each is recorded once."""


class ActionObserver(Collector):
    """The counts of one run. No label identifies a token or subscription."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: set[tuple[str, str]] = set()
        self._applied: Counter[str] = Counter()
        self._undone: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._capped: Counter[str] = Counter()
        self._failures = 0

    def applied(self, action_id: str, kind: ActionKind, subject: bytes) -> None:
        self._applied[kind.value] += 1
        self._journal.record(
            ActionApplied(action=action_id, action_kind=kind.value, **{kind.subject: subject})
        )

    def undone(self, action_id: str, kind: ActionKind, subject: bytes) -> None:
        self._undone[kind.value] += 1
        self._journal.record(
            ActionUndone(action=action_id, action_kind=kind.value, **{kind.subject: subject})
        )

    def refused(self, refused: Iterable[Refused]) -> None:
        """Record refusals, each once in a run: the table is read again and again."""
        for item in refused:
            key = item.action_id, item.reason.value
            if key in self._seen or len(self._seen) >= MAX_REMEMBERED:
                continue
            self._seen.add(key)
            self._refused[item.reason.value] += 1
            self._journal.record(
                ActionRefused(
                    action=item.action_id, action_kind=item.kind, reason=item.reason.value
                )
            )

    def waiting(self, kinds: Iterable[ActionKind]) -> None:
        """Replace the numbers of actions that were not applied yet."""
        self._waiting = Counter(kind.value for kind in kinds)

    def capped(self, kinds: Iterable[ActionKind]) -> None:
        """Replace the numbers of actions that wait because their kind has reached its cap."""
        self._capped = Counter(kind.value for kind in kinds)

    def read_failed(self) -> None:
        self._failures += 1

    def collect(self) -> Iterator[Metric]:
        prefix = "heliograph_ntf_actions"
        for name, doc, found, label in (
            ("applied", "Actions of the pipeline that were applied.", self._applied, "kind"),
            ("undone", "Actions that the operator undid.", self._undone, "kind"),
            ("refused", "Actions that were refused, by reason.", self._refused, "reason"),
        ):
            yield counter(f"{prefix}_{name}_total", doc, dict(found), label)
        doc = "Times that the table of actions could not be read."
        yield counter(f"{prefix}_read_failures_total", doc, self._failures)
        doc = "Valid actions that were not applied."
        yield gauge(f"{prefix}_waiting", doc, dict(self._waiting), "kind")
        doc = "Actions that wait because their kind has reached its daily cap."
        yield gauge(f"{prefix}_capped", doc, dict(self._capped), "kind")
