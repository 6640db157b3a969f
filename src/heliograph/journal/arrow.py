"""Events as Arrow tables: column by column, because one at a time would cost ten times as much."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.journal.events import HASH_SIZE, Event, Hasher, Hashes, Many, is_column
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
"""Columns with few different values, kept as dictionaries. For the others that would only cost."""
FEW = 200
"""Events up to which a table is made at once, not by kind: what a table costs counts more then."""
_COLUMNS_OF = {kind.name: frozenset((*kind.has, *kind.may_have)) for kind in KINDS.values()}


class Origin(NamedTuple):
    """Who writes, and in which run: the same for a whole segment, so `complete` writes it out."""

    router: str
    part: str
    boot: int

    @property
    def metadata(self) -> dict[bytes, bytes]:
        return {_ORIGIN: f"{self.router} {self.part} {self.boot}".encode()}

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> "Origin | None":
        """None in logs of before: there it is in columns of every event."""
        found = (metadata or {}).get(_ORIGIN)
        if found is None:
            return None
        router, part, boot = found.decode().split(" ")
        return cls(router, part, int(boot))

    def columns(self, seq: pa.ChunkedArray) -> dict[str, Any]:
        count = len(seq)
        prefix = f"{self.router}-{self.boot}-"
        return {
            "schema": pa.repeat(pa.scalar(SCHEMA_VERSION, pa.int16()), count),
            "router": _repeat(self.router, count),
            "part": _repeat(self.part, count),
            "boot": pa.repeat(pa.scalar(self.boot, pa.int64()), count),
            "event_id": pc.binary_replace_slice(seq.cast(pa.string()), 0, 0, prefix),
        }


def size_of(noted: Event | Many) -> int:
    return noted.size if isinstance(noted, Many) else 1


def one_by_one(noted: Iterable[Event | Many]) -> Iterator[Event]:
    for item in noted:
        if isinstance(item, Many):
            for number in range(item.size):
                columns = {
                    name: value[number] if is_column(value) else value
                    for name, value in item.columns.items()
                }
                yield item.kind, columns.pop("at", item.at), item.mono, columns
        else:
            yield item


def table_of(
    noted: Sequence[Event | Many], origin: Origin, first_seq: int, hasher: Hasher, few: int = FEW
) -> pa.Table:
    """With only those columns that the kinds of these events have: see `complete`.

    Events of one kind have the same columns, so each kind is converted by itself. A `few` events
    are converted all together, with texts in place of dictionaries.
    """
    if len(noted) <= few and sum(map(size_of, noted)) <= few:
        return _of_few([*one_by_one(noted)], first_seq, hasher).replace_schema_metadata(
            origin.metadata
        )
    singles: dict[str, tuple[list[int], list[Event]]] = {}
    groups: dict[tuple[str, ...], tuple[list[int], list[Many]]] = {}
    seq = first_seq
    for item in noted:
        if isinstance(item, Many):
            seqs, many = groups.setdefault((item.kind, *item.columns), ([], []))
            seqs.append(seq)
            many.append(item)
            seq += item.size
        else:
            seqs, events = singles.setdefault(item[0], ([], []))
            seqs.append(seq)
            events.append(item)
            seq += 1
    tables = [_of_kind(kind, *found, hasher) for kind, found in singles.items()]
    tables += [_of_many(*found, hasher) for found in groups.values()]
    joined = pa.concat_tables(tables, promote_options="default")
    return joined.replace_schema_metadata(origin.metadata)


def _of_few(events: Sequence[Event], first_seq: int, hasher: Hasher) -> pa.Table:
    kinds, at, mono, columns = zip(*events, strict=True)
    unknown = {*kinds} - _COLUMNS_OF.keys()
    if unknown:
        raise KeyError(*unknown)
    found = {
        "seq": pa.array(range(first_seq, first_seq + len(events)), pa.int64()),
        "kind": pa.array(kinds, pa.string()),
        "at": _times(at),
        "mono": pa.array(mono, pa.int64()),
    }
    for name in dict.fromkeys(chain.from_iterable(columns)):
        values = [item.get(name) for item in columns]
        hashed, kind = hasher.of(name), COLUMNS[name].type
        if kind is ColumnType.TEXTS:
            found[name] = _lists(values, hashed)
        else:
            found[name] = pa.array(values if hashed is None else hashed.of(values), _TYPES[kind])
    return pa.table(found)


def _of_kind(kind: str, seqs: list[int], events: Sequence[Event], hasher: Hasher) -> pa.Table:
    _, at, mono, columns = zip(*events, strict=True)
    found = {
        "seq": pa.array(seqs, pa.int64()),
        "kind": _repeat(kind, len(seqs)),
        "at": _times(at),
        "mono": pa.array(mono, pa.int64()),
    }
    for name, values in _values(kind, columns).items():
        found[name] = _column(name, values, hasher)
    return pa.table(found)


def _of_many(firsts: list[int], many: Sequence[Many], hasher: Hasher) -> pa.Table:
    """`firsts` are the `seq` of the first event of each. All have the same kind and columns."""
    counts = [item.size for item in many]
    ends = pa.array([*accumulate(counts)], pa.int32())
    total = ends[-1].as_py()
    starts = [
        first - end + count
        for first, end, count in zip(firsts, ends.to_pylist(), counts, strict=True)
    ]
    kind, columns = many[0].kind, many[0].columns
    found = {
        "seq": pc.add(_spread(pa.array(starts, pa.int64()), ends), pa.arange(0, total)),
        "kind": _repeat(kind, total),
        "mono": _spread(pa.array([item.mono for item in many], pa.int64()), ends),
    }
    if "at" not in columns:
        found["at"] = _spread(_times([item.at for item in many]), ends)
    for name in columns:
        values = _joined([(item.size, item.columns[name]) for item in many])
        if name == "at":
            found[name] = _times(values)
        else:
            found[name] = _column(name, values, hasher)
    return pa.table(found)


def _joined(parts: Sequence[tuple[int, Any]]) -> Sequence[Any]:
    """One column from those of several `Many`."""
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
    """Each value as often as until its end."""
    if len(values) == 1:
        return pa.repeat(values[0], ends[0].as_py())
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))


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
    """All have the same length."""
    try:
        joined = "".join(values)  # type: ignore[arg-type]
    except TypeError:
        return pa.array(values, pa.string())
    ends = pa.arange(0, len(joined) + 1, 2 * HASH_SIZE).cast(pa.int32())
    buffers = [None, ends.buffers()[1], pa.py_buffer(joined.encode())]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _lists(values: Sequence[Sequence[Any] | None], hashed: Hashes | None) -> pa.Array:
    items: list[Any] = [*chain.from_iterable(filter(None, values))]
    texts = pa.array(items, pa.string()) if hashed is None else _hashes(hashed.of(items))
    lengths = [0 if some is None else len(some) for some in values]
    ends = pa.array([*accumulate(lengths, initial=0)], pa.int32())
    mask = None if all(values) else pa.array([some is None for some in values])
    return pa.ListArray.from_arrays(ends, texts, mask=mask)


def _repeat(value: str | None, count: int) -> pa.Array:
    """As a dictionary."""
    if value is None:
        return pa.nulls(count, _REPEATED)
    indices = pa.repeat(pa.scalar(0, pa.int32()), count)
    return pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))


def complete(tables: Sequence[pa.Table]) -> pa.Table:
    """One table with all columns of the schema, in its order; some are dictionaries."""
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
    """Those of a few events each become one with dictionaries, as the others have them."""
    few = [table for table in tables if table.schema.field("kind").type == pa.string()]
    if not few:
        return [*tables]
    joined = pa.concat_tables(few, promote_options="default").combine_chunks()
    for index, name in enumerate(joined.column_names):
        if name in REPETITIVE:
            joined = joined.set_column(index, name, joined.column(index).dictionary_encode())
    others = [table for table in tables if table.schema.field("kind").type != pa.string()]
    return [*others, joined]
