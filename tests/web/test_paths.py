"""The path of one notification, from segments that a real writer could have made."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.journal.storage.arrow import SCHEMA
from heliograph.web.paths import outcome, path_of, read

MINE, OTHER = "a" * 32, "b" * 32
START = datetime(2026, 1, 2, tzinfo=UTC)


def event(number: int, kind: str, **columns: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "router": "r",
        "boot": 1,
        "seq": number,
        "mono": number,
        "event_id": f"r-1-{number}",
        "part": columns.pop("part", "ntf"),
        "kind": kind,
        "at": START + timedelta(milliseconds=number),
        **columns,
    }


STORED = [
    event(1, "notification_stored", part="smp", notification=MINE),
    event(2, "notification_delivered", part="smp", notification=MINE),
    event(3, "nmsg_received", notification=MINE),
    event(4, "nmsg_stored", notification=MINE, token="t", ntf_seq=10),
    event(5, "push_pending", token="t", through=10, mode="message"),
]
ACCEPTED = event(7, "push_accepted", token="t", through=12, mode="message", notifications=[MINE])
LATER = event(9, "push_accepted", token="t", through=20, mode="message", notifications=[OTHER])


def found(tmp_path: Path, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    middle = len(events) // 2
    files = []
    # In two files, of which the second repeats the last of the first.
    for name, part in (("a", events[: middle + 1]), ("b", events[middle:])):
        file = tmp_path / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(part, schema=SCHEMA), file)
        files.append(file)
    return path_of(read(files, MINE), MINE)


def kinds(path: list[dict[str, Any]]) -> list[str]:
    return [item["kind"] for item in path]


def test_all_the_way(tmp_path: Path) -> None:
    noise = [
        event(6, "push_attempted", token="other", through=99, mode="message"),
        event(8, "nmsg_stored", notification=OTHER, token="t", ntf_seq=11),
    ]
    path = found(tmp_path, [*STORED, ACCEPTED, *noise, LATER])
    assert kinds(path) == [*kinds(STORED), "push_accepted"]
    assert outcome(path, MINE) == "The push provider accepted it."


def test_shown(tmp_path: Path) -> None:
    shown = event(8, "device_shown", part="device", notification=MINE)
    path = found(tmp_path, [*STORED, ACCEPTED, shown])
    assert outcome(path, MINE) == "It was shown on the phone."


def test_superseded(tmp_path: Path) -> None:
    path = found(tmp_path, [*STORED, LATER])
    assert outcome(path, MINE).startswith("It was coalesced")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ([], "A push is pending"),
        ([event(8, "push_expired", token="t", through=10, mode="message")], "Its push expired"),
        ([event(8, "token_invalid", token="t", through=10, reason="x")], "The provider rejected"),
        ([event(8, "token_deleted", token="t", through=10)], "The token was deleted"),
    ],
)
def test_not_accepted(tmp_path: Path, end: list[dict[str, Any]], text: str) -> None:
    path = found(tmp_path, [*STORED, *end])
    assert outcome(path, MINE).startswith(text)


def test_still_at_the_messaging_router(tmp_path: Path) -> None:
    assert outcome(found(tmp_path, STORED[:1]), MINE).startswith("It waits")
    assert outcome(found(tmp_path, STORED[:2]), MINE).startswith("The messaging router delivered")


def test_nothing(tmp_path: Path) -> None:
    assert read([], MINE) == []
    assert found(tmp_path, [LATER]) == []
