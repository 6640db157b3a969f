"""Events as Arrow tables, converted by column: one event at a time costs ten times as much."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.journal.columns import COLUMNS, SCHEMA_VERSION, ColumnType
from heliograph.journal.events import EventColumns, JournalEvent, is_column
from heliograph.journal.events.base import Values
from heliograph.journal.hashing import HASH_SIZE, Hasher, Hashes

__all__ = [
    "SCHEMA",
    "Origin",
    "Recorded",
    "RecordedColumns",
    "complete",
    "one_by_one",
    "size_of",
    "table_of",
]

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
_ORIGIN = b"heliograph.journal.origin"
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
"""Columns with few different values, stored as dictionaries."""
SMALL_TABLE_EVENTS = 200
"""Number of events up to which one table for all kinds is cheaper than one per kind."""


Recorded = tuple[JournalEvent, float, int]
"""An event with its Unix time and monotonic nanoseconds. IDs are not hashed yet."""


class RecordedColumns(NamedTuple):
    """`size` events of one kind. `at` is their time if the columns have none."""

    columns: EventColumns
    at: float
    mono: int
    size: int


class Origin(NamedTuple):
    """The writer and its run: the same for a whole segment, so `complete` adds it at the end."""

    router: str
    part: str
    boot: int

    @property
    def metadata(self) -> dict[bytes, bytes]:
        return {_ORIGIN: f"{self.router} {self.part} {self.boot}".encode()}

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> "Origin | None":
        """Return the origin in the metadata, None if there is none."""
        found = (metadata or {}).get(_ORIGIN)
        if found is None:
            return None
        router, part, boot = found.decode().split(" ")
        return cls(router, part, int(boot))

    def columns(self, seq: pa.ChunkedArray) -> dict[str, pa.Array]:
        count = len(seq)
        prefix = f"{self.router}-{self.boot}-"
        return {
            "schema": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int16()), count),
            "router": _repeat(self.router, count),
            "part": _repeat(self.part, count),
            "boot": pa.repeat(pa.scalar(self.boot, pa.int64()), count),
            "event_id": pc.binary_replace_slice(seq.cast(pa.string()), 0, 0, prefix),
        }


def size_of(item: Recorded | RecordedColumns) -> int:
    return item.size if isinstance(item, RecordedColumns) else 1


def one_by_one(items: Iterable[Recorded | RecordedColumns]) -> Iterator[Recorded]:
    for item in items:
        if not isinstance(item, RecordedColumns):
            yield item
            continue
        found = dict(zip(item.columns.names, item.columns.values(), strict=True))
        for number in range(item.size):
            row = {
                name: value[number] if is_column(value) else value for name, value in found.items()
            }
            at = row.pop("at", item.at)
            yield item.columns.event(**row), at, item.mono


def table_of(
    items: Sequence[Recorded | RecordedColumns],
    origin: Origin,
    first_seq: int,
    hasher: Hasher,
    few: int = SMALL_TABLE_EVENTS,
) -> pa.Table:
    """Return a table with only those columns that have a value: see `complete`.

    Events of one kind have the same columns, so each kind is converted by itself. Up to `few`
    events are converted all together, with texts in place of dictionaries.
    """
    if len(items) <= few and sum(map(size_of, items)) <= few:
        return _of_few([*one_by_one(items)], first_seq, hasher).replace_schema_metadata(
            origin.metadata
        )
    singles: dict[type[JournalEvent], tuple[list[int], list[Recorded]]] = {}
    groups: dict[type[EventColumns], tuple[list[int], list[RecordedColumns]]] = {}
    seq = first_seq
    for item in items:
        if isinstance(item, RecordedColumns):
            seqs, many = groups.setdefault(type(item.columns), ([], []))
            seqs.append(seq)
            many.append(item)
            seq += item.size
        else:
            seqs, events = singles.setdefault(type(item[0]), ([], []))
            seqs.append(seq)
            events.append(item)
            seq += 1
    tables = [_of_kind(kind, *found, hasher) for kind, found in singles.items()]
    tables += [_of_columns(*found, hasher) for found in groups.values()]
    joined = pa.concat_tables(tables, promote_options="default")
    return joined.replace_schema_metadata(origin.metadata)


def _of_few(items: Sequence[Recorded], first_seq: int, hasher: Hasher) -> pa.Table:
    events, at, mono = zip(*items, strict=True)
    found = {
        "seq": pa.array(range(first_seq, first_seq + len(events)), pa.int64()),
        "kind": pa.array([event.kind for event in events], pa.string()),
        "at": _times(at),
        "mono": pa.array(mono, pa.int64()),
    }
    for name in dict.fromkeys(chain.from_iterable(event.names for event in events)):
        values = [getattr(event, name, None) for event in events]
        if values.count(None) == len(values):
            continue
        hashed, kind = hasher.of(name), COLUMNS[name].type
        if kind is ColumnType.TEXTS:
            found[name] = _lists(values, hashed)
        else:
            found[name] = pa.array(values if hashed is None else hashed.of(values), _TYPES[kind])
    return pa.table(found)


def _of_kind(
    kind: type[JournalEvent], seqs: list[int], items: Sequence[Recorded], hasher: Hasher
) -> pa.Table:
    events, at, mono = zip(*items, strict=True)
    found = {
        "seq": pa.array(seqs, pa.int64()),
        "kind": _repeat(kind.kind, len(seqs)),
        "at": _times(at),
        "mono": pa.array(mono, pa.int64()),
    }
    for name in kind.names:
        values = [*map(attrgetter(name), events)]
        if values.count(None) < len(values):
            found[name] = _column(name, values, hasher)
    return pa.table(found)


def _of_columns(firsts: list[int], many: Sequence[RecordedColumns], hasher: Hasher) -> pa.Table:
    """Return one table for columns of one class; `firsts` are the `seq` of their first events."""
    counts = [item.size for item in many]
    ends = pa.array([*accumulate(counts)], pa.int32())
    total = ends[-1].as_py()
    starts = [
        first - end + count
        for first, end, count in zip(firsts, ends.to_pylist(), counts, strict=True)
    ]
    kind = type(many[0].columns)
    found = {
        "seq": pc.add(_spread(pa.array(starts, pa.int64()), ends), pa.arange(0, total)),
        "kind": _repeat(kind.event.kind, total),
        "mono": _spread(pa.array([item.mono for item in many], pa.int64()), ends),
    }
    if "at" not in kind.names:
        found["at"] = _spread(_times([item.at for item in many]), ends)
    for name in kind.names:
        values = _joined([(item.size, getattr(item.columns, name)) for item in many])
        if name == "at":
            found[name] = _times(values)
        elif values.count(None) < total:
            found[name] = _column(name, values, hasher)
    return pa.table(found)


def _joined(parts: Sequence[tuple[int, object]]) -> Values:
    """Return one column from those of several `EventColumns`."""
    return [
        *chain.from_iterable(
            value if is_column(value) else (value,) * count for count, value in parts
        )
    ]


def _times(at: Sequence[float]) -> pa.Array:
    # Whole microseconds are exact in a float until the year 2255.
    microseconds = pc.multiply(pa.array(at, pa.float64()), 1e6)
    return pc.round(microseconds).cast(pa.int64()).cast(_TYPES[ColumnType.TIME])


def _spread(values: pa.Array, ends: pa.Array) -> pa.Array:
    """Repeat each value up to its end."""
    if len(values) == 1:
        return pa.repeat(values[0], ends[0].as_py())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))


def _column(name: str, values: Values, hasher: Hasher) -> pa.Array:
    kind = COLUMNS[name].type
    hashed = hasher.of(name)
    if kind is ColumnType.TEXTS:
        return _lists(values, hashed)
    if hashed is not None:
        values = hashed.of(values)
        if name not in REPETITIVE:
            return _hashes(values)
    if name not in REPETITIVE:
        return pa.array(values, _TYPES[kind])
    if values.count(values[0]) == len(values):
        return _repeat(values[0], len(values))
    return pa.array(values, _REPEATED)


def _hashes(values: Sequence[str | None]) -> pa.Array:
    """Return an array of hashes, which all have the same length."""
    try:
        joined = "".join(values)  # type: ignore[arg-type]
    except TypeError:
        return pa.array(values, pa.string())
    ends = pa.arange(0, len(joined) + 1, 2 * HASH_SIZE).cast(pa.int32())
    buffers = [None, ends.buffers()[1], pa.py_buffer(joined.encode())]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _lists(values: Values, hashed: Hashes | None) -> pa.Array:
    items: Values = [*chain.from_iterable(filter(None, values))]
    texts = pa.array(items, pa.string()) if hashed is None else _hashes(hashed.of(items))
    lengths = [0 if some is None else len(some) for some in values]
    ends = pa.array([*accumulate(lengths, initial=0)], pa.int32())
    mask = None if all(values) else pa.array([some is None for some in values])
    return pa.ListArray.from_arrays(ends, texts, mask=mask)


def _repeat(value: str | None, count: int) -> pa.Array:
    """Return a dictionary array with `count` times the same value."""
    if value is None:
        return pa.nulls(count, _REPEATED)
    indices = pa.repeat(pa.scalar(0, pa.int32()), count)
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))


def complete(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table with all columns of the schema, in its order; some are dictionaries."""
    joined = pa.concat_tables(_alike(tables), promote_options="default")
    found = dict(zip(joined.column_names, joined.columns, strict=True))
    origin = Origin.of(joined.schema.metadata)
    if origin is not None:
        found |= origin.columns(joined["seq"])
    columns = [
        found[field.name] if field.name in found else pa.nulls(len(joined), field.type)
        for field in SCHEMA
    ]
    fields = [field.with_type(column.type) for field, column in zip(SCHEMA, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, SCHEMA.metadata))


def _alike(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Join the tables of a few events each into one with dictionaries, like the others."""
    few = [table for table in tables if table.schema.field("kind").type == pa.string()]
    if not few:
        return [*tables]
    joined = pa.concat_tables(few, promote_options="default").combine_chunks()
    for index, name in enumerate(joined.column_names):
        if name in REPETITIVE:
            joined = joined.set_column(index, name, joined.column(index).dictionary_encode())
    others = [table for table in tables if table.schema.field("kind").type != pa.string()]
    return [*others, joined]
