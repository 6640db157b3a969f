"""Checks of the journal and, if there is one, of the data pipeline that reads it.

It looks at files alone: neither Spark nor the pipeline need to be installed or to run.
"""

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.doctor.findings import Finding, Findings, good, note, problem, warning
from heliograph.doctor.subject import Subject
from heliograph.documents import JsonMapping, JsonObject
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    from heliograph.pipeline.tables.offsets import Offsets

__all__ = ["check_journal", "check_pipeline"]

UNACCOUNTED = "unaccounted"
"""The outcome that no notification may have."""
_REPORT = "the pipeline's report has the reasons: `heliograph pipeline report`"


def check_journal(subject: Subject) -> Findings:
    place = subject.config.journal.path_in(subject.directory)
    if place is None:
        yield note(
            "journal",
            "there is none, so the data pipeline knows nothing of this router",
            'if it should: set [journal] path = "journal"',
        )
    elif not place.exists():
        yield note("journal", f"{place} is not there yet: the router makes it")
    elif not os.access(place, os.W_OK):
        yield problem(
            "journal",
            f"{place} cannot be written: events are lost",
            f"chown --reference={subject.directory} {place}",
        )
    else:
        size = sum(item.stat().st_size for item in place.rglob("*.parquet"))
        yield good("journal", f"{size / 1e6:.0f} MB in {place.resolve()}")


def check_pipeline(subject: Subject) -> Findings:
    tables = subject.tables or _tables_beside(subject.directory)
    place = subject.config.journal.path_in(subject.directory)
    if tables is None or place is None or not place.exists():
        return
    # Imported here because a router without a journal runs without Arrow.
    from heliograph.pipeline.jobs.reach import describe_lag
    from heliograph.pipeline.status import status

    try:
        found = status(tables, [str(place)], time.time())
    except StartError as exc:
        what, _, advice = str(exc).partition(". ")
        yield problem("pipeline", what, advice or "see the pipeline's log")
        return
    yield _judge_lag(subject, tables, found.waiting or 0, found.lag or 0.0)
    yield from _judge_account(found.account)
    for lag in found.lags if found.verdict == "lagging" else ():
        yield warning(
            "pipeline",
            f"lagging: {describe_lag(lag)}",
            "start it, or say that it will not come back: `heliograph pipeline retire ROUTER`",
        )
    yield from _judge_quarantine(tables, found.offsets)


def _tables_beside(directory: Path) -> Path | None:
    """Return where `heliograph up` or `heliograph pipeline` keeps the tables."""
    for name in ("tables", "pipeline"):
        if (directory.parent / name / "events" / "_delta_log").exists():
            return directory.parent / name
    return None


def _judge_lag(subject: Subject, tables: Path, waiting: int, lag: float) -> Finding:
    text = f"{waiting} segments wait, the oldest for {lag:.0f} s" if waiting else "nothing waits"
    if lag <= subject.thresholds.lag:
        return good("pipeline", text)
    return warning(
        "pipeline",
        text,
        f"see that it runs: `heliograph pipeline status --dir {tables}`, and its log; routers do"
        " not need it",
    )


def _judge_account(account: JsonMapping) -> Findings:
    missing = account.get("outcomes", {}).get(UNACCOUNTED, 0)
    if missing:
        yield problem(
            "pipeline",
            f"{missing} notifications are unaccounted for",
            "see which: `heliograph pipeline once` prints them; a journal may have lost events",
        )


def _judge_quarantine(tables: Path, offsets: "Offsets") -> Findings:
    """Report quarantined events, and quarantined files, which the same table counts."""
    total = offsets.counts.get("quarantined", 0)
    if not total:
        return
    rows = _quarantined(tables)
    files = {row["event_id"]: row["reason"] for row in rows if row["raw"] is None}
    reasons = Counter(str(row["reason"]) for row in rows if row["raw"] is not None)
    if files:
        name, reason = min(files.items())
        yield warning(
            "pipeline",
            f"{len(files)} files of the journal cannot be read and are in quarantine:"
            f" {name} ({reason})",
            "what is in them is not accounted for: see that the router's disk is sound, and keep"
            " the files for repair",
        )
    if reasons:
        yield warning(
            "pipeline",
            f"{max(total - len(files), 1)} events are in quarantine: they do not fit the schema:"
            f" {reasons.most_common(1)[0][0]}",
            f"{_REPORT}; perhaps a router is newer than the pipeline: use the same version",
        )
    if not rows:
        yield warning("pipeline", f"{total} events or files are in quarantine", _REPORT)


def _quarantined(tables: Path) -> list[JsonObject]:
    """Return the rows that are left: old rows are removed, and the count stays."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[JsonObject] = []
    for path in sorted((tables / "quarantine").glob("[0-9]*/*.parquet")):
        with contextlib.suppress(OSError, pa.ArrowException):
            rows += pq.read_table(path, columns=["event_id", "reason", "raw"]).to_pylist()
    return rows
