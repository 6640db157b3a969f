import pytest

from heliograph.journal.arrow import REPETITIVE, SCHEMA
from heliograph.journal.events import KEYED
from heliograph.journal.schema import COLUMNS, KINDS, REQUIRED, SCHEMA_VERSION, violations

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
    ]
    assert {*KEYED, *REPETITIVE} <= set(COLUMNS)


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
