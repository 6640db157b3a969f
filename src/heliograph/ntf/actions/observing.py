"""Count and journal what becomes of actions, and export the counts."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from heliograph.actions.contract import ActionKind
from heliograph.journal.events import ActionApplied, ActionExpired, ActionRefused, ActionUndone
from heliograph.journal.journal import Journal
from heliograph.ntf.actions.judging import Refused
from heliograph.ntf.store.restrictions import NO_RESTRICTIONS, Restrictions
from heliograph.runtime.clock import steady_time
from heliograph.runtime.metrics import counter, gauge

__all__ = ["ActionObserver"]

MAX_REMEMBERED = 100_000
"""Refused actions that are recognised, so that each is recorded once."""


class ActionObserver(Collector):
    """The counts of one run. No label identifies a token or subscription."""

    def __init__(self, journal: Journal, restrictions: Restrictions = NO_RESTRICTIONS) -> None:
        self._journal = journal
        self._restrictions = restrictions
        self._seen: set[tuple[str, str]] = set()
        self._applied: Counter[str] = Counter()
        self._undone: Counter[str] = Counter()
        self._expired: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._capped: Counter[str] = Counter()
        self._failures = 0

    def applied(self, action_id: str, kind: ActionKind, subject: bytes) -> None:
        self._applied[kind.value] += 1
        self._journal.record(
            ActionApplied(action=action_id, action_kind=kind.value, **_subject(kind, subject))
        )

    def undone(self, action_id: str, kind: ActionKind, subject: bytes) -> None:
        self._undone[kind.value] += 1
        self._journal.record(
            ActionUndone(action=action_id, action_kind=kind.value, **_subject(kind, subject))
        )

    def expired(self, action_id: str, kind: ActionKind, subject: bytes) -> None:
        self._expired[kind.value] += 1
        self._journal.record(
            ActionExpired(action=action_id, action_kind=kind.value, **_subject(kind, subject))
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
            ("expired", "Throttles, pauses and alerts that ended.", self._expired, "kind"),
            ("refused", "Actions that were refused, by reason.", self._refused, "reason"),
        ):
            yield counter(f"{prefix}_{name}_total", doc, dict(found), label)
        doc = "Times that the table of actions could not be read."
        yield counter(f"{prefix}_read_failures_total", doc, self._failures)
        doc = "Valid actions that were not applied."
        yield gauge(f"{prefix}_waiting", doc, dict(self._waiting), "kind")
        doc = "Actions that wait because their kind has reached its daily cap."
        yield gauge(f"{prefix}_capped", doc, dict(self._capped), "kind")
        in_force = self._restrictions.in_force(int(steady_time() * 1000))
        doc = "Throttles, pauses, alerts and reports in force."
        yield gauge(f"{prefix}_in_force", doc, Counter(m.kind.value for m in in_force), "kind")
        doc = "Alerts and reports in force, by what was found."
        alerts = Counter(m.finding for m in in_force if m.kind in _ALERTS)
        yield gauge("heliograph_ntf_alerts", doc, alerts, "finding")


_ALERTS = (ActionKind.ALERT, ActionKind.REPORT)
_COLUMNS = ("token", "subscription", "server")


def _subject(kind: ActionKind, subject: bytes) -> dict[str, bytes]:
    """Return the column that names the subject, if the journal has one for it."""
    return {kind.subject: subject} if kind.subject in _COLUMNS else {}
