import asyncio
import json
from pathlib import Path

from heliograph.sim.providers.record import Entry, Record, digest


def add(record: Record, token: str = "a", accepted: bool = True) -> Entry:
    return record.add(
        time=1.0,
        connection=1,
        token=token,
        accepted=accepted,
        status=200 if accepted else 400,
        reason=None,
        headers={"authorization": "bearer secret", "x": "y"},
        body="body",
    )


def test_select() -> None:
    record = Record()
    for token, accepted in (("a", True), ("b", True), ("a", False), ("a", True)):
        add(record, token, accepted)
    assert [entry.seq for entry in record.select()] == [1, 2, 3, 4]
    assert [entry.seq for entry in record.select(after=2)] == [3, 4]
    assert [entry.seq for entry in record.select(token="a")] == [1, 3, 4]
    assert [entry.seq for entry in record.select(token="a", accepted=True)] == [1, 4]
    assert [entry.seq for entry in record.select(accepted=False)] == [3]
    assert (record.accepted, record.rejected) == (3, 1)
    record.clear()
    assert len(record) == 0
    assert add(record).seq == 5


def test_memory_is_bounded() -> None:
    record = Record(limit=3)
    for _ in range(10):
        add(record)
    assert [entry.seq for entry in record.select()] == [8, 9, 10]


def test_authorizations_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    record = Record(file, limit=1)
    entry = add(record)
    add(record)
    record.close()
    record.close()
    assert entry.headers == {"authorization": digest("bearer secret"), "x": "y"}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2]
    assert "secret" not in file.read_text()


async def test_waiting() -> None:
    record = Record()
    add(record)
    assert [entry.seq for entry in await record.wait_for("a", 0, 1.0)] == [1]
    assert await record.wait_for("a", 1, 0.0) == []
    assert await record.wait_for("a", 1, 0.01) == []
    waiting = [asyncio.create_task(record.wait_for("a", 1, 5.0)) for _ in range(3)]
    other = asyncio.create_task(record.wait_for("b", 0, 0.05))
    await asyncio.sleep(0.01)
    waiting[2].cancel()
    add(record, "a", accepted=False)
    add(record)
    assert [[entry.seq for entry in await task] for task in waiting[:2]] == [[3], [3]]
    assert await other == []
    assert record._waiting == {}  # memory that nothing else shows


async def test_one_of_two_gives_up() -> None:
    record = Record()
    patient = asyncio.create_task(record.wait_for("a", 0, 5.0))
    assert await record.wait_for("a", 0, 0.01) == []
    add(record)
    assert len(await patient) == 1
