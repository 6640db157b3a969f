"""What can keep a router from starting; the rest is in tests/cli/test_smp.py, with processes."""

import asyncio
import logging
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import aiohttp
import pytest

from heliograph.db.errors import DatabaseError, DatabaseLost, DatabaseNewer
from heliograph.db.sqlite import SqliteDialect
from heliograph.runtime.config.operations import StatsOptions
from heliograph.runtime.config.sections import Metrics
from heliograph.runtime.errors import ConfigError, IdentityError, StartError
from heliograph.runtime.identity import create_identity
from heliograph.smp.config import SmpConfig, SmpControlOptions, SmpListen
from heliograph.smp.router import SmpRouter
from heliograph.smp.service import serve

CONFIG = SmpConfig(SmpListen(port=0))


async def test_address(tmp_path: Path) -> None:
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    fingerprint = (tmp_path / "fingerprint").read_text().strip()
    async with serve(CONFIG, tmp_path) as address:
        assert address.startswith(f"smp://{fingerprint}@127.0.0.1:")


async def test_address_of_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    async with serve(SmpConfig(SmpListen("0.0.0.0", 0)), tmp_path):
        assert "set [listen] host" in caplog.text


async def test_no_keys(tmp_path: Path) -> None:
    with pytest.raises(IdentityError):
        async with serve(CONFIG, tmp_path):
            pass
    assert not (tmp_path / "smp.db").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DatabaseLost("refused"), r"cannot be reached: refused: see \[store\] url"),
        (DatabaseNewer("newer"), "cannot be opened: newer"),
    ],
)
async def test_store_failures(
    tmp_path: Path, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(SmpRouter, "start", fail)
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    with pytest.raises(StartError, match=words):
        async with serve(CONFIG, tmp_path):
            pass


async def test_a_second_router_on_the_same_store(tmp_path: Path) -> None:
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    async with serve(CONFIG, tmp_path):
        with pytest.raises(StartError, match="another router uses this database"):
            async with serve(CONFIG, tmp_path):
                pass
    async with serve(CONFIG, tmp_path):
        pass


async def test_ready_while_something_can_be_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full can still be read: only a write shows it."""
    caplog.set_level(logging.INFO)
    is_full = False
    commit = SqliteDialect.commit

    def failing_commit(dialect: SqliteDialect) -> None:
        if is_full:
            raise DatabaseError("database or disk is full")
        commit(dialect)

    monkeypatch.setattr(SqliteDialect, "commit", failing_commit)
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    config = replace(CONFIG, metrics=Metrics(port=0))
    async with serve(config, tmp_path), aiohttp.ClientSession() as session:
        [base] = re.findall(r"metrics at (http://\S+)/metrics", caplog.text)

        async def ready() -> tuple[int, str]:
            async with session.get(f"{base}/readyz") as response:
                return response.status, await response.text()

        assert await ready() == (200, "ok\n")
        is_full = True
        status, text = await ready()
        assert status == 503
        assert "the store fails: database or disk is full" in text
        is_full = False
        assert await ready() == (200, "ok\n")


async def test_control_port_and_statistics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    (tmp_path / "secret").write_text("hunter2\n")
    config = replace(
        CONFIG,
        control=SmpControlOptions(port=0, user_password_file="secret"),
        stats=StatsOptions(log_file="stats.csv"),
    )
    caplog.set_level(logging.INFO)
    async with serve(config, tmp_path):
        found = re.search(r"control port (\d+)", caplog.text)
        assert found is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
        writer.write(b"auth hunter2\nsockets\nquit\n")
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert b"Current role is CPRUser\nSockets for port" in answer
        writer.close()
        await writer.wait_closed()
    assert (tmp_path / "stats.json").exists()
    assert "hunter2" not in caplog.text


async def test_a_control_password_that_cannot_be_read(tmp_path: Path) -> None:
    create_identity(tmp_path, "SMP server CA", "localhost", time.time())
    config = replace(CONFIG, control=SmpControlOptions(port=0, admin_password_file="absent"))
    with pytest.raises(ConfigError, match="admin_password_file"):
        async with serve(config, tmp_path):
            pass
    assert not (tmp_path / "smp.db").exists()
