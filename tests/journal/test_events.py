import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.journal import events
from heliograph.journal.arrow import FEW, SCHEMA, Origin, complete, one_by_one, table_of
from heliograph.journal.events import NO_JOURNAL, Event, Hasher, Many, notification_id
from heliograph.journal.schema import COLUMNS, KINDS, ColumnType

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


@st.composite
def noted(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(sorted(KINDS)))
    columns = {}
    for name in (*KINDS[kind].has, *draw(st.sets(st.sampled_from(KINDS[kind].may_have or ("",))))):
        if name:
            hashed = Hasher(KEY).of(name) is not None
            kind_of = COLUMNS[name].type
            values = ids if hashed and kind_of is ColumnType.TEXT else VALUES[kind_of]
            columns[name] = draw(values)
    at = draw(st.integers(0, 4 * 10**15)) / 1e6
    return kind, at, draw(st.integers(0, 2**63 - 1)), columns


@pytest.mark.parametrize("few", [0, FEW])
@given(st.lists(noted(), min_size=1, max_size=12))
def test_events_come_back_from_columns(few: int, given: list[Event]) -> None:
    hasher = Hasher(KEY)
    table = complete([table_of(given, ORIGIN, 5, hasher, few)])
    assert table.column_names == SCHEMA.names
    rows = table.sort_by("seq").to_pylist()
    assert [row["seq"] for row in rows] == list(range(5, 5 + len(given)))
    for row, (kind, at, mono, columns) in zip(rows, given, strict=True):
        assert row.pop("event_id") == f"router-7-{row['seq']}"
        found = {name: value for name, value in row.items() if value is not None}
        assert round(found.pop("at").timestamp() * 1e6) == round(at * 1e6)
        expected = {}
        for name, value in columns.items():
            hashes = hasher.of(name)
            if hashes is not None:
                value = [hashes[one] for one in value] if isinstance(value, list) else hashes[value]
            expected[name] = value
        common = {"schema": 1, "router": "router", "part": "ntf", "boot": 7, "kind": kind}
        assert found == common | {"mono": mono, "seq": row["seq"]} | expected


@st.composite
def noted_together(draw: st.DrawFn) -> Many:
    """Some columns have a value for each, others are the same for all."""
    kind, at, mono, columns = draw(noted())
    size = draw(st.integers(1, 5))
    for name, value in columns.items():
        if isinstance(value, list) or draw(st.booleans()):
            others: Any = draw(noted())[3].get(name)
            columns[name] = draw(st.permutations([value, *[others] * (size - 1)]))
    if draw(st.booleans()):
        columns["at"] = [at + number for number in range(size)]
    return Many(kind, at, mono, size, columns)


@pytest.mark.parametrize("few", [0, FEW])
@given(st.lists(noted() | noted_together(), min_size=1, max_size=8))
def test_events_noted_together_are_as_those_noted_one_by_one(
    few: int, given: list[Event | Many]
) -> None:
    together = complete([table_of(given, ORIGIN, 5, Hasher(KEY), few)]).sort_by("seq")
    alone = complete([table_of([*one_by_one(given)], ORIGIN, 5, Hasher(KEY), few)]).sort_by("seq")
    assert together.to_pylist() == alone.to_pylist()


@given(st.lists(st.tuples(noted() | noted_together(), st.booleans()), min_size=2, max_size=8))
def test_batches_of_few_and_of_many_make_one_segment(
    given: list[tuple[Event | Many, bool]],
) -> None:
    hasher = Hasher(KEY)
    batches, first = [], 1
    for item, is_few in given:
        batches.append(table_of([item], ORIGIN, first, hasher, FEW if is_few else 0))
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
    for number in range(events.CACHED + 10):
        hashes[number.to_bytes(4)]
    assert len(hashes.known) < 20
    one, other = b"one", b"other"
    assert hashes.of([one, None, other, one]) == [hashes[one], None, hashes[other], hashes[one]]
    assert hashes.of([]) == []


async def test_no_journal() -> None:
    NO_JOURNAL("token_active", token=b"t")
    assert NO_JOURNAL.backlog == 0
    assert NO_JOURNAL.counts() is None
    await NO_JOURNAL.drained(0)
