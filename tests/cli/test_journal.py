"""`heliograph journal`, as a user runs it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.cli.main import main
from heliograph.journal.events import (
    ClientConnected,
    NotificationDelivered,
    NotificationStored,
    PushPending,
)
from heliograph.journal.hashing import notification_id
from tests.journal.support import files, note, writer


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    written = writer(tmp_path / "journal")
    note(written, 1, 2)
    written.record(NotificationStored(notification=b"nonce"))
    written.record(NotificationDelivered(notification=b"nonce"))
    written.record(
        PushPending(
            token=b"t",
            provider=None,  # type: ignore[arg-type]
            mode="message",
            notifications=[b"nonce"],
            through=1,
        )
    )
    written.close()
    return tmp_path / "journal"


def test_show(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "show", str(journal)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].endswith("  ntf 0123  client_connected  count=1")
    assert main(["journal", "show", str(journal), "--kind", "client_connected", "--last", "1"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.endswith("count=2")
    wanted = notification_id(b"nonce")
    assert main(["journal", "show", str(journal), "--json", "--notification", wanted]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = ["notification_stored", "notification_delivered", "push_pending"]
    assert [event["kind"] for event in events] == kinds


def test_count(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "count", str(journal)]) == 1
    out = capsys.readouterr().out
    assert "           2  client_connected\n" in out
    assert "           5  in all, of 1 runs of 1 routers\n" in out
    assert "           1  wrong: provider: missing in push_pending\n" in out


def test_count_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = writer(tmp_path)
    note(written, 1)
    written.record(ClientConnected(count="none"))  # type: ignore[arg-type]
    note(written, 2)
    written.close()
    assert main(["journal", "count", str(tmp_path)]) == 0
    assert (
        "           1  missing: lost, or in segments that were removed" in capsys.readouterr().out
    )


def test_count_names_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = writer(tmp_path)
    note(written, 1, 2)
    written.close()
    assert main(["journal", "count", str(tmp_path)]) == 0
    assert "unreadable" not in capsys.readouterr().out
    [segment] = files(tmp_path, ".parquet")
    torn = segment.with_name("9-00000001.parquet")
    torn.write_bytes(segment.read_bytes()[:-10])
    damaged = segment.with_name("9-00000002.parquet")
    data = segment.read_bytes()
    damaged.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    foreign = segment.with_name("9-00000003.parquet")
    pq.write_table(pa.table({"a": [1]}), foreign)
    aside = segment.with_name("_9-00000004.unreadable")
    aside.write_bytes(b"x")
    assert main(["journal", "count", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "           2  client_connected\n" in out
    for path in (torn, damaged, foreign, aside):
        assert f"  unreadable  {path}: " in out


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "show", str(tmp_path / "absent")]) == 1
    assert "see [journal] path" in capsys.readouterr().err
    assert main(["journal", "show", str(tmp_path), "--kind", "nothing"]) == 1
    assert "there is no such kind" in capsys.readouterr().err
