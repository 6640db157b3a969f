"""From a configuration to a router that pushes; the rest is in tests/cli/ntf/test_command.py."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from heliograph.db.errors import DatabaseLost, DatabaseNewer
from heliograph.ntf.config import PREFIX, NtfConfig, NtfListen
from heliograph.ntf.observing.stats import Stats
from heliograph.ntf.providers import create_vapid_key
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.service import maintain, serve
from heliograph.runtime.config.file import load
from heliograph.runtime.config.operations import STATS_NAME
from heliograph.runtime.errors import ConfigError, IdentityError, StartError
from heliograph.runtime.identity import create_identity
from heliograph.transport.client import Client
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.tokens import TokenStatus
from tests.ntf.support import KEY, KEY_ID, TEAM_ID, TOPIC, NtfWorld

CONFIG = NtfConfig(listen=NtfListen(port=0))


def make_router(directory: Path) -> None:
    create_identity(directory, "NTF server CA", "localhost", time.time())
    create_vapid_key(directory)


async def test_a_configured_router_reaches_a_device(small_world: NtfWorld, tmp_path: Path) -> None:
    directory = tmp_path / "router"
    make_router(directory)
    (directory / "apns.p8").write_bytes(KEY.to_pem())
    apns = small_world.apns
    (directory / "config.toml").write_text(
        f'[listen]\nport = 0\n[network]\nallow_private = true\n[push.apns]\nkey_file = "apns.p8"\n'
        f'key_id = "{KEY_ID}"\nteam_id = "{TEAM_ID}"\ntopic = "{TOPIC}"\n'
        f'test_url = "{apns.simulator.url}"\nallow_test_tokens = true\n'
        f'ca_file = "{apns.simulator.authority.file}"\n'
    )
    config = load(NtfConfig, directory / "config.toml", prefix=PREFIX, environ={})
    async with serve(config, directory) as address:
        client = await Client.connect(decode_address(address))
        phone = await small_world.phone(client=client)
        await phone.register()
        assert await phone.tchk() is TokenStatus.ACTIVE
        queue = await small_world.queue()
        await phone.subscribe(queue)
        await small_world.send(queue)
        await phone.notified_of(queue)
        await client.close()


async def test_address_of_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_router(tmp_path)
    async with serve(replace(CONFIG, listen=NtfListen("0.0.0.0", 0)), tmp_path) as address:
        assert "set [listen] host" in caplog.text
        assert address.startswith("ntf://")


async def test_no_keys(tmp_path: Path) -> None:
    with pytest.raises(IdentityError):
        async with serve(CONFIG, tmp_path):
            pass
    with pytest.raises(IdentityError):
        maintain(CONFIG, tmp_path)
    assert not (tmp_path / "ntf.db").exists()


async def test_a_provider_that_cannot_be(tmp_path: Path) -> None:
    make_router(tmp_path)
    (tmp_path / "vapid.key").write_text("not a key")
    with pytest.raises(ConfigError, match="vapid_key_file"):
        async with serve(CONFIG, tmp_path):
            pass
    assert not (tmp_path / "ntf.db").exists()


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

    monkeypatch.setattr(NtfRouter, "start", fail)
    make_router(tmp_path)
    with pytest.raises(StartError, match=words):
        async with serve(CONFIG, tmp_path):
            pass


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: data[:4096] + b"x" * len(data[4096:]), "damaged"),
    ],
    ids=["empty", "malformed"],
)
async def test_a_damaged_store_is_not_served(
    tmp_path: Path, damage: Callable[[bytes], bytes], advice: str
) -> None:
    make_router(tmp_path)
    async with serve(CONFIG, tmp_path):
        pass
    store = tmp_path / "ntf.db"
    damaged = damage(store.read_bytes())
    store.write_bytes(damaged)
    for name in ("ntf.db-wal", "ntf.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(StartError, match=advice):
        async with serve(CONFIG, tmp_path):
            pytest.fail("it is served")
    assert store.read_bytes() == damaged


def test_maintenance_restores_and_saves_statistics(tmp_path: Path) -> None:
    """Seed 001, behaviour 12."""
    make_router(tmp_path)
    stats = Stats()
    stats.counters.tkn_created = 7
    file = tmp_path / STATS_NAME
    log = NtfStatsLog(stats, file)
    log.save()
    before = file.stat().st_mtime_ns
    maintain(CONFIG, tmp_path)
    assert file.stat().st_mtime_ns > before
    restored = Stats()
    NtfStatsLog(restored, file).restore()
    assert restored.counters.tkn_created == 7
