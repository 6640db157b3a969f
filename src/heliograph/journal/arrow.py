"""Events as Arrow tables: column by column, because one at a time would cost ten times as much."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.journal.events import Event, Hasher, Many
from heliograph.journal.schema import COLUMNS, KINDS, SCHEMA_VERSION, ColumnType

__all__ = ["SCHEMA", "Origin", "complete", "one_by_one", "size_of", "table_of"]

_TYPES = {
    ColumnType.INT16: pa.int16(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.TEXT: pa.string(),
    ColumnType.TEXTS: pa.list_(pa.string()),
    ColumnType.TIME: pa.timestamp("us", "UTC"),
}
_REPEATED = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field(column.name, _TYPES[column.type], nullable=not column.required)
        for column in COLUMNS.values()
    ],
    {"heliograph.journal.schema": str(SCHEMA_VERSION)},
)
REPETITIVE = frozenset(
    (
        "router",
        "part",
        "kind",
        "provider",
        "smp_host",
        "server",
        "mode",
        "status",
        "reason",
        "command",
    )
)
"""Columns with few different values, kept as dictionaries. For the others that would only cost."""
_COLUMNS_OF = {kind.name: frozenset((*kind.has, *kind.may_have)) for kind in KINDS.values()}


class Origin:
    """Who writes, and in which run."""

    def __init__(self, router: str, part: str, boot: int) -> None:
        self._constant = {
            "schema": pa.scalar(SCHEMA_VERSION, pa.int16()),
            "router": _dictionary([router]),
            "part": _dictionary([part]),
            "boot": pa.scalar(boot, pa.int64()),
        }
        self._prefix = pa.scalar(f"{router}-{boot}")

    def columns(self, seqs: Sequence[int]) -> dict[str, pa.Array]:
        count = len(seqs)
        seq = pa.array(seqs, pa.int64())
        found = {
            name: _repeat(value, count)
            if isinstance(value, pa.DictionaryArray)
            else pa.repeat(value, count)
            for name, value in self._constant.items()
        }
        found["event_id"] = pc.binary_join_element_wise(self._prefix, seq.cast(pa.string()), "-")
        found["seq"] = seq
        return found


def size_of(noted: Event | Many) -> int:
    return len(noted.rows) if isinstance(noted, Many) else 1


def one_by_one(noted: Iterable[Event | Many]) -> Iterator[Event]:
    for item in noted:
        if isinstance(item, Many):
            for row in item.rows:
                columns = dict(zip(item.names, row, strict=True))
                yield item.kind, columns.pop("at", item.at), item.mono, columns
        else:
            yield item


def table_of(
    noted: Sequence[Event | Many], origin: Origin, first_seq: int, hasher: Hasher
) -> pa.Table:
    """With only those columns that the kinds of these events have: see `complete`.

    Events of one kind have the same columns, so each kind is converted by itself.
    """
    singles: dict[str, tuple[list[int], list[Event]]] = {}
    groups: dict[tuple[str, tuple[str, ...]], tuple[list[int], list[Many]]] = {}
    seq = first_seq
    for item in noted:
        if isinstance(item, Many):
            seqs, many = groups.setdefault((item.kind, item.names), ([], []))
            seqs += range(seq, seq + len(item.rows))
            many.append(item)
            seq += len(item.rows)
        else:
            seqs, events = singles.setdefault(item[0], ([], []))
            seqs.append(seq)
            events.append(item)
            seq += 1
    tables = [_of_kind(kind, *found, origin, hasher) for kind, found in singles.items()]
    tables += [_of_many(*key, *found, origin, hasher) for key, found in groups.items()]
    return pa.concat_tables(tables, promote_options="default")


def _of_kind(
    kind: str, seqs: list[int], events: Sequence[Event], origin: Origin, hasher: Hasher
) -> pa.Table:
    _, at, mono, columns = zip(*events, strict=True)
    found = _common(kind, seqs, at, mono, origin)
    for name, values in _values(kind, columns).items():
        found[name] = _column(name, values, hasher)
    return pa.table(found)


def _of_many(
    kind: str,
    names: tuple[str, ...],
    seqs: list[int],
    many: Sequence[Many],
    origin: Origin,
    hasher: Hasher,
) -> pa.Table:
    rows = many[0].rows if len(many) == 1 else [row for item in many for row in item.rows]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    at = columns.pop("at", None) or [item.at for item in many for _ in item.rows]
    mono = [item.mono for item in many for _ in item.rows]
    found = _common(kind, seqs, at, mono, origin)
    for name, values in columns.items():
        found[name] = _column(name, values, hasher)
    return pa.table(found)


def _common(
    kind: str, seqs: list[int], at: Sequence[float], mono: Sequence[int], origin: Origin
) -> dict[str, pa.Array]:
    found = origin.columns(seqs)
    found["kind"] = _repeat(_dictionary([kind]), len(seqs))
    # Whole microseconds are exact in a float until the year 2255.
    microseconds = pc.multiply(pa.array(at, pa.float64()), 1e6)
    found["at"] = pc.round(microseconds).cast(pa.int64()).cast(_TYPES[ColumnType.TIME])
    found["mono"] = pa.array(mono, pa.int64())
    return found


def _values(kind: str, columns: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """Columns from rows."""
    names = tuple(columns[0])
    if len(names) > 1 and {*map(len, columns)} == {len(names)}:
        # Events of a kind are noted in one place, so their columns are most often the same.
        with contextlib.suppress(KeyError):
            return dict(
                zip(names, zip(*map(itemgetter(*names), columns), strict=True), strict=True)
            )
    return {name: [item.get(name) for item in columns] for name in _COLUMNS_OF[kind]}


def _column(name: str, values: Sequence[Any], hasher: Hasher) -> pa.Array:
    kind = COLUMNS[name].type
    hashed = hasher.of(name)
    if hashed is not None:
        get = hashed.__getitem__
        if kind is ColumnType.TEXTS:
            values = [None if ids is None else [*map(get, ids)] for ids in values]
        else:
            values = [*map(get, values)]
    return pa.array(values, _REPEATED if name in REPETITIVE else _TYPES[kind])


def _dictionary(values: list[str]) -> pa.DictionaryArray:
    return pa.array(values).dictionary_encode()


def _repeat(one: pa.DictionaryArray, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), count), one.dictionary
    )


def complete(tables: Sequence[pa.Table]) -> pa.Table:
    """One table with all columns of the schema, in its order; some are dictionaries."""
    joined = pa.concat_tables(tables, promote_options="default")
    names = frozenset(joined.column_names)
    columns = [
        joined[field.name] if field.name in names else pa.nulls(len(joined), field.type)
        for field in SCHEMA
    ]
    fields = [field.with_type(column.type) for field, column in zip(SCHEMA, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, SCHEMA.metadata))
