"""What the page reads of a system besides its metrics: processes, stores, tables."""

import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.db.dialects import Transaction, open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.trace import Trace, trace
from heliograph.pipeline.status import status
from heliograph.pipeline.tables import read_manifest
from heliograph.pipeline.vocabulary import (
    ACCEPTED,
    EXPIRED,
    REJECTED,
    SHOWN,
    SUPERSEDED,
    UNACCOUNTED,
)
from heliograph.runtime.errors import StartError
from heliograph.system import state
from heliograph.system.layout import Layout
from heliograph.web.paths import fate, path_of, read
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode

__all__ = ["SystemSources"]

NOTHING = (
    "Nothing is known by this ID. Tokens are forgotten when they are deleted; notifications"
    " are known once the pipeline has seen them."
)

_COUNTS = ("events", "quarantined")
_NOTIFICATION = re.compile("[0-9a-f]{32}")


class SystemSources:
    def __init__(self, layout: Layout, ntf: NtfConfig) -> None:
        self._layout = layout
        self._url = ntf.store_url(layout.ntf)

    def parts(self) -> list[dict[str, Any]]:
        found = state.read(self._layout.state)
        if found is None:
            return []
        return [
            {
                "name": name,
                "state": part.state.value,
                "since": part.since,
                "restarts": part.restarts,
                "told": part.told.split(" control ")[0],
                "ended": part.ended,
            }
            for name, part in found.parts.items()
        ]

    def pipeline(self) -> dict[str, Any]:
        try:
            found = status(self._layout.tables, [str(self._layout.journal)], time.time())
        except (OSError, StartError):
            return _pipeline("its tables cannot be read", None)
        manifest = found.manifest
        if not manifest.version:
            return _pipeline("nothing was taken yet", found.lag)
        missing = (manifest.notes.get("account") or {"fates": {}})["fates"].get(UNACCOUNTED, 0)
        state = f"{missing} are unaccounted for" if missing else "nothing is unaccounted for"
        return _pipeline(state, round(found.lag or 0.0, 1), manifest.counts)

    def history(self, hours: int) -> dict[str, Any]:
        try:
            account = read_manifest(self._layout.tables).notes.get("account") or {}
        except StartError:
            account = {}
        since = time.time() - hours * 3600
        points = [hour for hour in account.get("hours", ()) if hour["at"] + 3600 > since]
        fates: Counter[str] = Counter()
        for hour in points:
            fates.update(hour["fates"])
        return {"hours": hours, "points": [_point(hour) for hour in points], "fates": dict(fates)}

    def search(self, wanted: str) -> dict[str, Any]:
        found = self._notification(wanted) if _NOTIFICATION.fullmatch(wanted) else None
        return found or self._token(wanted) or _answer("nothing", NOTHING)

    def _notification(self, wanted: str) -> dict[str, Any] | None:
        try:
            path = path_of(read(self._event_files(), wanted), wanted)
        except (OSError, pa.ArrowException):
            return None  # a segment that the pipeline took and removed meanwhile
        if not path:
            return None
        events = [
            {"at": event["at"].timestamp(), "part": event["part"], "what": _what(event)}
            for event in path
        ]
        begin, end = path[0]["at"], path[-1]["at"]
        facts = [("first seen", f"{begin:%Y-%m-%d %H:%M:%S} UTC")]
        facts.append(("from first to last event", f"{(end - begin).total_seconds():.3f} s"))
        return _answer("notification", fate(path, wanted), facts, events)

    def _event_files(self) -> list[Path]:
        """The table's, and those segments of the journal that may not be in it yet."""
        tables = self._layout.tables
        with suppress(StartError):
            listed = [tables / file.path for file in read_manifest(tables).of("events")]
            return [*listed, *sorted(self._layout.journal.glob("*/[!._]*.parquet"))]
        return []

    def _token(self, wanted: str) -> dict[str, Any] | None:
        try:
            token_id = b64decode(wanted)
        except WireError:
            return None
        try:
            dialect = open_dialect(self._url, read_only=True)
        except DatabaseError:
            return None
        try:
            found = trace(Transaction(dialect), token_id)
        except DatabaseError:
            return None
        finally:
            dialect.close()
        return None if found is None else _token_answer(found, time.time())


def _pipeline(
    state: str, lag: float | None, counts: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """`quarantined` are events that do not fit, and files that cannot be read."""
    told = {name: None if counts is None else counts.get(name, 0) for name in _COUNTS}
    return {"state": state, "lag_seconds": lag, **told}


def _point(hour: dict[str, Any]) -> dict[str, Any]:
    fates = hour["fates"]
    return {
        "at": hour["at"],
        "notifications": sum(fates.values()),
        "accepted": sum(fates.get(fate, 0) for fate in (SHOWN, ACCEPTED, SUPERSEDED)),
        "rejected": sum(fates.get(fate, 0) for fate in (REJECTED, EXPIRED)),
        "p50_ms": _milliseconds(hour["p50_us"]),
        "p99_ms": _milliseconds(hour["p99_us"]),
    }


def _milliseconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else round(microseconds / 1000, 1)


def _token_answer(found: Trace, now: float) -> dict[str, Any]:
    summary = f"A token: {found.status}."
    summary += f" {len(found.debts)} pushes are owed to it." if found.debts else " Nothing is owed."
    facts = [("status", found.status), ("provider", found.provider)]
    facts.append(("registered", _when(found.created_at)))
    if found.cron_minutes:
        facts.append(("periodic pushes", f"every {found.cron_minutes} minutes"))
    facts += [(f"subscriptions {key}", str(count)) for key, count in found.subscriptions.items()]
    facts += [(error, f"{count} subscriptions") for error, count in found.errors.items()]
    for debt in found.debts:
        text = f"since {_when(debt.since)}, failed {debt.attempts} times, again at"
        facts.append((f"owed: {debt.kind}", f"{text} {_when(debt.next_at)}"))
    events = [
        {"at": item.at, "part": "ntf", "what": f"notification {item.notification}"}
        for item in reversed(found.notified)
    ]
    return _answer("token", summary, facts, events)


def _what(event: dict[str, Any]) -> str:
    told = [name for name in ("provider", "status", "reason", "code") if event.get(name)]
    words = [event["kind"].replace("_", " "), *(f"{name} {event[name]}" for name in told)]
    if event.get("attempt"):
        words.append(f"try {event['attempt']}")
    return ", ".join(words)


def _answer(
    kind: str,
    summary: str,
    facts: list[tuple[str, str]] | None = None,
    events: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    told = [{"name": name, "value": value} for name, value in facts or []]
    return {"kind": kind, "summary": summary, "facts": told, "events": events or []}


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
