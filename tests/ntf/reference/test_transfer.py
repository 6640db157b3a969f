import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.db.database import migrate
from heliograph.db.dialects import Dialect, open_dialect
from heliograph.ntf.reference.transfer import NtfExport, NtfImport
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.runtime.reference import storelog as transfer
from heliograph.runtime.reference.storelog import StoreLogError
from heliograph.wire.ntf.tokens import SubscriptionState
from tests.ntf.reference.test_storelog import (
    CODE,
    ID,
    QUEUE,
    SCREATE,
    SERVER,
    SUBSCRIPTION_ID,
    TCREATE,
    TOKEN_ID,
    b64,
)
from tests.ntf.support import NtfWorld

NOW = 1_800_000_000.0
OTHER_ID = b"u" * 24
NOTIFICATION = f"v1 {ID} {SERVER}/{b64(QUEUE.notifier_id)} 1700000000 {b64(bytes(24))} {b64(b'm')}"
TABLES = ("tokens", "subscriptions", "servers", "last_notifications")


@pytest.fixture
def dialect(url: str) -> Iterator[Dialect]:
    migrate(url, MIGRATIONS)
    opened = open_dialect(url)
    yield opened
    opened.close()


def imported(dialect: Dialect, file: Path, *lines: str) -> NtfImport:
    file.write_text("".join(f"{line}\n" for line in lines))
    work = NtfImport(dialect, NOW)
    work.check(file)
    work.apply([file])
    return work


def one(dialect: Dialect, sql: str) -> object:
    [[value]] = dialect.query(sql, ())
    return value


def everything(dialect: Dialect) -> list[list[tuple[object, ...]]]:
    return [sorted(dialect.query(f"SELECT * FROM {table}", ()), key=repr) for table in TABLES]


def another(line: str, token_id: bytes = OTHER_ID) -> str:
    return line.replace(ID, b64(token_id))


def test_a_log_is_replayed(dialect: Dialect, tmp_path: Path) -> None:
    work = imported(
        dialect,
        tmp_path / "log",
        TCREATE.replace("ACTIVE", "REGISTERED"),
        f"TSTATUS {ID} CONFIRMED",
        f"TSTATUS {ID} ACTIVE",
        f"TCRON {ID} 60",
        f"TTIME {ID} 1767225600",
        SCREATE.replace("ACTIVE", "NEW"),
        f"SSTATUS {b64(SUBSCRIPTION_ID)} ERR oh no service=T",
        f"SERVICE {SERVER} service={ID}",
        "",
    )
    [row] = dialect.query(
        "SELECT status, device, cron_minutes, cron_due_at, created_at FROM tokens", ()
    )
    assert row[:3] == ("ACTIVE", "apns_prod 00ff", 60)
    assert NOW * 1000 <= row[3] < (NOW + 3600) * 1000
    assert row[4] == 1_767_225_600_000
    [row] = dialect.query("SELECT status, error, associated, notifier_id FROM subscriptions", ())
    assert tuple(row) == ("ERR", b"oh no", 0, QUEUE.notifier_id)
    assert one(dialect, "SELECT address FROM servers") == SERVER
    assert work.applied == 7
    assert list(work.skipped.values()) == [1]


def test_deletions_and_replacements(dialect: Dialect, tmp_path: Path) -> None:
    imported(
        dialect,
        tmp_path / "log",
        TCREATE,
        SCREATE,
        f"SDELETE {b64(SUBSCRIPTION_ID)}",
        f"TUPDATE {ID} apns_dev abcd {b64(CODE)}",
    )
    assert one(dialect, "SELECT COUNT(*) FROM subscriptions") == 0
    [row] = dialect.query("SELECT device, status FROM tokens", ())
    assert tuple(row) == ("apns_dev abcd", "REGISTERED")
    imported(dialect, tmp_path / "log", f"TDELETE {ID}")
    assert one(dialect, "SELECT COUNT(*) FROM tokens") == 0


def test_the_first_verified_token_of_a_device_deletes_others(
    dialect: Dialect, tmp_path: Path
) -> None:
    imported(
        dialect,
        tmp_path / "log",
        TCREATE.replace("ACTIVE", "REGISTERED"),
        another(TCREATE.replace("ACTIVE", "REGISTERED")),
        f"TSTATUS {b64(OTHER_ID)} ACTIVE",
    )
    assert one(dialect, "SELECT token_id FROM tokens") == OTHER_ID


def test_what_belongs_to_nobody_is_left_out_and_counted(dialect: Dialect, tmp_path: Path) -> None:
    work = imported(dialect, tmp_path / "log", SCREATE, NOTIFICATION, f"TSTATUS {ID} ACTIVE")
    assert work.skipped == {
        "subscribe for a token that is not there": 1,
        "notify for a subscription that is not there": 1,
    }
    assert one(dialect, "SELECT COUNT(*) FROM subscriptions") == 0


def test_twice_is_once(dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the queue had another subscription in between, and a crash came in the middle."""
    monkeypatch.setattr(transfer, "LINES_PER_PAGE", 2)
    second = SCREATE.replace(b64(SUBSCRIPTION_ID), b64(b"x" * 24))
    lines = (
        TCREATE,
        SCREATE,
        f"SDELETE {b64(SUBSCRIPTION_ID)}",
        another(TCREATE).replace("00ff", "11ff"),
        f"TDELETE {b64(OTHER_ID)}",
        second,
    )
    imported(dialect, tmp_path / "log", *lines[:3])
    imported(dialect, tmp_path / "log", *lines)
    once = everything(dialect)
    imported(dialect, tmp_path / "log", *lines)
    assert everything(dialect) == once
    assert one(dialect, "SELECT subscription_id FROM subscriptions") == b"x" * 24


def test_a_bad_log_changes_nothing(dialect: Dialect, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("\n".join([TCREATE, "rubbish", SCREATE, TCREATE[:50], *["x"] * 30]))
    work = NtfImport(dialect, NOW)
    with pytest.raises(StoreLogError) as error:
        work.check(file)
    assert error.value.problems[0] == f"{file}: line 2: not a record of a store log"
    assert "line 4: TCREATE" in error.value.problems[1]
    assert error.value.problems[-1].endswith("and 12 more lines")
    assert one(dialect, "SELECT COUNT(*) FROM tokens") == 0
    work.check(file, skip_bad=True)
    work.apply([file])
    assert (work.applied, work.skipped) == (2, {"cannot be read": 32})


def test_a_line_without_end(dialect: Dialect, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"T" * 300_000 + b"\xff")
    with pytest.raises(StoreLogError, match="line 1: the line is too long"):
        NtfImport(dialect, NOW).check(file)


def test_last_notifications(dialect: Dialect, tmp_path: Path) -> None:
    imported(dialect, tmp_path / "log", TCREATE, SCREATE)
    imported(dialect, tmp_path / "last", NOTIFICATION, NOTIFICATION.replace("1700", "1701"))
    [row] = dialect.query("SELECT token_id, timestamp, meta, seq FROM last_notifications", ())
    assert tuple(row) == (TOKEN_ID, 1_701_000_000, b"m", 2)
    assert one(dialect, "SELECT COUNT(*) FROM pending_pushes") == 0


def test_out_and_in_again(
    url: str, dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LINES_PER_PAGE", 3)
    lines = []
    for number in range(10):
        token_id = os.urandom(24)
        lines.append(
            another(TCREATE, token_id).replace("00ff", f"{number:04x}") + " updatedAt=1767225600"
        )
        for _ in range(2):
            queue = f"{SERVER}/{b64(os.urandom(24))}"
            lines.append(
                another(SCREATE, token_id)
                .replace(b64(SUBSCRIPTION_ID), b64(os.urandom(24)))
                .replace(f"{SERVER}/{b64(QUEUE.notifier_id)}", queue)
            )
            notification = another(NOTIFICATION, token_id)
            with (tmp_path / "last").open("a") as last:
                last.write(notification.replace(f"{SERVER}/{b64(QUEUE.notifier_id)}", queue) + "\n")
    imported(dialect, tmp_path / "log", *lines)
    NtfImport(dialect, NOW).apply([tmp_path / "last"])
    before = everything(dialect)
    reader = open_dialect(url, read_only=True)
    reported: list[str] = []
    export = NtfExport(reader, lambda what, count: reported.append(what))
    export.write(tmp_path / "out", tmp_path / "out-last")
    reader.close()
    assert (export.tokens, export.subscriptions, export.notifications) == (10, 20, 20)
    assert len(set(reported)) == 3
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    for table in TABLES:
        dialect.execute(f"DELETE FROM {table}", ())
    for name in ("out", "out-last"):
        work = NtfImport(dialect, NOW)
        work.check(tmp_path / name)
        work.apply([tmp_path / name])
        assert not work.skipped
    assert everything(dialect) == before


def test_an_export_overwrites_nothing(dialect: Dialect, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(FileExistsError):
        NtfExport(dialect).write(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "precious"


async def test_a_phone_goes_on_after_moving(small_world: NtfWorld, tmp_path: Path) -> None:
    """What one router exports, another one serves: same token, same keys, same subscriptions."""
    phone = await small_world.registered()
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    await small_world.stop_ntf()
    reader = open_dialect(small_world.url, read_only=True)
    NtfExport(reader).write(tmp_path / "log", tmp_path / "last")
    reader.close()
    small_world.url = f"sqlite:///{tmp_path}/other.db"
    migrate(small_world.url, MIGRATIONS)
    writer = open_dialect(small_world.url)
    NtfImport(writer, NOW).apply([tmp_path / "log"])
    writer.close()
    await small_world.start_ntf()
    phone.client = await small_world.connect()
    assert (await phone.tchk()).value == "ACTIVE"
    await phone.until_state(subscription_id, SubscriptionState.ACTIVE)
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    await phone.notified_of(queue)
