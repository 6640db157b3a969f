"""What the page reads of a system besides metrics: processes, disks, stores and tables."""

import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from heliograph.db.dialects import Transaction, open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.documents import JsonMapping, JsonObject
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.diagnosis.trace import Trace, trace
from heliograph.pipeline.objectives.budget import ALERTS
from heliograph.pipeline.objectives.describing import provider_of, summary
from heliograph.pipeline.status import status
from heliograph.pipeline.tables.offsets import read_account
from heliograph.pipeline.tables.tables import list_files
from heliograph.pipeline.vocabulary import (
    ACCEPTED,
    COALESCED,
    EXPIRED,
    REJECTED,
    SHOWN,
    UNACCOUNTED,
)
from heliograph.runtime.errors import StartError
from heliograph.system import state
from heliograph.system.config import SystemConfig
from heliograph.system.layout import Layout
from heliograph.web.machine import Processes, disks, machine
from heliograph.web.pairing import addresses
from heliograph.web.paths import outcome, path_of, read
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode

__all__ = ["SystemSources"]

NOTHING_FOUND = (
    "Nothing is known by this ID. Deleted tokens are unknown, and notifications are known once"
    " their router has written them to the journal."
)

_STATES = {
    "complete": "complete",
    "lagging": "lagging",
    "gaps": "gaps",
    "missing": "unaccounted",
}
"""The state that the page shows, by verdict."""
_COUNTS = ("events", "quarantined")
_NOTIFICATION = re.compile("[0-9a-f]{32}")


class SystemSources:
    """The processes, disks, stores and tables of the system in a directory."""

    def __init__(self, layout: Layout, config: SystemConfig, ntf: NtfConfig) -> None:
        self._layout = layout
        self._has_pipeline = config.pipeline.enabled
        self._ntf = ntf
        self._url = ntf.store_url(layout.ntf)
        self._measured = Processes()

    def processes(self) -> list[JsonObject]:
        found = state.read(self._layout.state)
        if found is None:
            return []
        pids = [part.pid for part in found.parts.values() if part.pid is not None]
        measured = self._measured.measure(pids)
        nothing = {"cpu_percent": None, "memory": None, "open_files": None}
        return [
            {
                "name": name,
                "state": part.state.value,
                "since": part.since,
                "restarts": part.restarts,
                "address": part.address.split(" control ")[0],
                "ended": part.ended,
                **measured.get(part.pid or 0, nothing),
            }
            for name, part in found.parts.items()
        ]

    def addresses(self) -> dict[str, str | None]:
        return addresses(self._layout, self._ntf)

    def machine(self) -> JsonObject:
        return machine()

    def disks(self) -> list[JsonObject]:
        layout = self._layout
        places = {"smp": layout.smp, "ntf": layout.ntf, "journal": layout.journal}
        return disks({"system": layout.root, **places, "pipeline": layout.tables})

    def pipeline(self) -> JsonObject:
        if not self._has_pipeline:
            return _pipeline("off")
        try:
            found = status(self._layout.tables, [str(self._layout.journal)], time.time())
        except (OSError, StartError):
            return _pipeline("unreadable")
        lag = round(found.lag or 0.0, 1)
        if not found.offsets.batch:
            return _pipeline("empty", lag)
        outcomes = found.account.get("outcomes", {})
        state = _STATES.get(found.verdict or "", "unknown")
        objectives = found.account.get("objectives", {})
        return _pipeline(state, lag, found.offsets.counts, outcomes, objectives)

    def history(self, hours: int) -> JsonObject:
        try:
            account = read_account(self._layout.tables)
        except StartError:
            account = {}
        since = time.time() - hours * 3600
        points = [hour for hour in account.get("hours", ()) if hour["at"] + 3600 > since]
        outcomes: Counter[str] = Counter()
        for hour in points:
            outcomes.update(hour["outcomes"])
        return {
            "hours": hours,
            "points": [_point(hour) for hour in points],
            "outcomes": dict(outcomes),
        }

    def search(self, wanted: str) -> JsonObject:
        found = self._notification(wanted) if _NOTIFICATION.fullmatch(wanted) else None
        return found or self._token(wanted) or _answer("nothing", NOTHING_FOUND)

    def _notification(self, wanted: str) -> JsonObject | None:
        try:
            path = path_of(read(self._event_files(), wanted), wanted)
        except (OSError, pa.ArrowException):
            return None  # the pipeline removed a segment meanwhile
        if not path:
            return None
        events = [
            {"at": event["at"].timestamp(), "part": event["part"], "what": _what(event)}
            for event in path
        ]
        begin, end = path[0]["at"], path[-1]["at"]
        facts = [("first seen", f"{begin:%Y-%m-%d %H:%M:%S} UTC")]
        facts.append(("from first to last event", f"{(end - begin).total_seconds():.3f} s"))
        return _answer("notification", outcome(path, wanted), facts, events)

    def _event_files(self) -> list[Path]:
        """Return the files of the events table, and the segments that may not be in it yet."""
        tables = self._layout.tables
        listed: list[Path] = []
        with suppress(StartError):
            listed = [tables / "events" / file.path for file in list_files(tables, "events")]
        return [*listed, *sorted(self._layout.journal.glob("*/[!._]*.parquet"))]

    def _token(self, wanted: str) -> JsonObject | None:
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
    state: str,
    lag: float | None = None,
    counts: Mapping[str, int] | None = None,
    outcomes: Mapping[str, int] | None = None,
    objectives: JsonMapping | None = None,
) -> JsonObject:
    """Return the pipeline's part of the live document; unknown values are None."""
    known = {name: None if counts is None else counts.get(name, 0) for name in _COUNTS}
    unaccounted = None if outcomes is None else outcomes.get(UNACCOUNTED, 0)
    return {
        "state": state,
        "lag_seconds": lag,
        **known,
        "unaccounted": unaccounted,
        "outcomes": dict(outcomes or {}),
        "objectives_until": objectives.get("until") if objectives else None,
        "objectives": [_objective(result) for result in (objectives or {}).get("results", ())],
    }


def _objective(result: JsonMapping) -> JsonObject:
    return {
        "objective": result["objective"],
        "provider": provider_of(result),
        "state": result["state"],
        "percent": result["percent"],
        "budget_left": result["budget_left"],
        "alerts": [
            {
                "name": alert.name,
                "severity": "critical" if alert.is_urgent else "warning",
                "text": summary(result, alert.name),
            }
            for alert in ALERTS
            if alert.name in result["alerts"]
        ],
    }


def _point(hour: JsonObject) -> JsonObject:
    outcomes = hour["outcomes"]
    return {
        "at": hour["at"],
        "notifications": sum(outcomes.values()),
        "accepted": sum(outcomes.get(outcome, 0) for outcome in (SHOWN, ACCEPTED, COALESCED)),
        "rejected": sum(outcomes.get(outcome, 0) for outcome in (REJECTED, EXPIRED)),
        "p50_ms": _milliseconds(hour["p50_us"]),
        "p99_ms": _milliseconds(hour["p99_us"]),
    }


def _milliseconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else round(microseconds / 1000, 1)


def _token_answer(found: Trace, now: float) -> JsonObject:
    summary = f"A token: {found.status}."
    pushes = found.pending_pushes
    summary += f" {len(pushes)} pushes are pending." if pushes else " No push is pending."
    facts = [("status", found.status), ("provider", found.provider)]
    facts.append(("registered", _when(found.created_at)))
    if found.cron_minutes:
        facts.append(("periodic pushes", f"every {found.cron_minutes} minutes"))
    facts += [(f"subscriptions {key}", str(count)) for key, count in found.subscriptions.items()]
    facts += [(error, f"{count} subscriptions") for error, count in found.errors.items()]
    for push in pushes:
        text = f"since {_when(push.since)}, failed {push.attempts} times, next attempt at"
        facts.append((f"pending: {push.kind}", f"{text} {_when(push.next_at)}"))
    events = [
        {"at": item.at, "part": "ntf", "what": f"notification {item.notification}"}
        for item in reversed(found.notified)
    ]
    return _answer("token", summary, facts, events)


def _what(event: JsonObject) -> str:
    given = [name for name in ("provider", "status", "reason", "code") if event.get(name)]
    words = [event["kind"].replace("_", " "), *(f"{name} {event[name]}" for name in given)]
    if event.get("attempt"):
        words.append(f"attempt {event['attempt']}")
    return ", ".join(words)


def _answer(
    kind: str,
    summary: str,
    facts: list[tuple[str, str]] | None = None,
    events: list[JsonObject] | None = None,
) -> JsonObject:
    named = [{"name": name, "value": value} for name, value in facts or []]
    return {"kind": kind, "summary": summary, "facts": named, "events": events or []}


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
