"""`heliograph smp` as an operator uses it: real processes, real sockets."""

import asyncio
import json
import re
import shutil
import signal
import socket
import stat
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import Client
from heliograph.transport.errors import RequestRefused
from heliograph.wire import smp
from heliograph.wire.addresses import decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags, QueueMode, QueueReqData
from heliograph.wire.table import PING, PONG
from tests.cli.processes import TIMEOUT, Start, ready, run as run_command, starting, stop
from tests.db.postgres import shared_postgres
from tests.ports import steady_port
from tests.smp.reference.test_storelog import CREATE
from tests.smp.reference.test_transfer import MESSAGE

pytestmark = pytest.mark.timeout(240)  # commands are processes, one after the other


def run(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run_command("smp", *arguments, **variables)


@pytest.fixture
def start() -> Iterator[Start]:
    with starting("smp") as start:
        yield start


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("smp") / "router"
    assert run("init", "--dir", directory, "--port", 0).returncode == 0
    return directory


@pytest.fixture
def directory(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "router"))


def http(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_init_says_what_it_made_and_what_is_next(tmp_path: Path) -> None:
    directory = tmp_path / "router"
    done = run("init", "--dir", directory, "--host", "smp.example.com", "--port", 5224)
    assert done.returncode == 0, done.stderr
    fingerprint = (directory / "fingerprint").read_text().strip()
    address = f"smp://{fingerprint}@smp.example.com:5224"
    for words in (address, "ca.key off this machine", "config.toml", "heliograph smp start --dir"):
        assert words in done.stdout
    listen = {"host": "smp.example.com", "port": 5224}
    assert tomllib.loads((directory / "config.toml").read_text())["listen"] == listen
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert run("address", "--dir", directory).stdout == f"{address}\n"
    assert run("check-config", "--dir", directory).returncode == 0


def test_init_overwrites_nothing(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    for removed in ((), ("config.toml",)):
        for name in removed:
            (directory / name).unlink()
            del before[name]
        done = run("init", "--dir", directory)
        assert done.returncode == 1
        assert "already" in done.stderr
        assert "Traceback" not in done.stderr
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_init_refuses_nonsense_and_leaves_nothing(tmp_path: Path) -> None:
    done = run("init", "--dir", tmp_path / "r", "--host", "a b", "--port", 65536)
    assert done.returncode == 1
    assert "--host: " in done.stderr
    assert "--port: " in done.stderr
    assert not (tmp_path / "r").exists()


def test_default_directory(tmp_path: Path) -> None:
    done = run("init", HELIOGRAPH_HOME=str(tmp_path))
    assert done.returncode == 0
    assert (tmp_path / "smp" / "config.toml").exists()
    assert run("address", HELIOGRAPH_HOME=str(tmp_path)).stdout.endswith("@127.0.0.1:5223\n")


async def test_start_serve_and_stop(directory: Path, start: Start) -> None:
    process = start("--dir", directory)
    address = ready(process)
    client = await Client.connect(decode_address(address))
    assert await client.request(PING()) == PONG()
    assert run("address", "--dir", directory).stdout == f"{address}\n"
    code, out, err = await asyncio.to_thread(stop, process)
    assert (code, out) == (0, "")
    assert "stopped" in err
    assert "Traceback" not in err
    await client.close()
    assert run("address", "--dir", directory).stdout.endswith("@127.0.0.1:0\n")


async def test_what_was_accepted_is_there_after_a_restart(directory: Path, start: Start) -> None:
    process = start("--dir", directory)
    client = await Client.connect(decode_address(ready(process)))
    keys, dh_keys = generate_key_pair(Algorithm.X25519), generate_key_pair(Algorithm.X25519)
    new = smp.NEW(keys.public, dh_keys.public, queue_data=QueueReqData(QueueMode.MESSAGING))
    ids = await client.request(new, b"", keys.private)
    assert await client.request(smp.SEND(MsgFlags(False), b"hello"), ids.snd_id) == smp.OK()
    assert (await asyncio.to_thread(stop, process))[0] == 0
    await client.close()
    process = start("--dir", directory)
    client = await Client.connect(decode_address(ready(process)))
    assert isinstance(await client.request(smp.GET(), ids.rcv_id, keys.private), smp.MSG)
    await client.close()
    assert stop(process, signal.SIGINT)[0] == 0
    for name in ("smp.db", "lock"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600


def test_only_one_router_a_directory(directory: Path, start: Start) -> None:
    process = start("--dir", directory)
    ready(process)
    second = run("start", "--dir", directory)
    assert (second.returncode, second.stdout) == (1, "")
    assert f"runs already (process {process.pid})" in second.stderr
    assert "Traceback" not in second.stderr
    process.kill()
    process.wait(TIMEOUT)
    third = start("--dir", directory)  # a killed one holds nothing
    ready(third)
    assert stop(third)[0] == 0


def test_port_taken(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for variables, option in (
            ({}, ("--port", port)),
            ({"HELIOGRAPH_SMP_METRICS_PORT": str(port)}, ()),
        ):
            done = run("start", "--dir", directory, *option, **variables)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"port {port} of 127.0.0.1 is taken" in done.stderr
            assert "Traceback" not in done.stderr


def test_an_address_of_another_machine(directory: Path) -> None:
    done = run("start", "--dir", directory, "--host", "192.0.2.1")
    assert done.returncode == 1
    assert "not an address of this machine" in done.stderr


def test_options_win_over_the_environment_and_that_over_the_file(
    directory: Path, start: Start
) -> None:
    first, second = steady_port(), steady_port()
    variables = {"HELIOGRAPH_SMP_LISTEN_PORT": str(first)}
    process = start("--dir", directory, "--host", "localhost", **variables)
    assert ready(process).endswith(f"@localhost:{first}")
    assert stop(process)[0] == 0
    process = start("--dir", directory, "--port", second, **variables)
    assert ready(process).endswith(f"@127.0.0.1:{second}")
    assert stop(process)[0] == 0


@pytest.mark.parametrize("command", ["start", "check-config", "address"])
def test_broken_config(directory: Path, command: str) -> None:
    (directory / "config.toml").write_text(
        '[listen]\nprt = 1\n[queues]\nquota = "many"\npassword = "a b"\n'
        '[store]\nurl = "mysql://u:hunter2@h"\n'
    )
    done = run(command, "--dir", directory)
    assert (done.returncode, done.stdout) == (1, "")
    for words in (
        "did you mean port?",
        'quota = "many": must be',
        "[queues] password",
        "[store] url",
    ):
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr
    assert done.stderr.count(str(directory / "config.toml")) == 4


@pytest.mark.parametrize("command", ["start", "check-config", "address"])
def test_no_router_there(tmp_path: Path, command: str) -> None:
    done = run(command, "--dir", tmp_path / "absent")
    assert (done.returncode, done.stdout) == (1, "")
    assert "heliograph smp init --dir" in done.stderr
    assert not (tmp_path / "absent").exists()


def test_check_config_looks_at_files_too(directory: Path) -> None:
    (directory / "config.toml").write_text('[queues]\npassword_file = "absent"\n')
    (directory / "server.key").unlink()
    done = run("check-config", "--dir", directory)
    assert done.returncode == 1
    assert "password_file" in done.stderr
    assert "server.key is missing" in done.stderr


def test_a_store_that_cannot_be_had(directory: Path) -> None:
    done = run("start", "--dir", directory, HELIOGRAPH_SMP_STORE_URL="sqlite:///config.toml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be opened" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_while_the_store_is_awaited(directory: Path, start: Start) -> None:
    port = steady_port()
    process = start(
        "--dir",
        directory,
        HELIOGRAPH_SMP_METRICS_PORT=str(port),
        HELIOGRAPH_SMP_STORE_URL="postgresql://u:hunter2@127.0.0.1:1/d",
    )
    assert process.stderr is not None
    assert any("cannot be reached" in line for line in process.stderr)
    assert http(port, "/livez") == (200, "ok\n")
    assert http(port, "/readyz") == (503, "not ready: starting\n")
    code, out, err = stop(process)
    assert (code, out) == (0, "")
    assert "hunter2" not in err


async def test_operators_see_inside(directory: Path, start: Start) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(TIMEOUT)
        manager.bind(str(directory / "notify"))
        port = steady_port()
        process = start(
            "--dir",
            directory,
            HELIOGRAPH_SMP_METRICS_PORT=str(port),
            HELIOGRAPH_SMP_LOG_FORMAT="json",
            HELIOGRAPH_SMP_JOURNAL_PATH="journal",
            NOTIFY_SOCKET=str(directory / "notify"),
        )
        address = ready(process)
        assert manager.recv(100) == b"READY=1"
        client = await Client.connect(decode_address(address))
        assert http(port, "/livez") == (200, "ok\n")
        assert http(port, "/readyz") == (200, "ok\n")
        status, text = http(port, "/metrics")
        assert status == 200
        for line in (
            "simplex_smp_clients_total 1\n",
            "process_resident_memory_bytes",
            "heliograph_smp_journal_events_lost_total 0\n",
            "heliograph_smp_journal_failing 0\n",
        ):
            assert line in text
        await client.close()
        code, _, err = stop(process)
        assert code == 0
        assert manager.recv(100) == b"STOPPING=1"
    events: list[dict[str, Any]] = [json.loads(line) for line in err.splitlines()]
    assert events[-1]["message"] == "stopped"
    assert {"at", "level", "logger", "message"} <= events[0].keys()


async def test_password_to_create_queues(directory: Path, start: Start) -> None:
    (directory / "secret").write_text("hunter2\n")
    variables = {"HELIOGRAPH_SMP_QUEUES_PASSWORD_FILE": "secret"}
    address = run("address", "--dir", directory, **variables).stdout
    assert "hunter2" not in address
    shared = run("address", "--dir", directory, "--with-password", **variables).stdout
    assert shared == address.replace("@", ":hunter2@")
    process = start("--dir", directory, **variables)
    client = await Client.connect(decode_address(ready(process)))
    keys = generate_key_pair(Algorithm.X25519)
    new = smp.NEW(keys.public, keys.public, queue_data=QueueReqData(QueueMode.MESSAGING))
    with pytest.raises(RequestRefused):
        await client.request(new, b"", keys.private)
    await client.request(replace(new, password=b"hunter2"), b"", keys.private)
    await client.close()
    code, out, err = stop(process)
    assert code == 0
    assert "hunter2" not in out + err


def test_help_teaches() -> None:
    assert "heliograph smp init --host" in run("--help").stdout
    assert "ready smp://FINGERPRINT@HOST:PORT" in run("start", "--help").stdout


def test_backup_and_rotation(tmp_path: Path) -> None:
    directory = tmp_path / "router"
    assert run("init", "--dir", directory, "--port", "0").returncode == 0
    copy = tmp_path / "copy.db"
    early = run("backup", copy, "--dir", directory)
    assert (early.returncode, "no store yet" in early.stderr) == (1, True)
    before = (directory / "server.crt").read_bytes()
    address = run("address", "--dir", directory).stdout
    assert run("rotate-certificate", "--dir", directory).returncode == 0
    assert (directory / "server.crt").read_bytes() != before
    assert run("address", "--dir", directory).stdout == address


def test_import_and_export(directory: Path, start: Start, tmp_path: Path) -> None:
    log, messages = tmp_path / "smp-server-store.log", tmp_path / "smp-server-messages.log"
    log.write_text(f"{CREATE}\n")
    messages.write_text(f"{MESSAGE}\n")
    done = run("import", log, "--messages", messages, "--dir", directory, "--dry-run")
    counts = "queues 1, services 0, messages 1, notifications 0"
    expected = f"Would import 2 lines.\nThe store would have: {counts}.\n"
    assert (done.stdout, done.returncode) == (expected, 0)
    assert "there is no store yet" in run("export", tmp_path / "out", "--dir", directory).stderr
    messages.write_text(f"{MESSAGE}\nrubbish\n")
    done = run("import", log, "--messages", messages, "--dir", directory)
    assert done.returncode == 1
    assert f"{messages}: line 2: not a record" in done.stderr
    assert "nothing was imported" in done.stderr
    messages.write_text(f"{MESSAGE}\n")
    done = run("import", log, "--messages", messages, "--dir", directory)
    expected = f"Imported 2 lines.\nThe store has: {counts}.\n"
    assert (done.stdout, done.returncode) == (expected, 0)
    done = run("import", log, "--dir", directory)
    assert (done.returncode, "has queues already" in done.stderr) == (1, True)
    copy = tmp_path / "messages"
    done = run("export", tmp_path / "out", "--messages", copy, "--dir", directory)
    assert done.stdout == "Exported 1 queues, 0 services, 1 messages and 0 notifications.\n"
    assert (tmp_path / "out").read_text() == log.read_text()
    assert copy.read_text() == messages.read_text()
    (directory / "import-unfinished").write_text("of other files")
    for command in (("start",), ("export", tmp_path / "x"), ("copy-store", "--to", "sqlite:///x")):
        assert "run `heliograph smp import` again" in run(*command, "--dir", directory).stderr
    done = run("import", log, "--dir", directory)
    assert (done.returncode, "an import of other files" in done.stderr) == (1, True)
    assert (directory / "import-unfinished").read_text() == "of other files"


def test_copy_the_store_to_postgresql_and_back(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{CREATE}\n")
    (tmp_path / "messages").write_text(f"{MESSAGE}\n")
    assert "no store yet" in run("copy-store", "--to", "sqlite:///x.db", "--dir", directory).stderr
    files = (tmp_path / "log", "--messages", tmp_path / "messages")
    assert run("import", *files, "--dir", directory).returncode == 0
    url = shared_postgres().new_url()
    done = run("copy-store", "--to", url, "--dir", directory)
    assert done.returncode == 0, done.stderr
    assert re.search(r"queues +1\n", done.stdout)
    assert re.search(r"messages +1\n", done.stdout)
    done = run("copy-store", "--to", url, "--dir", directory)
    assert (done.returncode, "not empty" in done.stderr) == (1, True)
    environ = {"HELIOGRAPH_SMP_STORE_URL": url}
    done = run("copy-store", "--to", "sqlite:///back.db", "--dir", directory, **environ)
    assert done.returncode == 0, done.stderr
    environ = {"HELIOGRAPH_SMP_STORE_URL": "sqlite:///back.db"}
    out = tmp_path / "out"
    assert run("export", out, "--dir", directory, **environ).returncode == 0
    assert out.read_text() == f"{CREATE}\n"
    assert "must be sqlite" in run("copy-store", "--to", "mysql://x", "--dir", directory).stderr
