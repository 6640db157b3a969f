import os
from typing import Any

import pytest
from hypothesis import given, strategies as st

from heliograph.journal import hashing
from heliograph.journal.events import COLUMNAR, EVENTS, TokenRegistered
from heliograph.journal.hashing import Hasher, notification_id
from heliograph.journal.journal import NO_JOURNAL
from heliograph.journal.schema import COLUMNS, KINDS, ColumnType
from heliograph.journal.storage.arrow import (
    SCHEMA,
    SMALL_TABLE_EVENTS,
    Origin,
    Recorded,
    RecordedColumns,
    complete,
    one_by_one,
    table_of,
)

KEY = bytes(range(32))
ORIGIN = Origin("router", "ntf", 7)

ids = st.binary(min_size=1, max_size=24)
VALUES = {
    ColumnType.INT16: st.integers(0, 2**15 - 1),
    ColumnType.INT32: st.integers(0, 2**31 - 1),
    ColumnType.INT64: st.integers(-(2**63), 2**63 - 1),
    ColumnType.BOOL: st.booleans(),
    ColumnType.TEXT: st.text(max_size=10),
    ColumnType.TEXTS: st.lists(ids, max_size=6),
}


def values(name: str) -> st.SearchStrategy[Any]:
    hashed = Hasher(KEY).of(name) is not None
    kind = COLUMNS[name].type
    return ids if hashed and kind is ColumnType.TEXT else VALUES[kind]


times = st.integers(0, 4 * 10**15).map(lambda number: number / 1e6)
monos = st.integers(0, 2**63 - 1)


@st.composite
def recorded(draw: st.DrawFn) -> Recorded:
    kind = draw(st.sampled_from(sorted(KINDS)))
    names = (*KINDS[kind].has, *draw(st.sets(st.sampled_from(KINDS[kind].may_have or ("",)))))
    columns = {name: draw(values(name)) for name in names if name}
    return EVENTS[kind](**columns), draw(times), draw(monos)


@pytest.mark.parametrize("few", [0, SMALL_TABLE_EVENTS])
@given(st.lists(recorded(), min_size=1, max_size=12))
def test_events_come_back_from_columns(few: int, given: list[Recorded]) -> None:
    hasher = Hasher(KEY)
    table = complete([table_of(given, ORIGIN, 5, hasher, few)])
    assert table.column_names == SCHEMA.names
    rows = table.sort_by("seq").to_pylist()
    assert [row["seq"] for row in rows] == list(range(5, 5 + len(given)))
    for row, (event, at, mono) in zip(rows, given, strict=True):
        assert row.pop("event_id") == f"router-7-{row['seq']}"
        found = {name: value for name, value in row.items() if value is not None}
        assert round(found.pop("at").timestamp() * 1e6) == round(at * 1e6)
        expected = {}
        for name in event.names:
            value, hashes = getattr(event, name), hasher.of(name)
            if value is None:
                continue
            if hashes is not None:
                value = [hashes[one] for one in value] if isinstance(value, list) else hashes[value]
            expected[name] = value
        common = {"schema": 1, "router": "router", "part": "ntf", "boot": 7, "kind": event.kind}
        assert found == common | {"mono": mono, "seq": row["seq"]} | expected


@st.composite
def recorded_together(draw: st.DrawFn) -> RecordedColumns:
    kind = draw(st.sampled_from(sorted(COLUMNAR)))
    size = draw(st.integers(1, 5))
    columns = {}
    for name in COLUMNAR[kind].names:
        one: st.SearchStrategy[Any] = times if name == "at" else values(name)
        if name in KINDS[kind].may_have:
            one = one | st.none()
        is_shared = name in ("own_server", "smp_host")
        columns[name] = draw(one if is_shared else st.lists(one, min_size=size, max_size=size))
    return RecordedColumns(COLUMNAR[kind](**columns), draw(times), draw(monos), size)


@pytest.mark.parametrize("few", [0, SMALL_TABLE_EVENTS])
@given(st.lists(recorded() | recorded_together(), min_size=1, max_size=8))
def test_events_recorded_together_are_equal_to_those_recorded_one_by_one(
    few: int, given: list[Recorded | RecordedColumns]
) -> None:
    together = complete([table_of(given, ORIGIN, 5, Hasher(KEY), few)]).sort_by("seq")
    alone = complete([table_of([*one_by_one(given)], ORIGIN, 5, Hasher(KEY), few)]).sort_by("seq")
    assert together.to_pylist() == alone.to_pylist()


@given(st.lists(st.tuples(recorded() | recorded_together(), st.booleans()), min_size=2, max_size=8))
def test_batches_of_few_and_of_many_make_one_segment(
    given: list[tuple[Recorded | RecordedColumns, bool]],
) -> None:
    hasher = Hasher(KEY)
    batches, first = [], 1
    for item, is_few in given:
        batches.append(table_of([item], ORIGIN, first, hasher, SMALL_TABLE_EVENTS if is_few else 0))
        first += len(batches[-1])
    expected = complete([table_of([item for item, _ in given], ORIGIN, 1, hasher, 0)])
    assert complete(batches).sort_by("seq").to_pylist() == expected.sort_by("seq").to_pylist()


def test_hashes() -> None:
    one, other = Hasher(KEY), Hasher(bytes(32))
    value = os.urandom(24)
    assert one.of("token")[value] == one.of("token")[value]  # type: ignore[index]
    assert one.of("token")[value] != one.of("subscription")[value]  # type: ignore[index]
    assert one.of("token")[value] != other.of("token")[value]  # type: ignore[index]
    # What is compared must be comparable.
    assert one.of("hash")[value] == one.of("expected_hash")[value]  # type: ignore[index]
    # The path of a notification is joined over routers.
    assert one.of("notification")[value] == notification_id(value)  # type: ignore[index]
    assert one.of("notifications")[value] == other.of("notification")[value]  # type: ignore[index]
    assert one.of("kind") is None


def test_few_hashes_are_remembered() -> None:
    hashes = Hasher(KEY).of("token")
    assert hashes is not None
    for number in range(hashing.MAX_CACHED_HASHES + 10):
        hashes[number.to_bytes(4)]
    assert len(hashes.known) < 20
    one, other = b"one", b"other"
    assert hashes.of([one, None, other, one]) == [hashes[one], None, hashes[other], hashes[one]]
    assert hashes.of([]) == []


async def test_no_journal() -> None:
    NO_JOURNAL.record(TokenRegistered(token=b"t", provider="apns_prod"))
    assert NO_JOURNAL.backlog == 0
    assert NO_JOURNAL.counts() is None
    await NO_JOURNAL.drained(0)
