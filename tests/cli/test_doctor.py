"""`heliograph doctor` as an operator uses it."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.system.install import create
from tests.cli.processes import ready, run, starting, stop

pytestmark = pytest.mark.timeout(240)  # commands are processes, one after the other


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    for part in ("smp", "ntf"):
        done = run(part, "init", "--dir", home / part, "--port", 0)
        assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "home"))


@pytest.fixture(params=["smp", "ntf"])
def running(request: pytest.FixtureRequest, home: Path) -> Iterator[Path]:
    """The directory of a router that runs."""
    directory = home / request.param
    with starting(request.param) as start:
        process = start("--dir", directory)
        ready(process)
        yield directory
        stop(process)


def test_all_routers_of_a_home(home: Path) -> None:
    done = run("doctor", HELIOGRAPH_HOME=str(home))
    assert done.returncode == 0, done.stdout
    assert str(home / "smp") in done.stdout
    assert str(home / "ntf") in done.stdout
    assert done.stdout.endswith("no problems, 2 warnings\n")
    assert "-> move it to where you keep backups" in done.stdout
    assert run("doctor", "--strict", HELIOGRAPH_HOME=str(home)).returncode == 1


def test_a_problem_is_the_exit_code(home: Path, tmp_path: Path) -> None:
    (home / "smp" / "server.key").chmod(0o644)
    done = run("doctor", "--dir", home / "smp", home / "ntf")
    assert done.returncode == 1
    assert done.stdout.endswith("1 problem, 2 warnings\n")
    done = run("doctor", "--json", "--dir", home / "smp")
    assert done.returncode == 1
    [found] = json.loads(done.stdout).values()
    assert {"level": "PROBLEM", "check": "permissions"}.items() <= next(
        item.items() for item in found if item["level"] == "PROBLEM"
    )
    nowhere = run("doctor", "--dir", tmp_path / "absent")
    assert (nowhere.returncode, "no config.toml" in nowhere.stdout) == (1, True)


def test_little_room(home: Path) -> None:
    done = run("doctor", "--dir", home / "smp", "--min-free", 10**9)
    assert (done.returncode, "MB of free space" in done.stdout) == (1, True)


def test_the_environment_of_a_service(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "ntf.env"
    with socket.create_server(("127.0.0.1", 0)) as other:
        file.write_text(f'# a comment\nHELIOGRAPH_NTF_LISTEN_PORT="{other.getsockname()[1]}"\n')
        done = run("doctor", "--dir", home / "ntf", "--env-file", file)
    assert (done.returncode, "taken by another program" in done.stdout) == (1, True)
    done = run("doctor", "--dir", home / "ntf", "--env-file", tmp_path / "absent")
    assert (done.returncode, "No such file" in done.stderr) == (2, True)


def test_options_that_exclude_each_other() -> None:
    assert run("doctor", "--online", "--offline").returncode == 2


def test_a_router_that_runs(running: Path) -> None:
    done = run("doctor", "--dir", running)
    assert done.returncode == 0, done.stdout
    assert "running: the router answers at 127.0.0.1:" in done.stdout
    assert "store: it can be read" in done.stdout
    assert "another certificate" not in done.stdout
    rotated = run(running.name, "rotate-certificate", "--dir", running)
    assert "Restart the router" in rotated.stdout
    done = run("doctor", "--dir", running)
    assert (done.returncode, "shows another certificate" in done.stdout) == (0, True)
    assert run("doctor", "--dir", running, "--offline").stdout.count("running:") == 0


def test_the_configuration_of_the_system_is_examined_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    create(home, any_port=True, pipeline=False)
    done = run("doctor", "--offline", "--dir", home)
    assert f"{home}\n  ok       config: config.toml of the system is good" in done.stdout
    (home / "config.toml").write_text('[page]\nport = 99999\nhost = "192.0.2.1"\n')
    done = run("doctor", "--offline", "--dir", home)
    assert done.returncode == 1
    assert "[page] port = 99999" in done.stdout
    (home / "config.toml").write_text('[page]\nhost = "192.0.2.1"\n')
    (home / "page.token").unlink()
    done = run("doctor", "--offline", "--dir", home)
    assert "page.token is missing" in done.stdout
    nothing = run("doctor", "--offline", "--dir", tmp_path / "nothing").stdout
    assert f"heliograph up --dir {tmp_path / 'nothing'}" in nothing
