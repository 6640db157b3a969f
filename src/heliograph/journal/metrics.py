"""Prometheus metrics of a router's journal."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from heliograph.journal.journal import Journal
from heliograph.runtime.metrics import counter, gauge

__all__ = ["journal_metrics"]


def journal_metrics(part: str, journal: Journal) -> Iterator[Metric]:
    """Yield the metrics of a journal; none if nothing is stored."""
    counts = journal.counts()
    if counts is None:
        return
    prefix = f"heliograph_{part}_journal"
    for name, doc, value in (
        ("written", "Events that others can read in the journal.", counts.written),
        ("lost", "Events that could not be journaled.", counts.lost),
        (
            "removed",
            "Events removed before a pipeline acknowledged them, to limit the disk.",
            counts.removed,
        ),
    ):
        yield counter(f"{prefix}_events_{name}_total", doc, value)
    yield gauge(f"{prefix}_backlog", "Events that wait to be written.", journal.backlog)
    yield gauge(f"{prefix}_bytes", "Disk that sealed segments take.", counts.bytes)
    yield gauge(f"{prefix}_failing", "1 while the journal cannot be written.", int(counts.failing))
