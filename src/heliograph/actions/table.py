"""The table `actions`: a Delta Lake table that the pipeline appends to, and routers read.

It is read and written through `deltalake`, without Spark. It has no secret: see `contract`.
"""

import importlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.actions.contract import Action
from heliograph.documents import JsonObject
from heliograph.runtime.errors import StartError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = [
    "NAME",
    "append_actions",
    "expire_actions",
    "open_table",
    "query",
    "quoted",
    "read_actions",
    "require_packages",
    "table_url",
    "unreadable",
]

NAME = "actions"
MAX_ROWS = 1_000_000
"""Rows of one router that are read: a longer table was not written by a job that has a cap."""

_DELTA_TIME = 'Timestamp(Microsecond, Some("UTC"))'


def read_actions(place: str | Path, router: str | None = None) -> list[JsonObject]:
    """Return the rows of one router, or all, as they are; none if there is no table.

    Raises `StartError` if the table cannot be read, or has too many rows of one router.
    """
    table = open_table(place)
    if table is None:
        return []
    where = "" if router is None else f"WHERE router = {quoted(router)}"
    try:
        found = query(table, "*", where)
    except Exception as exc:
        raise unreadable(place, NAME, exc) from exc
    if router is not None and found.num_rows > MAX_ROWS:
        raise StartError(
            f"the table {NAME} in {place} has {found.num_rows} rows for one router, too many to be"
            " decisions of a pipeline: see who else writes to it"
        )
    rows: list[JsonObject] = found.to_pylist()
    return rows


def append_actions(place: str | Path, actions: Iterable[Action]) -> int:
    """Append the actions that the table does not have, or only expired; return how many."""
    import pyarrow as pa
    from deltalake import write_deltalake

    until: dict[str, datetime] = {}
    for row in read_actions(place):
        known, end = row.get("action_id"), row.get("valid_until")
        if isinstance(known, str) and isinstance(end, datetime):  # else it is not an action
            until[known] = max(until.get(known, end), end)
    new = {
        item.action_id: item
        for item in actions
        if item.action_id not in until or until[item.action_id] <= _time(item.decided_at)
    }
    if new:
        rows = pa.Table.from_pylist([_row(item) for item in new.values()], schema=_schema())
        write_deltalake(table_url(place), rows, mode="append", name=NAME)
    return len(new)


def expire_actions(place: str | Path, before: int) -> None:
    """Remove actions that were valid until `before`, in microseconds, or less."""
    table = open_table(place)
    if table is not None:
        table.delete(f"valid_until <= arrow_cast({before}, '{_DELTA_TIME}')")


def require_packages() -> None:
    """Raise `StartError` if a package that reads the table is not installed."""
    for name in ("deltalake", "pyarrow"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as exc:
            raise StartError(f"{name} is missing: pip install 'heliograph[actions]'") from exc


def open_table(place: str | Path, name: str = NAME) -> "DeltaTable | None":
    """Return a table; None if there is none. Raises `StartError`."""
    require_packages()
    from deltalake import DeltaTable

    url = table_url(place, name)
    try:
        return DeltaTable(url) if DeltaTable.is_deltatable(url) else None
    except Exception as exc:
        raise unreadable(place, name, exc) from exc


def query(table: "DeltaTable", columns: str, where: str = "") -> "pa.Table":
    """Select columns of a table by the engine that comes with `deltalake`; `where` is SQL.

    `to_pyarrow_table` is not used: Arrow's threads read through Python's files, and one that does
    while the process ends aborts it.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder

    sql = f"SELECT {columns} FROM queried {where}"  # noqa: S608  no text of others, but quoted
    return pa.table(QueryBuilder().register("queried", table).execute(sql).read_all())


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def table_url(place: str | Path, name: str = NAME) -> str:
    text = str(place).rstrip("/")
    base = text if "://" in text else Path(text).absolute().as_uri()
    return f"{base}/{name}"


def unreadable(place: str | Path, name: str, exc: Exception) -> StartError:
    reason = str(exc).strip().partition("\n")[0]  # a backtrace may follow
    return StartError(f"the table {name} in {place} cannot be read: {reason}")


def _schema() -> "pa.Schema":
    import pyarrow as pa

    time = pa.timestamp("us", "UTC")
    texts = ("action_id", "router", "kind", "subject", "evidence", "rule")
    return pa.schema(
        [
            *(pa.field(name, pa.string()) for name in texts),
            pa.field("decided_at", time),
            pa.field("valid_until", time),
            pa.field("signature", pa.binary()),
        ]
    )


def _row(action: Action) -> JsonObject:
    return {
        "action_id": action.action_id,
        "router": action.router,
        "kind": action.kind.value,
        "subject": action.subject,
        "evidence": action.evidence,
        "rule": action.rule,
        "decided_at": _time(action.decided_at),
        "valid_until": _time(action.valid_until),
        "signature": action.signature,
    }


def _time(microseconds: int) -> datetime:
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
