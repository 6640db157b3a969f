from collections.abc import Sequence
from typing import get_type_hints

import pytest

from heliograph.journal.columns import ColumnType
from heliograph.journal.events import COLUMNAR, EVENTS, EventColumns, JournalEvent
from heliograph.journal.hashing import KEYED, Hasher
from heliograph.journal.schema import COLUMNS, KINDS, REQUIRED, SCHEMA_VERSION, violations
from heliograph.journal.storage.arrow import REPETITIVE, SCHEMA

GOOD = {
    "schema": SCHEMA_VERSION,
    "event_id": "r-1-1",
    "router": "r",
    "part": "ntf",
    "boot": 1,
    "seq": 1,
    "kind": "token_active",
    "at": 1.0,
    "mono": 1,
    "token": "t",
    "provider": "apns_prod",
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_kinds_name_columns_that_there_are(kind: object) -> None:
    for name in (*kind.has, *kind.may_have):  # type: ignore[attr-defined]
        assert name in COLUMNS
        assert name not in REQUIRED
    assert not set(kind.has) & set(kind.may_have)  # type: ignore[attr-defined]


def test_every_column_is_of_some_kind() -> None:
    used = {name for kind in KINDS.values() for name in (*kind.has, *kind.may_have)}
    assert used | set(REQUIRED) == set(COLUMNS)


def test_the_columns_of_version_1_stay_as_they_are() -> None:
    """Others read them: add at the end, or make a version 2."""
    assert SCHEMA_VERSION == 1
    assert [f"{field.name} {field.type}" for field in SCHEMA] == [
        "schema int16",
        "event_id string",
        "router string",
        "part string",
        "boot int64",
        "seq int64",
        "kind string",
        "at timestamp[us, tz=UTC]",
        "mono int64",
        "provider string",
        "own_server bool",
        "smp_host string",
        "server string",
        "token string",
        "subscription string",
        "notification string",
        "notifications list<item: string>",
        "push string",
        "ntf_seq int64",
        "through int64",
        "mode string",
        "status string",
        "reason string",
        "code int32",
        "attempt int32",
        "count int64",
        "hash string",
        "expected_count int64",
        "expected_hash string",
        "command string",
        "interval int32",
        "action string",
        "action_kind string",
        "delay int64",
        "source string",
        "wake string",
    ]
    assert {*KEYED, *REPETITIVE} <= set(COLUMNS)


_PYTHON_TYPES = {
    ColumnType.INT16: int,
    ColumnType.INT32: int,
    ColumnType.INT64: int,
    ColumnType.BOOL: bool,
    ColumnType.TEXT: str,
    ColumnType.TEXTS: Sequence[bytes],
}


def column_type(name: str) -> object:
    column = COLUMNS[name].type
    is_hashed = column is ColumnType.TEXT and Hasher(bytes(32)).of(name) is not None
    return bytes if is_hashed else _PYTHON_TYPES[column]


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.kind)
def test_fields_have_the_types_of_their_columns(event: type[JournalEvent]) -> None:
    hints = get_type_hints(event)
    for name in event.names:
        expected = column_type(name)
        assert hints[name] in (expected, expected | None)  # type: ignore[operator]


@pytest.mark.parametrize("columns", COLUMNAR.values(), ids=lambda columns: columns.event.kind)
def test_columns_match_the_fields_of_their_event(columns: type[EventColumns]) -> None:
    hints, single = get_type_hints(columns), get_type_hints(columns.event)
    kind = KINDS[columns.event.kind]
    assert {*kind.has} <= {*columns.names} <= {*kind.has, *kind.may_have, "at"}
    for name in columns.names:
        scalar = float if name == "at" else single[name]
        narrow = column_type(name) if name != "at" else float
        assert hints[name] in (scalar, Sequence[scalar], Sequence[narrow])  # type: ignore[valid-type]


def test_violations() -> None:
    assert list(violations(GOOD)) == []
    assert list(violations({**GOOD, "reason": None})) == []
    assert list(violations({**GOOD, "at": None})) == ["at: missing"]
    assert list(violations({**GOOD, "token": None})) == ["token: missing in token_active"]
    assert list(violations({**GOOD, "count": 1})) == ["count: not a column of token_active"]
    assert list(violations({**GOOD, "color": 1})) == ["color: there is no such column"]
    assert list(violations({**GOOD, "kind": "token_lost"})) == ["kind: unknown"]
    later = {**GOOD, "kind": "token_lost", "schema": SCHEMA_VERSION + 1}
    assert list(violations(later)) == []
