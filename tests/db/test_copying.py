"""Every table of both routers, from each kind of database to each."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from heliograph.db import copying
from heliograph.db.copying import OWN_TABLES, copy_database
from heliograph.db.database import Migration, migrate
from heliograph.db.dialects import open_dialect
from heliograph.db.errors import DatabaseError
from heliograph.db.sql import Row
from heliograph.ntf.store.schema import MIGRATIONS as NTF
from heliograph.smp.store.schema import MIGRATIONS as SMP
from tests.db.postgres import shared_postgres

ROWS = 7


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return shared_postgres().new_url()
    return f"sqlite:///{tmp_path}/target.db"


def value(column: str, number: int) -> object:
    """Of the type that the column has in the schemas."""
    if column in _NUMBERS:
        return number + (1 << 40 if column in ("seq", "timestamp") else 0)
    if column in _TEXTS:
        return f"text {number} \u00e9"
    return bytes([number, 0, 255]) * 5


_NUMBERS = {
    *("seq", "timestamp", "notification", "queue_count", "server_id", "surplus_count"),
    *("cron_minutes", "cron_due_at", "created_at", "unverified_since", "unused_since"),
    *("associated", "since", "attempts", "next_at", "expires_at"),
    *("process_id", "is_leaving", "skew", "value", "shard", "shards", "owner", "previous", "at"),
    *("applied_at", "is_recorded", "seen_at", "slowed_at", "asked_at", "verified_at"),
    *("next_push_at", "until", "rate", "per_minute", "total", "woken", "controlled_at"),
    *("begun_at", "position", "cron_phase", "failures", "generation", "subscriptions"),
}
_TEXTS = {"mode", "status", "blocked", "role", "device", "address", "kind", "provider"}
_TEXTS |= {"name", "version", "schema", "action_id", "state", "finding", "host"}


def fill(url: str, migrations: Sequence[Migration]) -> None:
    """Put rows into every table; every second row has NULL where it may."""
    migrate(url, migrations)
    nullable = {"link_id", "link_hash", "service_id", "body", "blocked", "cron_due_at"}
    with closing(open_dialect(url)) as dialect:
        dialect.begin()
        for table, columns in dialect.columns().items():
            if table in OWN_TABLES:
                continue
            for number in range(ROWS):
                is_null = number % 2 and table in ("queues", "messages", "tokens")
                row = [
                    None if is_null and name in nullable and not key else value(name, number)
                    for name, key in columns
                ]
                names = ", ".join(name for name, _ in columns)
                marks = ", ".join("?" * len(row))
                dialect.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)
        dialect.commit()


def everything(url: str) -> dict[str, list[Row]]:
    with closing(open_dialect(url)) as dialect:
        return {
            table: dialect.query(
                f"SELECT {', '.join(name for name, _ in columns)} FROM {table} ORDER BY 1, 2", ()
            )
            for table, columns in dialect.columns().items()
            if table not in OWN_TABLES
        }


@pytest.mark.parametrize("migrations", [SMP, NTF], ids=["smp", "ntf"])
def test_every_table(
    url: str, target: str, migrations: Sequence[Migration], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "ROWS_PER_PAGE", 3)
    fill(url, migrations)
    copied = copy_database(url, target, migrations)
    source = everything(url)
    assert everything(target) == source
    assert copied == dict.fromkeys(source, ROWS)


def test_columns_and_keys(url: str) -> None:
    migrate(url, NTF)
    with closing(open_dialect(url)) as dialect:
        columns = dialect.columns()
    assert columns["deleted_associations"] == [("server_id", 1), ("notifier_id", 2)]
    assert columns["tokens"][:2] == [("token_id", 1), ("device", 0)]
    assert all(any(place for _, place in found) for found in columns.values())


def test_a_target_with_rows_is_refused(url: str, target: str) -> None:
    fill(url, SMP)
    copy_database(url, target, SMP)
    before = everything(target)
    with pytest.raises(DatabaseError, match="not empty"):
        copy_database(url, target, SMP)
    assert everything(target) == before


def test_an_interrupted_copy_leaves_nothing(url: str, target: str) -> None:
    fill(url, SMP)

    def interrupt(table: str, count: int) -> None:
        if table == "queues":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_database(url, target, SMP, interrupt)
    assert not any(everything(target).values())
    copy_database(url, target, SMP)


def test_a_snapshot_while_the_source_is_used(url: str, target: str) -> None:
    fill(url, SMP)
    before = everything(url)

    def write_more(table: str, count: int) -> None:
        if table == "links":
            with closing(open_dialect(url)) as other:
                other.execute("DELETE FROM services", ())

    copy_database(url, target, SMP, write_more)
    assert everything(target) == before
    assert everything(url)["services"] == []


def test_mistakes(url: str, target: str) -> None:
    with pytest.raises(DatabaseError, match="nothing was stored there"):
        copy_database(url, target, SMP)
    fill(url, SMP)
    with pytest.raises(DatabaseError, match="same database"):
        copy_database(url, url, SMP)
    with pytest.raises(DatabaseError, match="another version"):
        copy_database(url, target, (*SMP, Migration("0002_later", "")))
