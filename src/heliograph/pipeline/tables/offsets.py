"""Offsets: what was ingested from the journals, stored in the Delta commit of the ingested rows.

Reading it needs neither Spark nor Delta: a commit is a file of JSON lines.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from heliograph.documents import JsonMapping, JsonObject
from heliograph.pipeline.intervals import IntervalsByRun, Pair
from heliograph.pipeline.tables.storage import Storage
from heliograph.runtime.errors import StartError, file_error

METADATA = "heliograph"
"""The key of the offsets in a commit's `commitInfo`."""
ACCOUNT = "account.json"
_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Offsets:
    """What was ingested: `seen` are events by sequence number, `segments` the journal's files.

    `routers` has facts about the runs of routers, see `heliograph.pipeline.jobs.routers`;
    `edges` the times around gaps, see `heliograph.pipeline.jobs.coverage`; `expired` the last
    run of each router whose facts were dropped; it and earlier ones are not ingested again.
    """

    batch: int = 0
    committed_at: float = 0.0
    seen: IntervalsByRun = field(default_factory=dict)
    segments: IntervalsByRun = field(default_factory=dict)
    other_segments: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    routers: JsonMapping = field(default_factory=dict)
    edges: Mapping[str, Mapping[str, Pair]] = field(default_factory=dict)
    expired: Mapping[str, int] = field(default_factory=dict)


def without_runs(offsets: Offsets, expired: Mapping[str, int]) -> Offsets:
    """Forget the runs of each router up to one of them."""
    known = {**offsets.expired, **expired}

    def kept(run: str) -> bool:
        router, _, boot = run.rpartition("/")
        return int(boot) > known.get(router, -1)

    return replace(
        offsets,
        expired=known,
        seen={run: pairs for run, pairs in offsets.seen.items() if kept(run)},
        segments={run: pairs for run, pairs in offsets.segments.items() if kept(run)},
        edges={run: edges for run, edges in offsets.edges.items() if kept(run)},
    )


def encode(offsets: Offsets) -> str:
    return json.dumps(asdict(offsets), separators=(",", ":"))


def decode(text: str) -> Offsets:
    """Decode offsets from JSON. Raises `ValueError`."""
    try:
        value = json.loads(text)
        value["seen"], value["segments"] = _pairs(value["seen"]), _pairs(value["segments"])
        value["edges"] = {
            run: {number: (first, last) for number, (first, last) in edges.items()}
            for run, edges in value["edges"].items()
        }
        value["other_segments"] = tuple(value["other_segments"])
        return Offsets(**value)
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"the offsets in it are damaged: {exc!r}") from exc


def _pairs(intervals: Mapping[str, Iterable[Sequence[int]]]) -> dict[str, list[Pair]]:
    return {key: [(low, high) for low, high in pairs] for key, pairs in intervals.items()}


def read_offsets(place: str | Path, upto: int | None = None) -> Offsets:
    """Return the offsets of the newest commit, at most of version `upto`. Raises `StartError`.

    A place without tables has empty offsets.
    """
    found = (commit.offsets for commit in _commits(place, upto) if commit.offsets is not None)
    return next(found, Offsets())


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit to the table `events`. `offsets` is None in those of other tools."""

    version: int
    offsets: Offsets | None
    removed: tuple[str, ...]


def rewrites_since(place: str | Path, batch: int) -> list[Commit]:
    """Return the commits of other tools since that of a batch. Raises `StartError`."""
    found = []
    for commit in _commits(place):
        if commit.offsets is None:
            found.append(commit)
        elif commit.offsets.batch <= batch:
            break
    return found


def _commits(place: str | Path, upto: int | None = None) -> Iterator[Commit]:
    """Yield commits, the newest first, at most of version `upto`. Raises `StartError`."""
    storage = Storage(place)
    log = "events/_delta_log"
    try:
        names = (match[0] for path, _ in storage.files(log) if (match := _COMMIT.fullmatch(path)))
        for name in sorted(names, reverse=True):
            version = int(name[:20])
            if upto is None or version <= upto:
                yield _decode_commit(version, storage.read_text(f"{log}/{name}") or "")
    except PermissionError as exc:
        raise StartError(file_error(exc, place, "cannot be read")) from exc
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise StartError(
            f"{place}/{log} cannot be read: {exc}. The tables can be made again from the journals:"
            " move the directory away"
        ) from exc


def _decode_commit(version: int, text: str) -> Commit:
    actions = [json.loads(line) for line in text.splitlines()]
    infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
    offsets = next((decode(info[METADATA]) for info in infos if METADATA in info), None)
    removed = (unquote(action["remove"]["path"]) for action in actions if "remove" in action)
    return Commit(version, offsets, tuple(removed))


def read_account(place: str | Path) -> JsonObject:
    """Return the last account, empty if there is none. Raises `StartError`."""
    try:
        text = Storage(place).read_text(ACCOUNT)
        return {} if text is None else dict(json.loads(text))
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise StartError(f"{place}/{ACCOUNT} cannot be read: {exc}. Remove it") from exc


def write_account(place: str | Path, account: JsonMapping) -> None:
    """Replace the stored account. It is derived from the tables."""
    Storage(place).write_text(ACCOUNT, json.dumps(account))
