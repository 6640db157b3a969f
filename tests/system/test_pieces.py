"""The small parts of a system: places, ports, logs, status."""

import socket
import tomllib
from pathlib import Path

import pytest

from heliograph.cli.main import main, parser
from heliograph.cli.system import describe
from heliograph.ntf.config import PREFIX as NTF_PREFIX, NtfConfig
from heliograph.runtime.config.file import load
from heliograph.runtime.errors import ConfigError, StartError
from heliograph.smp.config import PREFIX as SMP_PREFIX, SmpConfig
from heliograph.system import ports, requirements, state
from heliograph.system.config import (
    PREFIX,
    AlertOptions,
    PageOptions,
    PipelineOptions,
    SimulatorOptions,
    SystemConfig,
)
from heliograph.system.install import create
from heliograph.system.layout import Layout
from heliograph.system.logfile import LogFile, merge, tail
from heliograph.system.parts import parts
from heliograph.system.state import PartState, PartStatus, SystemStatus


class TestPorts:
    def test_the_next_free_one(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            [chosen] = ports.choose("127.0.0.1", (port,))
            assert port < chosen <= port + ports.MAX_PORTS_TRIED

    def test_none_twice(self) -> None:
        chosen = ports.choose("127.0.0.1", (0, 0, 0, 0))
        assert all(port in ports.ANY_PORT for port in chosen)
        assert len(set(chosen)) == 4
        [first, second] = ports.choose("127.0.0.1", (chosen[0], chosen[0]))
        assert first != second

    def test_not_our_address(self) -> None:
        with pytest.raises(OSError, match="no port"):
            ports.choose("192.0.2.1", (0,))


class TestLogFile:
    @pytest.mark.usefixtures("open_umask")
    def test_is_private(self, tmp_path: Path) -> None:
        LogFile(tmp_path / "x.log").close()
        assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600

    def test_is_bounded(self, tmp_path: Path) -> None:
        log = LogFile(tmp_path / "x.log", max_bytes=100)
        for number in range(50):
            log.write(f"line {number:04}\n".encode())
        log.close()
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert len(sizes) == 2
        assert all(size <= 100 for size in sizes)
        assert tail(tmp_path / "x.log", 2) == ["line 0048", "line 0049"]

    def test_tail_of_little_and_of_nothing(self, tmp_path: Path) -> None:
        assert tail(tmp_path / "missing", 3) == []
        (tmp_path / "x").write_text("a\nb\n")
        assert tail(tmp_path / "x", 5) == ["a", "b"]
        assert tail(tmp_path / "x", 0) == []


class TestStatus:
    def test_there_and_back(self, tmp_path: Path) -> None:
        part = PartStatus(PartState.WAITING, None, 12.5, 3, "ntf://x", "exit code 1")
        status = SystemStatus(7, 1.0, True, {"ntf": part})
        status.write(tmp_path / "state.json")
        assert state.read(tmp_path / "state.json") == status

    def test_no_phone_before_the_routers_have_addresses(self, tmp_path: Path) -> None:
        control = "https://127.0.0.1:1 control http://127.0.0.1:2 ca x"
        found = SystemStatus(
            7, 1.0, False, {"apns": PartStatus(PartState.RUNNING, 1, 1.0, 0, control)}
        )
        found.parts |= {name: PartStatus() for name in ("smp", "ntf")}
        assert not any("device" in line for line in describe(Layout(tmp_path), found, 2.0))
        found.parts |= {name: PartStatus(address=f"{name}://x") for name in ("smp", "ntf")}
        lines = "\n".join(describe(Layout(tmp_path), found, 2.0))
        assert "--smp smp://x --ntf ntf://x" in lines

    def test_a_part_that_ended(self, tmp_path: Path) -> None:
        part = PartStatus(PartState.STARTING, restarts=1, ended="exit code 3")
        found = SystemStatus(1, 0.0, True, {"smp": part})
        line = "smp       starting    2 s  last run: exit code 3  restarted once"
        assert describe(Layout(tmp_path), found, 2.0) == [line]

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"parts": {"a": {}}}', '{"parts": 3}'])
    def test_what_is_no_status(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "state.json").write_text(text)
        assert state.read(tmp_path / "state.json") is None
        assert state.read(tmp_path / "missing") is None


class TestParts:
    def test_all(self, tmp_path: Path) -> None:
        config = SystemConfig(simulators=SimulatorOptions(True, 1, 2, 3, 4))
        found = {part.name: part for part in parts(Layout(tmp_path), config)}
        assert list(found) == ["apns", "webpush", "smp", "ntf", "page", "pipeline"]
        assert found["ntf"].needs == ("webpush",)
        assert [part.name for part in found.values() if part.is_slow] == ["pipeline"]
        words = found["pipeline"].command
        assert words[words.index("--objective") + 1] == "99% accepted in 10s"
        assert not {"--no-anomalies", "--snapshots", "--decide-write"} & {*words}

    def test_jobs_that_decide(self, tmp_path: Path) -> None:
        options = PipelineOptions(decide=("snapshots", "dead-tokens"), decide_write=True)
        [*_, part] = parts(Layout(tmp_path), SystemConfig(pipeline=options))
        assert {"--no-anomalies", "--dead-tokens", "--decide-write"} < {*part.command}
        assert part.command[part.command.index("--snapshots") + 1] == str(tmp_path / "snapshots")
        parsed = parser().parse_args(part.command[3:])
        assert (parsed.snapshots, parsed.foreign) == (tmp_path / "snapshots", False)
        [(key, text)] = PipelineOptions(decide=("anomaly",)).check()
        assert (key, "there is no job anomaly" in text) == ("decide", True)

    def test_only_routers_and_page(self, tmp_path: Path) -> None:
        config = SystemConfig(pipeline=PipelineOptions(enabled=False))
        assert [part.name for part in parts(Layout(tmp_path), config)] == ["smp", "ntf", "page"]


class TestPage:
    @pytest.mark.parametrize(
        ("host", "expected"),
        [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
    )
    def test_loopback(self, host: str, expected: bool) -> None:
        assert PageOptions(host=host).is_loopback is expected


class TestAlerts:
    @pytest.mark.parametrize(
        ("options", "keys"),
        [
            ({"name": "Köln", "webhook": "https://example.org"}, []),
            ({"name": "two\nlines"}, ["name"]),
            ({"webhook": "example.org", "ntfy": "ftp://x"}, ["webhook", "ntfy"]),
        ],
    )
    def test_mistakes(self, options: dict[str, str], keys: list[str]) -> None:
        assert [key for key, _ in AlertOptions(**options).check()] == keys  # type: ignore[arg-type]


class TestInstall:
    def test_for_this_machine(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path / "system")
        config = create(layout.root, any_port=True)
        assert load(SystemConfig, layout.config, prefix=PREFIX, environ={}) == config
        smp = load(SmpConfig, layout.smp / "config.toml", prefix=SMP_PREFIX, environ={})
        ntf = load(NtfConfig, layout.ntf / "config.toml", prefix=NTF_PREFIX, environ={})
        assert config.simulators.enabled
        assert ntf.push.apns.test_url.endswith(f":{config.simulators.apns_port}")
        assert ntf.network.allow_private
        places = {smp.listen.port, ntf.listen.port, smp.metrics.port, ntf.metrics.port}
        assert len(places | {config.page.port, 0}) == 6
        for directory in (layout.journal, layout.tables, layout.page, layout.sim):
            assert directory.stat().st_mode & 0o777 == 0o700
        for secret in (layout.config, layout.token, layout.smp / "ca.key", layout.ntf / "ca.key"):
            assert secret.stat().st_mode & 0o777 == 0o600

    def test_for_everybody(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path)
        config = create(layout.root, "push.example.com", any_port=True)
        assert not config.simulators.enabled
        ntf = tomllib.loads((layout.ntf / "config.toml").read_text())
        assert ntf["listen"]["host"] == "push.example.com"
        assert ntf["network"]["allow_private"] is False
        assert "apns" not in ntf["push"] or "key_file" not in ntf["push"]["apns"]

    def test_what_is_there_stays(self, tmp_path: Path) -> None:
        layout = Layout(tmp_path)
        create(layout.root, any_port=True)
        layout.config.unlink()
        before = (layout.ntf / "config.toml").read_bytes(), (layout.ntf / "ca.key").read_bytes()
        create(layout.root, any_port=True)
        after = (layout.ntf / "config.toml").read_bytes(), (layout.ntf / "ca.key").read_bytes()
        assert after == before

    def test_a_host_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(StartError, match="--host"):
            create(tmp_path / "x", "not a host")
        assert not (tmp_path / "x").exists()


class TestDirectoriesThatCannotBeUsed:
    """Each command says so; tests/cli/test_access.py has those of another user."""

    def test_something_in_the_way(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        create(tmp_path / "home", any_port=True)
        (tmp_path / "home" / "state.json").mkdir()
        assert main(["up", "-d", "--dir", str(tmp_path / "home")]) == 1
        assert "state.json: Is a directory" in capsys.readouterr().err
        (tmp_path / "file").touch()
        for command in (["up"], ["up", "-d"], ["demo"]):
            assert main([*command, "--dir", str(tmp_path / "file")]) == 1
            assert "file is not a directory: choose another --dir" in capsys.readouterr().err


class TestMergedLogs:
    def test_lines_of_all_logs_by_time(self) -> None:
        logs = {
            "ntf": ["2026-01-02T03:04:05.100Z INFO a: x", "2026-01-02T03:04:07.000Z ERROR a: y"],
            "smp": ['{"at": "2026-01-02T03:04:06.000Z", "level": "info"}'],
        }
        assert [name for name, _ in merge(logs)] == ["ntf", "smp", "ntf"]

    def test_a_traceback_stays_with_its_line(self) -> None:
        logs = {
            "a": ["2026-01-02T03:04:05.000Z ERROR a: failed", "Traceback", "  File"],
            "b": ["2026-01-02T03:04:06.000Z INFO b: z"],
        }
        assert [line.split()[0] for _, line in merge(logs)][1:3] == ["Traceback", "File"]


@pytest.mark.parametrize(
    ("missing", "wanted"),
    [("h2", "heliograph[sim]"), ("pyspark", "heliograph[pipeline]")],
)
def test_packages_are_checked_before_anything_is_created(
    missing: str,
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        requirements, "find_spec", lambda name: None if name == missing else object()
    )
    assert main(["up", "--dir", str(tmp_path / "home"), "--any-port"]) == 1
    said = capsys.readouterr().err
    assert f"pip install '{wanted}'" in said
    assert f"to do without: --no-{'simulators' if missing == 'h2' else 'pipeline'} " in said
    assert not (tmp_path / "home").exists()


def test_an_empty_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["up"], ["smp", "init"], ["ntf", "init"]):
        assert main([*command, "--host", "", "--dir", str(tmp_path / "home")]) == 1
        assert "--host: " in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("host", ["", " "])
def test_a_page_without_an_address_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    """It would listen on all addresses."""
    create(tmp_path / "home", any_port=True)
    assert main(["page", "--host", host, "--dir", str(tmp_path / "home")]) == 1
    assert "page.host" in capsys.readouterr().err


@pytest.mark.parametrize("config", [NtfConfig, SmpConfig])
def test_metrics_without_an_address_are_refused(
    tmp_path: Path, config: type[NtfConfig | SmpConfig]
) -> None:
    (tmp_path / "config.toml").write_text('[metrics]\nhost = ""\nport = 0\n')
    with pytest.raises(ConfigError, match=r"\[metrics\] host: must be"):
        load(config, tmp_path / "config.toml", prefix="X", environ={})
