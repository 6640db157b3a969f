"""What can keep a router from starting; the rest is in tests/cli/test_smp.py, with processes."""

import time
from pathlib import Path
from typing import NoReturn

import pytest

from heliograph.db.errors import DatabaseLost, DatabaseNewer
from heliograph.runtime.errors import IdentityError, StartError
from heliograph.runtime.identity import create_identity
from heliograph.smp.config import SmpConfig, SmpListen
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
