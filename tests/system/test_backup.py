"""Backups of a whole system: online, verified, and restored only where nothing is."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from heliograph.db.database import migrate
from heliograph.db.dialects import open_dialect
from heliograph.ntf.store.schema import MIGRATIONS as NTF_MIGRATIONS
from heliograph.runtime.errors import StartError
from heliograph.smp.store.schema import MIGRATIONS as SMP_MIGRATIONS
from heliograph.system import state
from heliograph.system.backup import MANIFEST, back_up, check_backup, restore
from heliograph.system.install import create
from heliograph.system.layout import Layout
from heliograph.transport.client import Client
from heliograph.wire.addresses import decode_address
from tests.db.postgres import shared_postgres
from tests.smp.support import OK, Peer, Queue, create as create_queue

NOW = 1_800_000_000.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system that has run: with stores, a journal, logs, and leftovers of processes."""
    root = tmp_path / "home"
    create(root, any_port=True)
    layout = Layout(root)
    for directory, name, migrations in (
        (layout.smp, "smp.db", SMP_MIGRATIONS),
        (layout.ntf, "ntf.db", NTF_MIGRATIONS),
    ):
        migrate(f"sqlite:///{directory / name}", migrations)
        (directory / "lock").touch()
    add_link(f"sqlite:///{layout.smp / 'smp.db'}")
    layout.logs.mkdir()
    layout.log("smp").write_text("a line\n")
    layout.state.write_text("{}")
    (layout.journal / "segment").write_bytes(b"events")
    table = layout.tables / "ledger"
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "0.json").write_text("{}")
    (table / "part.parquet").write_bytes(b"rows")
    return root


def add_link(url: str) -> None:
    with closing(open_dialect(url)) as dialect:
        dialect.execute("INSERT INTO links VALUES (?, ?, ?)", (b"r", b"fixed", b"user"))


def links(url: str) -> list[tuple[object, ...]]:
    with closing(open_dialect(url, read_only=True)) as dialect:
        return dialect.query("SELECT * FROM links", ())


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_everything_comes_back(root: Path, tmp_path: Path) -> None:
    manifest = back_up(root, tmp_path / "copy", NOW)
    assert manifest.rows["smp"]["links"] == 1
    assert check_backup(tmp_path / "copy") == manifest
    again = tmp_path / "again"
    assert restore(tmp_path / "copy", again) == manifest
    gone = {"state.json", "logs/smp.log", "smp/lock", "ntf/lock"}
    assert names(again) == {name for name in names(root) if not name.endswith(("-wal", "-shm"))} - {
        *gone
    }
    for name in names(again) - {"smp/smp.db", "ntf/ntf.db"}:
        assert (again / name).read_bytes() == (root / name).read_bytes()
        assert (again / name).stat().st_mode == (root / name).stat().st_mode
    assert links(f"sqlite:///{again / 'smp' / 'smp.db'}") == [(b"r", b"fixed", b"user")]
    assert not (tmp_path / "again.unfinished").exists()


def test_what_symbolic_links_lead_to(root: Path, tmp_path: Path) -> None:
    (root / "smp").rename(tmp_path / "disk")
    (root / "smp").symlink_to(tmp_path / "disk")
    (root / "ntf" / "server.key").rename(tmp_path / "secret")
    (root / "ntf" / "server.key").symlink_to(tmp_path / "secret")
    (root / "ntf" / "around").symlink_to(root)
    manifest = back_up(root, tmp_path / "copy", NOW)
    assert manifest.rows["smp"]["links"] == 1
    restore(tmp_path / "copy", tmp_path / "again")
    for name in ("smp/server.key", "smp/config.toml", "ntf/server.key"):
        assert (tmp_path / "again" / name).read_bytes() == (root / name).read_bytes()
    assert not (tmp_path / "again" / "ntf" / "around").exists()
    (tmp_path / "secret").unlink()
    with pytest.raises(StartError, match="leads nowhere"):
        back_up(root, tmp_path / "another", NOW)


def test_only_its_owner_can_read_it(root: Path, tmp_path: Path) -> None:
    back_up(root, tmp_path / "copy", NOW)
    restore(tmp_path / "copy", tmp_path / "again")
    for directory in (tmp_path / "copy", tmp_path / "again"):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "copy" / "stores" / "smp.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "again" / "smp" / "smp.db").stat().st_mode & 0o777 == 0o600


def test_without_journal_and_tables(root: Path, tmp_path: Path) -> None:
    back_up(root, tmp_path / "copy", NOW, routers_only=True)
    assert not any(name.startswith(("journal", "pipeline")) for name in names(tmp_path / "copy"))
    restore(tmp_path / "copy", tmp_path / "again")
    assert Layout(tmp_path / "again").journal.is_dir()


def test_a_router_that_never_ran(tmp_path: Path) -> None:
    create(tmp_path / "home", any_port=True)
    assert back_up(tmp_path / "home", tmp_path / "copy", NOW).rows == {}
    restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again" / "smp" / "smp.db").exists()


def test_postgresql(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is backed up without pg_dump, and restored to an empty database."""
    source, target = shared_postgres().new_url(), shared_postgres().new_url()
    migrate(source, SMP_MIGRATIONS)
    add_link(source)
    monkeypatch.setenv("HELIOGRAPH_SMP_STORE_URL", source)
    manifest = back_up(root, tmp_path / "copy", NOW)
    assert manifest.rows["smp"]["links"] == 1
    with pytest.raises(StartError, match="not empty"):
        restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    monkeypatch.setenv("HELIOGRAPH_SMP_STORE_URL", target)
    monkeypatch.setenv("HELIOGRAPH_NTF_STORE_URL", source)
    with pytest.raises(StartError, match="ntf cannot be restored"):
        restore(tmp_path / "copy", tmp_path / "again")
    monkeypatch.delenv("HELIOGRAPH_NTF_STORE_URL")
    restore(tmp_path / "copy", tmp_path / "again")
    assert links(target) == [(b"r", b"fixed", b"user")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smp/server.key", "not what was backed up"),
        ("stores/smp.db", "not what was backed up"),
        (MANIFEST, "cannot be read"),
    ],
)
def test_a_changed_byte_is_found(root: Path, tmp_path: Path, name: str, words: str) -> None:
    back_up(root, tmp_path / "copy", NOW)
    file = tmp_path / "copy" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if name != MANIFEST else 0] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(StartError, match=words):
        restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_missing_and_added_files(root: Path, tmp_path: Path) -> None:
    back_up(root, tmp_path / "copy", NOW)
    (tmp_path / "copy" / "config.toml").unlink()
    (tmp_path / "copy" / "stranger").touch()
    with pytest.raises(StartError) as error:
        check_backup(tmp_path / "copy")
    assert "config.toml: it is missing" in str(error.value)
    assert "stranger: it does not belong" in str(error.value)


def test_a_manifest_that_names_other_places(root: Path, tmp_path: Path) -> None:
    back_up(root, tmp_path / "copy", NOW)
    file = tmp_path / "copy" / MANIFEST
    found = json.loads(file.read_text())
    found["files"]["../stranger"] = found["files"]["config.toml"]
    file.write_text(json.dumps(found))
    with pytest.raises(StartError, match="outside"):
        restore(tmp_path / "copy", tmp_path / "again")


def test_nothing_is_overwritten(root: Path, tmp_path: Path) -> None:
    back_up(root, tmp_path / "copy", NOW)
    with pytest.raises(StartError, match="exists already"):
        back_up(root, tmp_path / "copy", NOW)
    with pytest.raises(StartError, match="in the system's directory"):
        back_up(root, root / "copy", NOW)
    with pytest.raises(StartError, match="no directory"):
        back_up(root, tmp_path / "nowhere" / "copy", NOW)
    before = names(root)
    with pytest.raises(StartError, match="exists already"):
        restore(tmp_path / "copy", root)
    assert names(root) == before
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "copy", tmp_path / "empty")


def test_a_store_elsewhere_is_not_overwritten(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    shutil.move(root / "smp" / "smp.db", elsewhere)
    monkeypatch.setenv("HELIOGRAPH_SMP_STORE_URL", f"sqlite:///{elsewhere}")
    back_up(root, tmp_path / "copy", NOW)
    with pytest.raises(StartError, match="move it away"):
        restore(tmp_path / "copy", tmp_path / "again")
    elsewhere.unlink()
    restore(tmp_path / "copy", tmp_path / "again")
    assert elsewhere.exists()


def test_not_a_system(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with pytest.raises(StartError, match="not a system's directory"):
        back_up(tmp_path / "home", tmp_path / "copy", NOW)
    with pytest.raises(StartError, match=r"is not a backup: it has no manifest\.json"):
        restore(tmp_path / "home", tmp_path / "again")
    with pytest.raises(StartError, match="is not a backup: there is no such directory"):
        restore(tmp_path / "absent", tmp_path / "again")
    (tmp_path / "home" / MANIFEST).write_text("{")
    with pytest.raises(StartError, match=r"is not a backup: its manifest\.json cannot be read"):
        restore(tmp_path / "home", tmp_path / "again")


# As an operator does it.


def heliograph(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HELIOGRAPH_")}
    command = [sys.executable, "-m", "heliograph", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=90, check=False, env=environment
    )


async def connected(root: Path) -> Peer:
    found = state.read(Layout(root).state)
    assert found is not None
    address = found.parts["smp"].address
    peer = Peer()
    peer.client = await Client.connect(decode_address(address), on_push=peer.received)
    return peer


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_running_system(tmp_path: Path) -> None:
    """A message that was accepted before the backup is received from the restored system."""
    home, copy, again = tmp_path / "home", tmp_path / "copy", tmp_path / "again"
    run = asyncio.to_thread
    up = ("--no-pipeline", "--no-simulators", "--any-port", "--detach")
    done = await run(heliograph, "up", "--dir", home, *up)
    assert done.returncode == 0, done.stderr
    try:
        peer = await connected(home)
        queue: Queue = await create_queue(peer, subscribe=False)
        assert await queue.send(peer, b"before") == OK
        done = await run(heliograph, "backup", copy, "--dir", home)
        assert done.returncode == 0, done.stderr
        assert "Backed up" in done.stdout
        assert await queue.send(peer, b"after") == OK
        await peer.close()
    finally:
        assert (await run(heliograph, "down", "--dir", home)).returncode == 0
    done = await run(heliograph, "restore", copy, "--check", "--dir", again)
    assert (done.returncode, "is whole" in done.stdout) == (0, True)
    assert not again.exists()
    done = await run(heliograph, "restore", copy, "--dir", again)
    assert done.returncode == 0, done.stderr
    done = await run(heliograph, "up", "--dir", again, "--detach")
    assert done.returncode == 0, done.stderr
    try:
        peer = await connected(again)
        assert await queue.receive_all(peer) == [b"before"]
        await peer.close()
    finally:
        assert (await run(heliograph, "down", "--dir", again)).returncode == 0
