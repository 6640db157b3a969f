"""The journal: one line an event, never in the way of the router; and what if it fails."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from heliograph.journal import writer as module
from heliograph.journal.events import SCHEMA_VERSION, Event, notification_id
from heliograph.journal.writer import JsonLinesWriter


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_become_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = JsonLinesWriter(path)
    journal(Event("one", 1.5))
    journal(Event("two", 2.5, "abc", {"count": 3, "ok": True}))
    journal.close()
    assert lines(path) == [
        {"schema": SCHEMA_VERSION, "kind": "one", "at": 1.5, "notification": None, "detail": {}},
        {
            "schema": SCHEMA_VERSION,
            "kind": "two",
            "at": 2.5,
            "notification": "abc",
            "detail": {"count": 3, "ok": True},
        },
    ]
    assert journal.lost == 0


def test_a_journal_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for kind in ("one", "two"):
        journal = JsonLinesWriter(path)
        journal(Event(kind, 0))
        journal.close()
    assert [line["kind"] for line in lines(path)] == ["one", "two"]


def test_a_line_that_was_cut_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"kind":"one"}\n{"kind":"tw')
    journal = JsonLinesWriter(path)
    journal(Event("three", 0))
    journal.close()
    first, cut, third = path.read_text().splitlines()
    assert json.loads(first)["kind"] == "one"
    assert cut == '{"kind":"tw'
    assert json.loads(third)["kind"] == "three"


def test_order_from_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = JsonLinesWriter(path)

    def write(thread: int) -> None:
        for n in range(200):
            journal(Event(f"{thread}", n))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = lines(path)
    for number in range(4):
        times = [line["at"] for line in found if line["kind"] == str(number)]
        assert times == list(range(200))


def test_a_place_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "later"
    journal = JsonLinesWriter(directory / "journal.jsonl")
    for _ in range(3):
        journal(Event("lost", 0))
        while not journal._events.empty():
            pass
    wait_until_lost(journal, 3)
    directory.mkdir()
    journal(Event("kept", 0))
    journal.close()
    assert [line["kind"] for line in lines(directory / "journal.jsonl")] == ["kept"]
    assert journal.lost == 3
    assert len(caplog.records) == 1  # said once
    assert str(directory) not in caplog.text


def wait_until_lost(journal: JsonLinesWriter, count: int) -> None:
    condition = threading.Event()
    for _ in range(1000):
        if journal.lost >= count:
            return
        condition.wait(0.005)
    raise AssertionError(journal.lost)


def test_more_than_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 5)
    gate = threading.Event()
    write = JsonLinesWriter._write

    def slow(self: JsonLinesWriter, batch: list[Event]) -> None:
        gate.wait(10)
        write(self, batch)

    monkeypatch.setattr(JsonLinesWriter, "_write", slow)
    journal = JsonLinesWriter(tmp_path / "journal.jsonl")
    for n in range(50):
        journal(Event("many", n))
    gate.set()
    journal.close()
    written = lines(tmp_path / "journal.jsonl")
    assert journal.lost > 30
    assert len(written) + journal.lost == 50


def test_what_cannot_be_put_into_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    journal = JsonLinesWriter(path)
    journal(Event("bad", 0, detail={"value": b"bytes"}))  # type: ignore[dict-item]
    wait_until_lost(journal, 1)
    journal(Event("good", 0))
    journal.close()
    assert [line["kind"] for line in lines(path)] == ["good"]
    assert "put into words" in caplog.text


def test_the_id_of_a_notification_says_nothing() -> None:
    nonce = os.urandom(24)
    assert notification_id(nonce) == notification_id(nonce)
    assert len(notification_id(nonce)) == 32
    assert notification_id(nonce) != notification_id(os.urandom(24))
    assert nonce.hex() not in notification_id(nonce)
