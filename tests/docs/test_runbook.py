"""The commands of the runbook exist, and what can run here is run, from top to bottom."""

import argparse
import os
import re
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heliograph.cli.main import parser
from heliograph.crypto.p256 import P256Key
from heliograph.ntf.config import NtfConfig
from heliograph.runtime.config.file import load
from heliograph.runtime.config.options import options
from heliograph.runtime.identity import create_identity
from heliograph.smp.config import SmpConfig
from tests.ntf.reference.test_ini import INI
from tests.ntf.reference.test_storelog import ID, SCREATE, TCREATE
from tests.ports import steady_port

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs" / "runbook.md"
TEXT = RUNBOOK.read_text()
FILES = [
    file
    for file in (RUNBOOK, *sorted((ROOT / "deploy").rglob("*")))
    if file.is_file() and re.search(r"\bheliograph (smp|ntf|sim|pipeline) [a-z]", file.read_text())
]
REASONS = {
    "the test has directories of its own",
    "the test has files of its own",
    "needs root and a package index",
    "needs root and systemd",
    "needs systemd",
    "needs PostgreSQL's own tools",
    "needs the reference's router",
    "asks Apple",
}
TIMEOUT = 180
"""For one block, on a machine that has much else to do."""


def commands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_commands(file: Path) -> None:
    parts = commands(parser())
    for part, name in re.findall(
        r"\bheliograph (smp|ntf|sim|pipeline) ([a-z][a-z-]+)", file.read_text()
    ):
        assert name in commands(parts[part]), f"{part} {name}"


def test_commands_are_in_many_files() -> None:
    assert {"runbook.md", "Containerfile", "heliograph-ntf.service"} <= {f.name for f in FILES}


def test_settings() -> None:
    known = {
        f"[{'.'.join(item.path[:-1])}] {item.key}"
        for config in (NtfConfig, SmpConfig)
        for item in options(config)
    }
    for section, key in re.findall(r"`(\[[a-z.]+\]) ([a-z_]+)", TEXT):
        assert f"{section} {key}" in known


def test_toml(tmp_path: Path) -> None:
    """What is to be set can be set."""
    blocks = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        assert tomllib.loads(block)
        (tmp_path / "config.toml").write_text(block)
        load(NtfConfig, tmp_path / "config.toml", prefix="HELIOGRAPH_NTF", environ={})


@dataclass(frozen=True)
class Block:
    line: int
    marker: str
    code: str


def blocks() -> list[Block]:
    pattern = re.compile(
        r"^(?P<indent> *)(?:<!-- (?P<marker>[^\n]*) -->\n *)?```sh\n(?P<code>.*?)^ *```$",
        re.MULTILINE | re.DOTALL,
    )
    return [
        Block(
            TEXT[: found.start()].count("\n") + 1,
            found["marker"] or "",
            textwrap.dedent(found["code"]),
        )
        for found in pattern.finditer(TEXT)
    ]


def test_every_block_runs_or_says_why_not() -> None:
    found = blocks()
    assert len(found) == len(re.findall(r"```sh$", TEXT, re.MULTILINE)) > 25
    for block in found:
        if block.marker != "runs":
            reason, _, instead = block.marker.removeprefix("not run: ").partition("; instead: ")
            assert reason in REASONS, block
            assert instead in ("", "start", "stop", "restart"), block
    assert sum(block.marker == "runs" for block in found) >= 15


class Operator:
    """Follows the page, with directories of a test for those of a machine."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._program()
        names = ("NTF", "NEW", "MOVED", "BACKUPS", "OFFLINE", "PIPELINE")
        places = {name: home / name.lower() for name in names}
        for name in ("BACKUPS", "OFFLINE", "PIPELINE"):  # the last one as its service does
            places[name].mkdir(mode=0o700)
        self._ntf = places["NTF"]
        self._port = steady_port()
        self._environment = {
            **{name: value for name, value in os.environ.items() if "HELIOGRAPH" not in name},
            **{name: str(place) for name, place in places.items()},
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "METRICS_PORT": str(self._port),
            "TOKEN_ID": ID,
            **self._reference(),
            # This machine has neither the name nor, perhaps, the right to use port 443.
            "HELIOGRAPH_NTF_LISTEN_HOST": "127.0.0.1",
            "HELIOGRAPH_NTF_LISTEN_PORT": "0",
        }
        (home / "AuthKey_ABC1234567.p8").write_bytes(P256Key.generate().to_pem())

    def _program(self) -> None:
        program = self._home / "bin" / "heliograph"
        program.parent.mkdir()
        run = "import sys; from heliograph.cli.main import main; sys.exit(main())"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{run}" "$@"\n')
        program.chmod(0o755)

    def _reference(self) -> dict[str, str]:
        """The directories of a reference's router."""
        config, state = self._home / "etc", self._home / "var"
        create_identity(config, "NTF server CA", "ntf.example.com", 1_700_000_000)
        state.mkdir()
        (config / "ntf-server.ini").write_text(INI)
        (state / "ntf-server-store.log").write_text(f"{TCREATE}\n{SCREATE}\n")
        (state / "ntf-server-last-notifications.log").write_text("")
        return {"C": str(config), "V": str(state)}

    def follow(self, block: Block) -> None:
        if block.marker == "runs":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.code],
                cwd=self._home,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            assert done.returncode == 0, f"line {block.line}: {done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr
            return
        instead = block.marker.partition("; instead: ")[2]
        if instead in ("stop", "restart"):
            self.stop()
        if instead in ("start", "restart"):
            self.start()

    def start(self) -> None:
        assert self._process is None
        self._process = subprocess.Popen(
            [str(self._home / "bin" / "heliograph"), "ntf", "start", "--dir", str(self._ntf)],
            env={**self._environment, "HELIOGRAPH_NTF_METRICS_PORT": str(self._port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith(b"ready "), self._ntf

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate(timeout=TIMEOUT)
            self._process = None


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_from_top_to_bottom(operator: Operator) -> None:
    for block in blocks():
        operator.follow(block)
