"""systemd units, container files and the compose file: what can be known without running."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from heliograph.cli.main import parser
from heliograph.ntf.config import NtfConfig
from heliograph.runtime.config.options import options
from heliograph.smp.config import SmpConfig
from heliograph.system.config import SystemConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
PROGRAM = "/opt/heliograph/bin/heliograph"
INSTRUCTIONS = {
    *("FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"),
    *("ENTRYPOINT", "CMD", "ARG", "LABEL"),
}
SERVICE_KEYS = {
    *("build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image"),
    "network_mode",
    *("ports", "profiles", "read_only", "restart", "secrets", "security_opt"),
    *("stop_grace_period", "tmpfs", "ulimits", "volumes"),
}
MADE_BY_THE_OPERATOR = "./secrets/"


def variables() -> set[str]:
    return {
        option.variable(prefix)
        for config, prefix in (
            (SmpConfig, "HELIOGRAPH_SMP"),
            (NtfConfig, "HELIOGRAPH_NTF"),
            (SystemConfig, "HELIOGRAPH_SYSTEM"),
        )
        for option in options(config)
    }


def settings(unit: Path) -> list[tuple[str, str, str]]:
    """Section, key and value of every line; systemd allows keys to be repeated."""
    section, found = "", []
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, separator, value = line.partition("=")
            assert separator, line
            found.append((section, key, value))
    return found


def check_command(words: list[str]) -> None:
    """It is one that the program knows, with options that it knows."""
    parser().parse_args(words)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units(unit: Path) -> None:
    found = settings(unit)
    assert {section for section, _, _ in found} == {"Unit", "Service", "Install"}
    commands = [value for _, key, value in found if key in ("ExecStart", "ExecStartPre")]
    assert commands
    for command in commands:
        program, *words = command.split()
        assert program == PROGRAM
        check_command(words)
    values = {key: value for _, key, value in found}
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome"):
        assert values[key] == "yes"
    assert values["User"] == "heliograph"
    assert values["StateDirectoryMode"] == "0700"


def test_supervisors_alone_are_stopped() -> None:
    """A second SIGTERM, more than half a second later, ends a process at once."""
    for name in ("heliograph-ntf", "heliograph-up"):
        [unit] = [unit for unit in UNITS if unit.stem == name]
        assert ("Service", "KillMode", "mixed") in settings(unit)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_by_systemd(unit: Path, tmp_path: Path) -> None:
    """Of every key it says whether it knows it. The program need not be installed for that."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, str(shutil.which("true"))))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    mine = [line for line in done.stderr.splitlines() if unit.name in line]
    assert not mine
    assert done.returncode == 0, done.stderr


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", file.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("Containerfile*")), ids=lambda file: file.name)
def test_container_files(file: Path) -> None:
    found = instructions(file)
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] in ("FROM", "ARG")
    [lock] = [rest.removeprefix("LOCK=") for name, rest in found if name == "ARG"]
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            for source in (source.replace("${LOCK}", lock) for source in sources):
                assert (ROOT / source).exists(), source
        if name in ("CMD", "ENTRYPOINT"):
            assert isinstance(yaml.safe_load(rest), list)
    [command] = [yaml.safe_load(rest) for name, rest in found if name == "CMD"]
    check_command(command)
    # It does not run as root, and names of settings are right.
    assert [rest for name, rest in found if name == "USER"] == ["heliograph"]
    named = set(re.findall(r"HELIOGRAPH_(?:SMP|NTF)_[A-Z_]+", file.read_text()))
    assert named <= variables()


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def is_ours(service: dict[str, Any]) -> bool:
    return str(service["image"]).startswith("heliograph")


def test_compose_services(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"postgres", "smp", "ntf"} <= services.keys()
    for name, service in services.items():
        assert service.keys() <= SERVICE_KEYS, name
        assert set(service.get("depends_on", {})) <= services.keys()
        assert set(service.get("secrets", ())) <= compose["secrets"].keys()
        image = service["image"]
        assert image.startswith("heliograph") or re.fullmatch(
            r"[a-z.]+/[a-z]+/[a-z]+:v?[0-9.]+", image
        )
        for port in service.get("ports", ()):
            assert re.fullmatch(r"(127\.0\.0\.1:)?\d+:\d+", port)
        test = service.get("healthcheck", {}).get("test")
        assert test is None or test[0] == "CMD"


def test_compose_files_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        if "build" in service:
            context = (DEPLOY / service["build"]["context"]).resolve()
            assert (context / service["build"]["dockerfile"]).is_file()
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), source
            else:
                assert source in compose["volumes"]
    for secret in compose["secrets"].values():
        assert secret["file"].startswith(MADE_BY_THE_OPERATOR)
        assert secret["file"].removeprefix(".") in (DEPLOY / "compose.yaml").read_text()


def test_compose_runs_what_there_is(compose: dict[str, Any]) -> None:
    known = variables()
    ours = [service for service in compose["services"].values() if is_ours(service)]
    assert len(ours) >= 3
    for service in ours:
        check_command(service["command"])
        named = {name for name in service.get("environment", {}) if name.startswith("HELIOGRAPH_")}
        assert named <= known, named - known
    targets = {"smp", "ntf"}
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for job in scraped["scrape_configs"]:
        [[target]] = [item["targets"] for item in job["static_configs"]]
        host, _, port = target.partition(":")
        assert host in targets
        prefix = f"HELIOGRAPH_{host.upper()}_METRICS_PORT"
        assert compose["services"][host]["environment"][prefix] == port


def test_databases_of_compose(compose: dict[str, Any]) -> None:
    made = set(re.findall(r"CREATE DATABASE (\w+)", (DEPLOY / "postgres" / "init.sql").read_text()))
    urls = [
        value
        for service in compose["services"].values()
        for name, value in service.get("environment", {}).items()
        if name.endswith("STORE_URL")
    ]
    assert {re.search(r"postgres/(\w+)\?", url)[1] for url in urls} == made  # type: ignore[index]
