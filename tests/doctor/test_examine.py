"""Each finding of `heliograph doctor`, on real directories, stores, sockets and simulators."""

import json
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.cli.main import main
from heliograph.crypto.p256 import P256Key
from heliograph.db.database import migrate
from heliograph.db.dialects import open_dialect
from heliograph.doctor import store
from heliograph.doctor.examine import Examination, examine
from heliograph.doctor.files import judge_disk
from heliograph.doctor.findings import Finding, Level
from heliograph.doctor.subject import Thresholds, find_directories
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.pipeline.tables.offsets import METADATA, Offsets, encode, write_account
from heliograph.runtime.identity import rotate_leaf
from heliograph.runtime.reference.storelog import UnfinishedImport
from heliograph.sim.providers.apns import ApnsRules, ApnsService
from heliograph.sim.providers.script import Script, ScriptRule
from heliograph.sim.providers.simulator import Simulator
from heliograph.wire.primitives import b64encode
from tests.db.postgres import shared_postgres
from tests.smp.support import World, a_world

OFFLINE = Examination(network=False, environ={})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two routers as `init` leaves them, once their operator has moved ca.key away."""
    home = tmp_path_factory.mktemp("home")
    for part in ("smp", "ntf"):
        assert main([part, "init", "--dir", str(home / part), "--port", "0"]) == 0
        (home / part / "ca.key").rename(home / f"{part}-ca.key")
    return home


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "home"))


@pytest.fixture
def ntf(home: Path) -> Path:
    return home / "ntf"


async def findings(
    directory: Path, how: Examination = OFFLINE, environ: Mapping[str, str] | None = None
) -> list[Finding]:
    if environ is not None:
        how = replace(how, environ=environ)
    return [finding async for finding in examine(directory, how)]


def bad(found: list[Finding]) -> list[Finding]:
    """What an operator must do something about, and each says what."""
    worst = [item for item in found if item.level in (Level.WARNING, Level.PROBLEM)]
    assert all(item.advice for item in worst)
    return worst


async def the_one(directory: Path, level: Level, *words: str, **options: object) -> Finding:
    """The only thing that is wrong."""
    found = bad(await findings(directory, **options))  # type: ignore[arg-type]
    assert len(found) == 1, found
    assert found[0].level is level, found
    for text in words:
        assert text in f"{found[0].text} -> {found[0].advice}"
    return found[0]


@pytest.mark.parametrize("part", ["smp", "ntf"])
async def test_nothing_is_wrong(home: Path, part: str) -> None:
    found = await findings(home / part)
    assert not bad(found)
    checks = {item.check for item in found if item.level is Level.OK}
    assert {"config", "certificate", "permissions", "disk"} <= checks
    title = {"smp": "messaging router", "ntf": "notification router"}[part]
    assert title in found[0].text


# Configuration.


async def test_no_directory_and_no_configuration(tmp_path: Path) -> None:
    words = ("no config.toml", "heliograph ntf init")
    found = await the_one(tmp_path / "absent", Level.PROBLEM, *words)
    assert "--dir" in found.advice, "there is no file to correct it in"


async def test_every_mistake_in_the_configuration(ntf: Path) -> None:
    (ntf / "config.toml").write_text('[listen]\nprt = 1\n[push.apns]\nkey_file = "k"\n')
    found = bad(await findings(ntf))
    texts = "\n".join(f"{item.text} {item.advice}" for item in found)
    assert {item.check for item in found} == {"config"}
    for words in ("did you mean port?", "key_id", "team_id", "topic"):
        assert words in texts


async def test_which_router_it_is(home: Path, tmp_path: Path) -> None:
    for part in ("smp", "ntf"):
        (home / part / "config.toml").write_text("[listen]\nport = 0\n")
        assert (await findings(home / part))[0].level is Level.OK
    moved = (home / "ntf").rename(tmp_path / "elsewhere")
    await the_one(moved, Level.PROBLEM, "cannot determine which router")


@pytest.mark.parametrize("key", ["password_file", "admin_password_file"])
async def test_a_password_file_that_is_missing(home: Path, key: str) -> None:
    text = (home / "smp" / "config.toml").read_text()
    changed = text.replace(f'# {key} = ""', f'{key} = "absent"', 1)
    assert changed != text
    (home / "smp" / "config.toml").write_text(changed)
    await the_one(home / "smp", Level.PROBLEM, key, "absent")


@pytest.mark.parametrize("key", ["password_file", "user_password_file"])
async def test_a_password_file_that_others_can_read(home: Path, key: str) -> None:
    file = home / "smp" / "config.toml"
    file.write_text(file.read_text().replace(f'# {key} = ""', f'{key} = "secret"', 1))
    (home / "smp" / "secret").write_text("hunter2")
    (home / "smp" / "secret").chmod(0o644)
    await the_one(home / "smp", Level.PROBLEM, "secret can be read by others", "chmod 600")


async def test_settings_in_the_environment_count(ntf: Path) -> None:
    variables = {"HELIOGRAPH_NTF_LISTEN_PORT": "many"}
    await the_one(ntf, Level.PROBLEM, "HELIOGRAPH_NTF_LISTEN_PORT", environ=variables)


async def test_no_secret_is_printed(ntf: Path) -> None:
    """Whatever is wrong with it."""
    variables = {
        "HELIOGRAPH_NTF_STORE_URL": "postgresql://u:hunter2@127.0.0.1:1/db",
        "HELIOGRAPH_NTF_CONTROL_ADMIN_PASSWORD": "hunter2",
        "HELIOGRAPH_NTF_NETWORK_SOCKS_PROXY": "u:hunter2@127.0.0.1:1",
    }
    key = (ntf / "server.key").read_text().splitlines()[1]
    for changed in ({}, {"HELIOGRAPH_NTF_CONTROL_ADMIN_PASSWORD": "hunter2 hunter2"}):
        found = await findings(ntf, Examination(environ={}), {**variables, **changed})
        assert bad(found)
        assert "hunter2" not in str(found)
        assert key not in str(found)


def test_directories_with_routers_in_them(home: Path) -> None:
    assert list(find_directories(home)) == [home / "smp", home / "ntf"]
    assert list(find_directories(home / "smp")) == [home / "smp"]


# Keys and certificates.


async def test_the_authoritys_key_is_here(home: Path) -> None:
    shutil.copy(home / "ntf-ca.key", home / "ntf" / "ca.key")
    await the_one(home / "ntf", Level.WARNING, "ca.key is on this machine", "move it")


async def test_keys_that_do_not_belong_together(home: Path) -> None:
    shutil.copy(home / "smp" / "server.key", home / "ntf")
    await the_one(home / "ntf", Level.PROBLEM, "do not belong together", "restore all three")


async def test_a_certificate_that_runs_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = (home / "ntf", "localhost", time.time(), home / "ntf-ca.key")
    with monkeypatch.context() as patch:
        patch.setattr("heliograph.crypto.certificates.VALIDITY", timedelta(days=10))
        rotate_leaf(*rotate)
    await the_one(home / "ntf", Level.WARNING, "expires on", "rotate-certificate")
    rotate_leaf(*rotate)
    assert not bad(await findings(home / "ntf"))


async def test_an_interrupted_rotation(ntf: Path) -> None:
    (ntf / "server.crt").rename(ntf / "server.crt.new")
    shutil.copy(ntf / "ca.crt", ntf / "server.crt")
    await the_one(ntf, Level.WARNING, "interrupted", "rotate-certificate")


# Permissions, clock, disk.


@pytest.mark.parametrize("name", ["server.key", "vapid.key", "config.toml"])
async def test_a_secret_that_others_can_read(ntf: Path, name: str) -> None:
    (ntf / name).chmod(0o644)
    await the_one(ntf, Level.PROBLEM, f"{name} can be read by others (mode 644)", "chmod 600")


@pytest.mark.parametrize(("mode", "level"), [(0o770, Level.PROBLEM), (0o755, Level.WARNING)])
async def test_an_open_directory(ntf: Path, mode: int, level: Level) -> None:
    os.chmod(ntf, mode)
    await the_one(ntf, level, "by others", f"chmod 700 {ntf}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_file_of_another_user(ntf: Path) -> None:
    os.chown(ntf / "server.key", 65534, 65534)
    await the_one(ntf, Level.PROBLEM, "belongs to another user", "chown --reference")


async def test_files_from_the_future(ntf: Path) -> None:
    later = time.time() + 86_400
    os.utime(ntf / "fingerprint", (later, later))
    await the_one(ntf, Level.PROBLEM, "written in the future", "set the clock")


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [
        (1000, 10_000, Level.OK),
        (999, 10_000, Level.WARNING),
        (199, 10_000, Level.PROBLEM),
        (9999, 999, Level.PROBLEM),
    ],
)
def test_judging_a_disk(free: int, inodes: int, level: Level) -> None:
    found = judge_disk("the store", free, inodes, 100_000, 1000)
    assert found.level is level
    assert bool(found.advice) is (level is not Level.OK)


async def test_a_disk_that_is_full(ntf: Path) -> None:
    everything = Examination(network=False, environ={}, thresholds=Thresholds(free=1 << 60))
    await the_one(ntf, Level.PROBLEM, "MB of free space", "old backups", how=everything)


async def test_a_place_for_the_store_that_is_missing(ntf: Path) -> None:
    variables = {"HELIOGRAPH_NTF_STORE_URL": "sqlite:///missing/ntf.db"}
    await the_one(ntf, Level.PROBLEM, "does not exist", "mkdir -p", environ=variables)


# The store.


async def test_a_store_of_this_version_and_of_others(ntf: Path) -> None:
    url = f"sqlite:///{ntf}/ntf.db"
    migrate(url, ())
    (ntf / "ntf.db").chmod(0o600)
    found = [item for item in await findings(ntf) if item.check == "store"]
    assert [item.level for item in found] == [Level.NOTE]
    assert "--maintenance" in found[0].advice
    migrate(url, MIGRATIONS)
    found = [item for item in await findings(ntf) if item.check in ("store", "pushes")]
    assert [item.level for item in found] == [Level.OK, Level.OK]
    with sqlite3.connect(ntf / "ntf.db") as connection:
        connection.execute("INSERT INTO migrations VALUES ('9999_later', 0)")
    connection.close()
    await the_one(ntf, Level.PROBLEM, "later version", "upgrade")


async def test_a_damaged_store(ntf: Path) -> None:
    migrate(f"sqlite:///{ntf}/ntf.db", MIGRATIONS)
    (ntf / "ntf.db").chmod(0o600)
    with (ntf / "ntf.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20_000)
    found = bad(await findings(ntf))
    assert {item.check for item in found} == {"store"}
    assert "restore the last backup" in found[0].advice


async def test_a_postgresql_that_is_there_and_one_that_is_not(ntf: Path) -> None:
    url = shared_postgres().new_url()
    migrate(url, MIGRATIONS)
    found = await findings(ntf, environ={"HELIOGRAPH_NTF_STORE_URL": url})
    assert not bad(found)
    absent = f"postgresql://u:hunter2@/postgres?host={quote(str(ntf), safe='')}"
    wrong = await the_one(
        ntf,
        Level.PROBLEM,
        "cannot be reached",
        "start PostgreSQL",
        environ={"HELIOGRAPH_NTF_STORE_URL": absent},
    )
    assert "hunter2" not in str(wrong)


async def test_a_store_url_with_a_mistake(ntf: Path) -> None:
    wrong = await the_one(
        ntf,
        Level.PROBLEM,
        "cannot be understood",
        "correct [store] url",
        environ={"HELIOGRAPH_NTF_STORE_URL": "postgresql://u:hunter%@127.0.0.1/db"},
    )
    assert "hunter" not in str(wrong)


async def test_the_clock_of_postgresql(ntf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = shared_postgres().new_url()
    migrate(url, MIGRATIONS)
    environ = {"HELIOGRAPH_NTF_STORE_URL": url}
    assert not bad(await findings(ntf, environ=environ))
    ahead = SimpleNamespace(time=lambda: time.time() + 3600)
    monkeypatch.setattr(store, "time", ahead)
    await the_one(ntf, Level.PROBLEM, "it differs by 36", environ=environ)


async def test_pushes_that_are_late(ntf: Path) -> None:
    url = f"sqlite:///{ntf}/ntf.db"
    migrate(url, MIGRATIONS)
    (ntf / "ntf.db").chmod(0o600)
    dialect = open_dialect(url)
    since = int((time.time() - 3600) * 1000)
    dialect.execute(
        "INSERT INTO pending_pushes VALUES (?, 'message', 'apns_test', 1, ?, 3, 0, 0, NULL)",
        (b"t", since),
    )
    dialect.close()
    await the_one(ntf, Level.WARNING, "1 pending, the oldest for 36", "Pushes are late")


async def test_an_unfinished_import(ntf: Path) -> None:

    UnfinishedImport(ntf).mark()
    await the_one(ntf, Level.PROBLEM, "import was interrupted", "import FILE")


# The journal and the pipeline.


JOURNAL = {"HELIOGRAPH_NTF_JOURNAL_PATH": "journal"}


def segments(home: Path, *numbers: int, age: float = 0.0) -> None:
    """As a router seals them."""
    folder = home / "ntf" / "journal" / "router"
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        file = folder / f"1-{number}.parquet"
        file.write_bytes(b"PAR1")
        os.utime(file, (time.time() - age, time.time() - age))


def commit(home: Path, **fields: Any) -> None:
    """Write offsets as a Delta commit has them."""
    info = {"commitInfo": {METADATA: encode(Offsets(batch=1, **fields))}}
    log = home / "tables" / "events" / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{1:020}.json").write_text(json.dumps(info))


async def of_pipeline(home: Path, how: Examination = OFFLINE) -> list[Finding]:
    found = await findings(home / "ntf", how, JOURNAL)
    return [item for item in found if item.check in ("journal", "pipeline")]


async def test_no_journal(ntf: Path) -> None:
    [found] = [item for item in await findings(ntf) if item.check == "journal"]
    assert found.level is Level.NOTE
    assert "[journal] path" in found.advice


async def test_a_journal_without_a_pipeline(home: Path) -> None:
    [found] = await of_pipeline(home)
    assert "not there yet" in found.text
    segments(home, 1, age=9999)
    [found] = await of_pipeline(home)
    assert found.level is Level.OK


async def test_a_pipeline_that_keeps_up_and_one_that_does_not(home: Path) -> None:
    segments(home, 1, 2, age=9999)
    commit(home, segments={"router/1": ((1, 2),)})
    assert [item.level for item in await of_pipeline(home)] == [Level.OK, Level.OK]
    segments(home, 3, age=9999)
    words = ("1 segments wait", "heliograph pipeline status")
    late = await the_one(home / "ntf", Level.WARNING, *words, environ=JOURNAL)
    assert late.check == "pipeline"
    moved = (home / "tables").rename(home / "elsewhere")
    assert len(await of_pipeline(home)) == 1
    assert len(await of_pipeline(home, replace(OFFLINE, tables=moved))) == 2


async def test_what_the_ledger_says(home: Path) -> None:
    segments(home, 1)
    commit(home)
    write_account(home / "tables", {"at": 0, "outcomes": {"accepted": 9, "unaccounted": 2}})
    words = ("2 notifications are unaccounted for", "pipeline once")
    await the_one(home / "ntf", Level.PROBLEM, *words, environ=JOURNAL)
    write_account(home / "tables", {})
    commit(home, counts={"quarantined": 3})
    await the_one(home / "ntf", Level.WARNING, "3 events or files", environ=JOURNAL)
    log = home / "tables" / "events" / "_delta_log"
    (log / f"{1:020}.json").write_text("rubbish")
    await the_one(home / "ntf", Level.PROBLEM, "cannot be read", environ=JOURNAL)


def test_a_directory_that_may_not_be_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is examined all the same, which says so."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert list(find_directories(home)) == [home / "smp", home / "ntf"]


async def test_what_is_in_quarantine(home: Path) -> None:
    """Files as a whole are distinguished from single events, though they are counted together."""
    segments(home, 1)
    commit(home)
    event = {"event_id": "ab", "reason": "unknown kind", "raw": "{}"}
    file = {"event_id": "r/1-1.parquet", "reason": "not a Parquet file", "raw": None}

    def quarantine(rows: list[dict[str, Any]], count: int) -> None:
        folder = home / "tables" / "quarantine" / "00000001-a"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")
        commit(home, counts={"quarantined": count})

    quarantine([file], 1)
    words = ("1 files of the journal cannot be read", "r/1-1.parquet (not a Parquet file)")
    await the_one(home / "ntf", Level.WARNING, *words, environ=JOURNAL)
    quarantine([event, file], 3)
    reported = [item.text for item in bad(await of_pipeline(home))]
    assert len(reported) == 2
    assert reported[1] == "2 events are in quarantine: they do not fit the schema: unknown kind"
    (home / "tables" / "quarantine" / "00000001-a" / "part.parquet").unlink()
    await the_one(home / "ntf", Level.WARNING, "3 events or files", environ=JOURNAL)


# Push providers.


def apns(directory: Path, **changes: str) -> dict[str, str]:
    (directory / "apns.p8").write_bytes(P256Key.generate().to_pem())
    (directory / "apns.p8").chmod(0o600)
    settings = {
        "KEY_FILE": "apns.p8",
        "KEY_ID": "TESTKEYID1",
        "TEAM_ID": "5NN7GUYB6T",
        "TOPIC": "chat.simplex.app",
    }
    return {
        f"HELIOGRAPH_NTF_PUSH_APNS_{key}": value for key, value in {**settings, **changes}.items()
    }


async def test_a_good_apns_key(ntf: Path) -> None:
    found = await findings(ntf, environ=apns(ntf))
    assert not bad(found)
    assert any("their keys can sign: apns_dev, apns_prod, webpush" in item.text for item in found)


async def test_a_bad_apns_key(ntf: Path) -> None:
    variables = apns(ntf)
    (ntf / "apns.p8").write_text("rubbish")
    await the_one(ntf, Level.PROBLEM, "[push.apns] key_file", environ=variables)


async def test_a_missing_service_account(ntf: Path) -> None:
    variables = {"HELIOGRAPH_NTF_PUSH_FCM_SERVICE_ACCOUNT_FILE": "absent.json"}
    await the_one(ntf, Level.PROBLEM, "[push.fcm]", "absent.json", environ=variables)


async def test_ids_that_are_not_apples(ntf: Path) -> None:
    await the_one(ntf, Level.WARNING, 'key_id = "x"', environ=apns(ntf, KEY_ID="x"))


async def test_no_provider(ntf: Path) -> None:
    variables = {"HELIOGRAPH_NTF_PUSH_WEBPUSH_ENABLED": "false"}
    await the_one(ntf, Level.PROBLEM, "none is configured", environ=variables)
    (ntf / "vapid.key").unlink()
    await the_one(ntf, Level.PROBLEM, "none is configured")


@pytest.fixture
async def simulator(ntf: Path, tmp_path: Path) -> AsyncIterator[tuple[Simulator, dict[str, str]]]:
    """An APNs that takes pushes of our key, and the settings that send all of them there."""
    variables = apns(ntf)
    key = P256Key.from_pem((ntf / "apns.p8").read_bytes())
    rules = ApnsRules("chat.simplex.app", "TESTKEYID1", "5NN7GUYB6T")
    running = Simulator(ApnsService(key, rules), tmp_path)
    await running.start()
    variables |= {
        "HELIOGRAPH_NTF_PUSH_APNS_URL": running.url,
        "HELIOGRAPH_NTF_PUSH_APNS_SANDBOX_URL": running.url,
        "HELIOGRAPH_NTF_PUSH_APNS_CA_FILE": str(running.authority.file),
    }
    yield running, variables
    await running.close()


async def online(ntf: Path, variables: dict[str, str]) -> list[Finding]:
    how = Examination(online=True, environ=variables)
    return [item for item in await findings(ntf, how) if item.check == "push providers"]


async def test_providers_that_take_our_credentials(
    ntf: Path, simulator: tuple[Simulator, dict[str, str]]
) -> None:
    running, variables = simulator
    running.set_script(Script([ScriptRule(status=400, reason="BadDeviceToken")]))
    found = await online(ntf, variables)
    assert not bad(found)
    assert sum("accepts our credentials" in item.text for item in found) == 2
    assert {entry.token for entry in running.record.select()} == {"00" * 32}


async def test_providers_that_do_not(
    ntf: Path, simulator: tuple[Simulator, dict[str, str]]
) -> None:
    running, variables = simulator
    found = bad(await online(ntf, {**variables, "HELIOGRAPH_NTF_PUSH_APNS_KEY_ID": "ABCDEFGHI9"}))
    assert {item.level for item in found} == {Level.PROBLEM}
    assert all("InvalidProviderToken" in item.text for item in found)
    assert "clock" in found[0].advice
    running.set_script(Script([ScriptRule(status=503)]))
    assert {item.level for item in bad(await online(ntf, variables))} == {Level.WARNING}
    await running.close()
    found = bad(await online(ntf, variables))
    assert all("cannot be reached" in item.text for item in found)
    assert {item.level for item in found} == {Level.PROBLEM}


# The network.


async def test_a_port_that_another_program_has(ntf: Path) -> None:
    how = Examination(environ={})
    with socket.create_server(("127.0.0.1", 0)) as other:
        variables = {"HELIOGRAPH_NTF_LISTEN_PORT": str(other.getsockname()[1])}
        await the_one(ntf, Level.PROBLEM, "taken by another program", how=how, environ=variables)
    found = await findings(ntf, how, variables)
    assert any(item.check == "running" and item.level is Level.NOTE for item in found)


@pytest.mark.parametrize(
    ("host", "words"),
    [("0.0.0.0", "no address that clients"), ("no.such.invalid", "cannot be resolved")],
)
async def test_names_that_lead_nowhere(ntf: Path, host: str, words: str) -> None:
    variables = {"HELIOGRAPH_NTF_LISTEN_HOST": host, "HELIOGRAPH_NTF_LISTEN_BIND": "127.0.0.1"}
    found = bad(await findings(ntf, Examination(environ=variables)))
    assert [item.check for item in found] == ["address"]
    assert words in found[0].text or "not a name that can be resolved" in found[0].text


async def test_messaging_routers(ntf: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{ntf}/ntf.db"
    migrate(url, MIGRATIONS)
    (ntf / "ntf.db").chmod(0o600)
    how = Examination(environ={})

    def subscribe(number: int, address: str) -> None:
        dialect = open_dialect(url)
        dialect.execute("INSERT INTO servers (server_id, address) VALUES (?, ?)", (number, address))
        dialect.execute(
            "INSERT INTO subscriptions VALUES (?, ?, ?, ?, ?, 'ACTIVE', ?, 0)",
            (b"s%d" % number, b"t", number, b"n", b"k", b""),
        )
        dialect.close()

    found = [item for item in await findings(ntf, how) if item.check == "messaging routers"]
    assert [item.level for item in found] == [Level.NOTE]
    async with a_world(f"sqlite:///{tmp_path}/smp.db") as world:
        subscribe(1, str(world.address))
        found = [item for item in await findings(ntf, how) if item.check == "messaging routers"]
        assert found[0].text == "1 asked, all answer"
        impostor = str(world.address).replace(b64encode(fingerprint(world)), b64encode(bytes(32)))
        subscribe(2, impostor)
        some = await the_one(ntf, Level.WARNING, "1 of 2", "number 2: ", how=how)
        assert "127.0.0.1" not in some.text
        shown = Examination(environ={}, show_hosts=True)
        await the_one(ntf, Level.WARNING, "1 of 2", "127.0.0.1: ", how=shown)
    await the_one(ntf, Level.PROBLEM, "2 of 2", "all of them", how=how)


def fingerprint(world: World) -> bytes:
    return world.address.fingerprint


async def test_a_check_that_fails_is_a_finding(ntf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(ntf / "x"))

    monkeypatch.setattr("heliograph.doctor.files.os.statvfs", missing)
    await the_one(ntf, Level.PROBLEM, "Permission denied", "run")
