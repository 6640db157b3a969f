"""`heliograph ntf` as an operator uses it: real processes, real sockets."""

import asyncio
import json
import shutil
import socket
import sqlite3
import stat
import subprocess
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.journal.storage.reader import read_events
from heliograph.transport.client import Client
from heliograph.transport.errors import RequestRefused
from heliograph.wire import ntf
from heliograph.wire.addresses import decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider, TokenStatus
from heliograph.wire.primitives import b64encode
from heliograph.wire.table import PING, PONG
from tests.cli.processes import TIMEOUT, Start, ready, run as run_command, starting, stop
from tests.db.postgres import shared_postgres
from tests.ntf.reference.test_ini import INI
from tests.ntf.reference.test_storelog import ID, SCREATE, TCREATE
from tests.ports import steady_port
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(240)  # commands are processes, one after the other


def run(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run_command("ntf", *arguments, **variables)


@pytest.fixture
def start() -> Iterator[Start]:
    with starting("ntf") as start:
        yield start


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ntf") / "router"
    done = run("init", "--dir", directory, "--port", 0)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def directory(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "router"))


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT) as answer:
        text: str = answer.read().decode()
        return text


async def register(address: str, provider: PushProvider = PushProvider.APNS_NULL) -> bytes:
    """The ID of a new token."""
    client = await Client.connect(decode_address(address))
    try:
        keys = generate_key_pair(Algorithm.X25519)
        token = b"test_ntf_token" if provider is PushProvider.APNS_NULL else b"00ff"
        new = ntf.TNEW(APNSDeviceToken(provider, token), keys.public, keys.public)
        answer = await client.request(new, b"", keys.private)
        token_id: bytes = answer.token_id
        if provider is PushProvider.APNS_NULL:
            async with asyncio.timeout(TIMEOUT):
                checked = ntf.TKN(TokenStatus.CONFIRMED)
                while await client.request(ntf.TCHK(), token_id, keys.private) != checked:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return token_id
    finally:
        await client.close()


def test_init_says_what_it_made_and_what_is_next(tmp_path: Path) -> None:
    directory = tmp_path / "router"
    done = run("init", "--dir", directory, "--host", "ntf.example.com", "--port", 5224)
    assert done.returncode == 0, done.stderr
    fingerprint = (directory / "fingerprint").read_text().strip()
    address = f"ntf://{fingerprint}@ntf.example.com:5224"
    for words in (address, "ca.key off this machine", "vapid.key", "heliograph ntf start --dir"):
        assert words in done.stdout
    config = tomllib.loads((directory / "config.toml").read_text())
    assert config["listen"] == {"host": "ntf.example.com", "port": 5224}
    assert config["network"] == {"allow_private": False}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert run("address", "--dir", directory).stdout == f"{address}\n"
    again = run("init", "--dir", directory)
    assert (again.returncode, "already" in again.stderr) == (1, True)


def test_init_on_the_loopback_allows_neighbours(directory: Path) -> None:
    assert tomllib.loads((directory / "config.toml").read_text())["network"]["allow_private"]
    done = run("check-config", "--dir", directory)
    assert "network.allow_private = true" in done.stdout
    assert done.returncode == 0


async def test_start_serve_probe_and_stop(directory: Path, start: Start) -> None:
    process = start("--dir", directory)
    address = ready(process)
    client = await Client.connect(decode_address(address))
    assert await client.request(PING()) == PONG()
    assert run("address", "--dir", directory).stdout == f"{address}\n"
    probed = run("probe", "--dir", directory)
    assert probed.returncode == 0, probed.stdout
    assert probed.stdout.count(" ms  ok\n") == 6
    await client.close()
    code, out, err = await asyncio.to_thread(stop, process)
    assert (code, out) == (0, "")
    assert "stopped" in err
    for name in ("ntf.db", "lock", "stats.json"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    probed = run("probe", "--address", address)
    assert probed.returncode == 1
    assert "connect" in probed.stdout
    assert "FAILED" in probed.stdout


def test_maintenance_brings_the_store_up_to_date_and_exits(directory: Path, start: Start) -> None:
    """Seed 001, behaviour 12."""
    done = run("start", "--dir", directory, "--maintenance")
    assert (done.returncode, done.stdout) == (0, "The store is up to date.\n")
    with sqlite3.connect(directory / "ntf.db") as store:
        assert store.execute("SELECT COUNT(*) FROM tokens").fetchone() == (0,)
    store.close()
    assert stat.S_IMODE((directory / "ntf.db").stat().st_mode) == 0o600
    process = start("--dir", directory)
    ready(process)
    done = run("start", "--dir", directory, "--maintenance")
    assert done.returncode == 1
    assert f"runs already (process {process.pid})" in done.stderr
    assert stop(process)[0] == 0


async def test_test_tokens_are_refused_unless_allowed(directory: Path, start: Start) -> None:
    process = start("--dir", directory)
    with pytest.raises(RequestRefused, match="CMD PROHIBITED"):
        await register(ready(process), PushProvider.APNS_TEST)
    assert stop(process)[0] == 0
    variables = {
        f"HELIOGRAPH_NTF_PUSH_APNS_{key}": value
        for key, value in {
            "KEY_FILE": "vapid.key",  # of the right kind
            "KEY_ID": "i",
            "TEAM_ID": "t",
            "TOPIC": "o",
            "TEST_URL": f"https://127.0.0.1:{steady_port()}",
            "ALLOW_TEST_TOKENS": "true",
        }.items()
    }
    process = start("--dir", directory, **variables)
    token_id = await register(ready(process), PushProvider.APNS_TEST)

    async def text() -> str:
        traced = run("trace", "--dir", directory, "--", b64encode(token_id))
        assert traced.returncode == 0, traced.stderr
        return traced.stdout

    async def is_tried() -> bool:
        return "next attempt" in await text()

    await eventually(is_tried)
    for words in ("REGISTERED", "apns_test", "a verification push"):
        assert words in await text()
    assert "00ff" not in await text()
    assert stop(process)[0] == 0
    traced = json.loads(
        run("trace", "--dir", directory, "--json", "--", b64encode(token_id)).stdout
    )
    assert [push["kind"] for push in traced["pending_pushes"]] == ["verification"]


async def test_trace_backup_export_while_it_runs(
    directory: Path, start: Start, tmp_path: Path
) -> None:
    for command, what in (("trace", ID), ("backup", tmp_path / "b"), ("export", tmp_path / "e")):
        done = run(command, what, "--dir", directory)
        assert (done.returncode, "no store yet" in done.stderr) == (1, True)
    assert not (directory / "ntf.db").exists()
    process = start("--dir", directory)
    address = ready(process)
    token_id = await register(address)
    name = b64encode(token_id)
    assert "CONFIRMED" in run("trace", "--dir", directory, "--", name).stdout
    assert "no such token" in run("trace", ID, "--dir", directory).stderr
    assert "base64url" in run("trace", "?", "--dir", directory).stderr
    dashed = b64encode(b"\xfb" * 24)  # begins with a dash
    assert "no such token" in run("trace", "--dir", directory, "--", dashed).stderr
    done = run("backup", tmp_path / "copy.db", "--dir", directory)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "copy.db") as store:
        assert store.execute("SELECT token_id FROM tokens").fetchall() == [(token_id,)]
    store.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    done = run("backup", tmp_path / "nowhere" / "copy.db", "--dir", directory)
    assert done.returncode == 1
    assert f"no directory {tmp_path / 'nowhere'}: create it first" in done.stderr
    done = run("export", tmp_path / "log", "--dir", directory)
    assert done.stdout == "Exported 1 tokens, 0 subscriptions and 0 last notifications.\n"
    assert (tmp_path / "log").read_text().startswith(f"TCREATE tknId={name} token=apns_null ")
    for command in ("backup", "export"):
        assert "exists already" in run(command, tmp_path / "log", "--dir", directory).stderr
    done = run("import", tmp_path / "log", "--dir", directory)
    assert (done.returncode, "runs already" in done.stderr) == (1, True)
    assert stop(process)[0] == 0


def test_import(directory: Path, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "ntf-server-store.log"
    log.write_text(f"{TCREATE}\n{SCREATE}\nrubbish\n")
    done = run("import", log, "--dir", directory)
    assert done.returncode == 1
    assert f"{log}: line 3: not a record" in done.stderr
    assert "nothing was imported" in done.stderr
    assert not (directory / "import-unfinished").exists()
    done = run("import", log, "--dir", directory, "--skip-bad")
    assert done.stdout == (
        "Imported 2 lines.\nThe store has: tokens 1, subscriptions 1.\n"
        "Skipped 1 lines that cannot be read.\n"
    )
    assert "ACTIVE" in run("trace", ID, "--dir", directory).stdout
    done = run("import", tmp_path / "absent", "--dir", directory)
    assert (done.returncode, "No such file" in done.stderr) == (1, True)


def test_an_interrupted_import_is_finished_before_the_router_starts(
    directory: Path, start: Start, tmp_path: Path
) -> None:
    (directory / "import-unfinished").touch()
    for option in ((), ("--maintenance",)):
        done = run("start", "--dir", directory, *option)
        assert (done.returncode, done.stdout) == (1, "")
        assert "run `heliograph ntf import` again" in done.stderr
    (tmp_path / "log").write_text(f"{TCREATE}\n")
    assert run("import", tmp_path / "log", "--dir", directory).returncode == 0
    process = start("--dir", directory)
    ready(process)
    assert stop(process)[0] == 0


def test_import_ini(template: Path, tmp_path: Path, start: Start) -> None:
    directory = tmp_path / "moved"
    (tmp_path / "ntf-server.ini").write_text(INI)
    done = run("import-ini", tmp_path / "ntf-server.ini", "--dir", directory)
    assert done.returncode == 0, done.stderr
    assert "[STORE_LOG] db_connection" in done.stdout
    assert "Copy the reference's ca.crt, server.key, server.crt, fingerprint" in done.stdout
    assert "hunter2" not in done.stdout
    assert stat.S_IMODE((directory / "config.toml").stat().st_mode) == 0o600
    for name in ("ca.crt", "server.key", "server.crt", "fingerprint"):
        shutil.copy(template / name, directory)
    assert run("check-config", "--dir", directory).returncode == 0
    process = start("--dir", directory, "--host", "localhost", "--port", 0)
    ready(process)
    assert stop(process)[0] == 0
    again = run("import-ini", tmp_path / "ntf-server.ini", "--dir", directory)
    assert (again.returncode, "exists already" in again.stderr) == (1, True)


def test_a_bad_ini_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "ini").write_text("[AUTH]\ncontrol_port_admin_password = two words\n")
    done = run("import-ini", tmp_path / "ini", "--dir", tmp_path / "moved")
    assert (done.returncode, "[control] admin_password" in done.stderr) == (1, True)
    assert not any((tmp_path / "moved").iterdir())
    (tmp_path / "ini").write_text("[TRANSPORT]\nport = many\n")
    done = run("import-ini", tmp_path / "ini", "--dir", tmp_path / "moved")
    assert "[TRANSPORT] port: must be a whole number" in done.stderr
    assert run("import-ini", tmp_path / "absent", "--dir", tmp_path / "moved").returncode == 1


def test_vapid_key(directory: Path) -> None:
    done = run("vapid-key", "--dir", directory)
    address = run("address", "--dir", directory).stdout.strip()
    with_key = run("address", "--dir", directory, "--vapid").stdout
    assert with_key == f"{address}/?vapid={done.stdout}"
    with_code = run("address", "--dir", directory, "--vapid", "--qr").stdout
    assert with_code.startswith(with_key)
    assert "\u2580" in with_code.removeprefix(with_key), "a QR code of half blocks"
    assert (done.returncode, len(done.stdout.strip())) == (0, 87)
    (directory / "vapid.key").unlink()
    assert run("vapid-key", "--dir", directory).returncode == 1
    assert run("vapid-key", "--dir", directory, "--make").stdout != done.stdout


def test_rotate_certificate(directory: Path, tmp_path: Path) -> None:
    address = run("address", "--dir", directory).stdout
    before = (directory / "server.crt").read_bytes()
    (directory / "ca.key").rename(tmp_path / "offline.key")
    missing = run("rotate-certificate", "--dir", directory)
    assert missing.returncode == 1
    for words in ("ca.key is missing", "kept elsewhere", "--ca-key PATH"):
        assert words in missing.stderr
    assert (directory / "server.crt").read_bytes() == before
    done = run("rotate-certificate", "--dir", directory, "--ca-key", tmp_path / "offline.key")
    assert done.returncode == 0, done.stderr
    assert (directory / "server.crt").read_bytes() != before
    assert run("address", "--dir", directory).stdout == address


@pytest.mark.parametrize("command", ["start", "check-config", "address", "probe", "vapid-key"])
def test_broken_config(directory: Path, command: str) -> None:
    (directory / "config.toml").write_text(
        '[listen]\nprt = 1\n[push.apns]\nkey_file = "k"\n[store]\nurl = "mysql://u:hunter2@h"\n'
    )
    done = run(command, "--dir", directory)
    assert (done.returncode, done.stdout) == (1, "")
    for words in ("did you mean port?", "[push.apns] key_id", "[store] url"):
        assert words in done.stderr
    assert "hunter2" not in done.stderr


def test_check_config_looks_at_files_too(directory: Path) -> None:
    (directory / "config.toml").write_text(
        '[push.fcm]\nservice_account_file = "absent"\n[control]\nuser_password_file = "absent"\n'
        '[actions]\ntable = "actions"\n[snapshots]\npath = "snapshots"\nkey_file = "absent"\n'
    )
    (directory / "server.key").unlink()
    done = run("check-config", "--dir", directory)
    assert done.returncode == 1
    for words in (
        *("service_account_file", "user_password_file", "server.key is missing"),
        *("[actions] table: needs [journal] path", "openssl rand -hex"),
    ):
        assert words in done.stderr


def test_check_config_refuses_workers_on_sqlite(directory: Path) -> None:
    """As `start` does."""
    (directory / "config.toml").write_text('[processes]\nworkers = "auto"\n')
    done = run("check-config", "--dir", directory)
    assert done.returncode == 1
    assert "SQLite is for one process" in done.stderr
    url = "postgresql://ntf@127.0.0.1:1/ntf"
    done = run("check-config", "--dir", directory, HELIOGRAPH_NTF_STORE_URL=url)
    assert done.returncode == 0, done.stderr


def test_workers_are_checked_before_a_restart(directory: Path) -> None:
    """As the supervisor does at SIGHUP, whether an option or the file asked for workers."""
    check = ("start", "--dir", directory, "--worker", "0", "--check")
    done = run(*check)
    assert done.returncode == 1
    assert "SQLite is for one process" in done.stderr
    url = "postgresql://ntf@127.0.0.1:1/ntf"
    assert run(*check, HELIOGRAPH_NTF_STORE_URL=url).returncode == 0
    (directory / "config.toml").write_text("[listen]\nprt = 1\n")
    done = run(*check, HELIOGRAPH_NTF_STORE_URL=url)
    assert done.returncode == 1
    assert "did you mean port?" in done.stderr


def test_what_changes_a_store_is_refused_while_a_router_uses_it(
    directory: Path, tmp_path: Path, start: Start
) -> None:
    """From a copy of the directory, too, as on another machine: what it does would be lost."""
    other = tmp_path / "other"
    shutil.copytree(directory, other)
    environ = {"HELIOGRAPH_NTF_STORE_URL": shared_postgres().new_url()}
    assert run("start", "--maintenance", "--dir", directory, **environ).returncode == 0
    ready(start("--dir", directory, "--workers", 1, **environ))
    (tmp_path / "log").touch()
    for command in (
        ("start", "--maintenance"),
        ("import", tmp_path / "log"),
        ("copy-store", "--to", f"sqlite:///{tmp_path}/copy.db"),
    ):
        done = run(*command, "--dir", other, **environ)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert "another router uses this database" in done.stderr


def test_no_router_there(tmp_path: Path) -> None:
    for command in ("start", "check-config", "address", "probe"):
        done = run(command, "--dir", tmp_path / "absent")
        assert (done.returncode, done.stdout) == (1, "")
        assert "heliograph ntf init --dir" in done.stderr


async def test_operators_see_inside(directory: Path, start: Start) -> None:
    http, control = steady_port(), steady_port()
    process = start(
        "--dir",
        directory,
        HELIOGRAPH_NTF_METRICS_PORT=str(http),
        HELIOGRAPH_NTF_CONTROL_PORT=str(control),
        HELIOGRAPH_NTF_CONTROL_ADMIN_PASSWORD="hunter2",
        HELIOGRAPH_NTF_JOURNAL_PATH="journal",
        HELIOGRAPH_NTF_LOG_FORMAT="json",
        HELIOGRAPH_NTF_STATS_LOG_FILE="stats.csv",
        HELIOGRAPH_NTF_STATS_LOG_INTERVAL_SECONDS="1",
    )
    address = ready(process)
    assert fetch(http, "/readyz") == "ok\n"
    assert "simplex_ntf_tokens_created 0\n" in fetch(http, "/metrics")
    with socket.create_connection(("127.0.0.1", control), TIMEOUT) as sock:
        sock.sendall(b"auth hunter2\nstats\nquit\n")
        with sock.makefile() as lines:
            assert "Current role is CPRAdmin" in lines.read()
    await register(address)
    code, out, err = stop(process)
    assert code == 0
    assert "hunter2" not in out + err
    assert all(json.loads(line) for line in err.splitlines())
    events = list(read_events(directory / "journal"))
    kinds = {event["kind"] for event in events}
    assert {"router_started", "token_registered", "router_stopped"} <= kinds
    assert "test_ntf_token" not in str(events)


def test_statistics_survive_a_restart(directory: Path, start: Start) -> None:
    saved = {"since": 0, "before": {}, "stats": {"counters": {"ntf_received": 41}}}
    saved["stats"] |= {"active_tokens": {}, "active_subs": {}}  # type: ignore[operator]
    (directory / "stats.json").write_text(json.dumps(saved))
    port = steady_port()
    process = start("--dir", directory, HELIOGRAPH_NTF_METRICS_PORT=str(port))
    ready(process)
    assert "simplex_ntf_notifications_received 41\n" in fetch(port, "/metrics")
    assert stop(process)[0] == 0
    kept = json.loads((directory / "stats.json").read_text())
    assert kept["stats"]["counters"]["ntf_received"] == 41


def test_help_teaches() -> None:
    assert "heliograph ntf init --host" in run("--help").stdout
    assert "ready ntf://FINGERPRINT@HOST:PORT" in run("start", "--help").stdout
