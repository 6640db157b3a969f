"""Commits that other tools made to the tables: which are followed, and which are refused."""

import json

import pyarrow as pa

from heliograph.documents import JsonObject
from heliograph.pipeline.tables.offsets import METADATA, rewrites_since
from heliograph.pipeline.tables.snapshot import DERIVED, Snapshot, batch_of
from heliograph.pipeline.tables.storage import Storage
from heliograph.runtime.errors import StartError


def check_changes(storage: Storage, table: str, version: int) -> None:
    """Raise `StartError` if another tool changed the rows of a table since our last commit.

    To rewrite files, as OPTIMIZE does, is no change; nor is to go back to our last commit. After
    any other RESTORE, progress and offsets would tell of rows that are not there.
    """
    commits: list[list[JsonObject]] = []
    last = version
    while (actions := _read(storage, table, last)) and not _is_ours(actions):
        commits.append(actions)
        last -= 1
    added: set[str] = set()
    removed: set[str] = set()
    is_changed = False
    for action in (action for actions in reversed(commits) for action in actions):
        for kind, there, gone in (("add", added, removed), ("remove", removed, added)):
            if kind in action:
                path = action[kind]["path"]
                is_changed |= action[kind].get("dataChange", True)
                (gone.discard if path in gone else there.add)(path)
    if is_changed and (added or removed):
        raise StartError(
            f"another program changed the rows of {storage.url}/{table} after version {last}:"
            f" restore version {last} (RESTORE in Delta)"
        )


def _read(storage: Storage, table: str, version: int) -> list[JsonObject]:
    """Return the actions of a commit, none if it is no longer there."""
    path = f"{table}/_delta_log/{version:020}.json"
    try:
        return [json.loads(line) for line in (storage.read_text(path) or "").splitlines()]
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise StartError(
            f"{storage.url}/{path} cannot be read: {exc}. The tables can be made again from the"
            " journals: move the directory away"
        ) from exc


def _is_ours(actions: list[JsonObject]) -> bool:
    return any(METADATA in action.get("commitInfo", {}) for action in actions)


def check_rewrites(place: str, snapshot: Snapshot) -> None:
    """Raise `StartError` if another tool rewrote events that a derived table does not have.

    Their new files do not tell of which batches they are.
    """
    behind = min(DERIVED, key=lambda name: snapshot.progress.get(name, 0))
    upto = snapshot.progress.get(behind, 0)
    if upto == snapshot.offsets.batch:
        return
    present = {file.path for file in snapshot.of("events")}
    for commit in rewrites_since(place, upto):
        gone = (path for path in commit.removed if path not in present)
        if any(batch_of(path) > upto for path in gone):
            raise StartError(
                f"another program rewrote files of {place}/events that {behind} does not contain"
                f" yet: restore version {commit.version - 1} of events (RESTORE in Delta), and"
                " optimize after 'heliograph pipeline once'"
            )
