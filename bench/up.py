"""What `heliograph up` costs: idle, and with two phones; CPU and memory by process.

BENCH_UP_SECONDS is how long each of the two parts lasts (600). Memory is the proportional set size:
pages that processes share are counted once.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import DEVNULL, PIPE
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path

from heliograph.cli.demo.phone import DemoPhone
from heliograph.runtime.authority import CA_FILE, KEY_FILE
from heliograph.runtime.config.file import load
from heliograph.system import state
from heliograph.system.config import PREFIX, SystemConfig
from heliograph.system.layout import Layout

SECONDS = float(os.environ.get("BENCH_UP_SECONDS", "600"))
SAMPLE_SECONDS = 0.5
MESSAGE_SECONDS = 20.0
_TICK = os.sysconf("SC_CLK_TCK")
_MARK = "HELIOGRAPH_BENCH_UP"


@dataclass(slots=True)
class _Sampled:
    name: str
    first_cpu: float
    cpu: float = 0.0
    memory: int = 0


class _Meter:
    """Samples all processes whose environment has the mark, also those of JVMs and batches."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{_MARK}={mark}".encode()
        self._known: dict[tuple[int, int], bool] = {}
        self.processes: dict[tuple[int, str], _Sampled] = {}
        self.most_memory = 0
        self.is_new = True

    def reset(self) -> None:
        self.processes = {}
        self.most_memory = 0
        self.is_new = True

    def sample(self) -> None:
        total = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(entry):
                total += self._sample(entry)
        self.most_memory = max(self.most_memory, total)
        self.is_new = False

    def _is_ours(self, entry: Path) -> bool:
        """Look at the environment once: a number may be used again by another process."""
        try:
            key = int(entry.name), entry.stat().st_ctime_ns
            if key not in self._known:
                self._known[key] = self._mark in (entry / "environ").read_bytes()
            return self._known[key]
        except OSError:
            return False

    def _sample(self, entry: Path) -> int:
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            words = (entry / "cmdline").read_bytes().split(b"\0")
            rollup = (entry / "smaps_rollup").read_text()
        except OSError:
            return 0
        cpu = (int(fields[11]) + int(fields[12])) / _TICK
        memory = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
        name = _name(words)
        first = cpu if self.is_new else 0.0
        found = self.processes.setdefault((int(entry.name), name), _Sampled(name, first))
        found.cpu = cpu - found.first_cpu
        found.memory = int(memory[1]) << 10 if memory else 0
        return found.memory

    def show(self, title: str, seconds: float) -> None:
        print(f"\n{title}, {seconds:.0f} s: % of a core, MB at the most")
        by_name: dict[str, list[_Sampled]] = defaultdict(list)
        for item in self.processes.values():
            by_name[item.name].append(item)
        for name, items in sorted(by_name.items()):
            share = sum(item.cpu for item in items) / seconds
            most = max(item.memory for item in items) / 1e6
            print(f"  {name:24} {share:7.2%} {most:8.0f} MB  {len(items)} processes")
        share = sum(item.cpu for item in self.processes.values()) / seconds
        print(f"  {'in all, at one time':24} {share:7.2%} {self.most_memory / 1e6:8.0f} MB")


def _name(words: list[bytes]) -> str:
    if words[0].endswith(b"java"):
        return "java"
    if b"heliograph" not in words:
        return Path(os.fsdecode(words[0])).name
    after = words[words.index(b"heliograph") + 1 :]
    return " ".join(os.fsdecode(word) for word in after[:2] if not word.startswith(b"-"))


async def run() -> None:
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as directory:
        layout = Layout(Path(directory) / "home")
        command = [sys.executable, "-m", "heliograph", "up", "--dir", str(layout.root)]
        process = await asyncio.create_subprocess_exec(
            *command, "--any-port", env={**os.environ, _MARK: mark}, stdout=PIPE, stderr=DEVNULL
        )
        phones = [DemoPhone(name, Path(directory) / name) for name in ("alice", "bob")]
        try:
            assert process.stdout is not None
            while not (found := state.read(layout.state)) or not found.is_up:
                await asyncio.sleep(0.2)
            drain = asyncio.ensure_future(process.stdout.read())
            meter = _Meter(mark)
            await _measured(meter, "idle", asyncio.sleep(SECONDS))
            await _connect(layout, found, phones)
            await _measured(meter, "two phones, a message in 20 s", _talk(phones))
        finally:
            for phone in phones:
                await phone.close()
            process.send_signal(signal.SIGTERM)
            await process.wait()
        await drain


async def _measured(meter: _Meter, title: str, work: Coroutine[None, None, None]) -> None:
    meter.reset()
    started = time.monotonic()
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.to_thread(meter.sample)
        await asyncio.wait({task}, timeout=SAMPLE_SECONDS)
    await task
    meter.show(title, time.monotonic() - started)


async def _connect(layout: Layout, status: state.SystemStatus, phones: list[DemoPhone]) -> None:
    alice, bob = phones
    routers = ("--smp", status.parts["smp"].address, "--ntf", status.parts["ntf"].address)
    for phone in phones:
        await phone.do("init", "--name", phone.name, *routers)
    for name in (CA_FILE, KEY_FILE):
        shutil.copy(layout.sim / name, bob.directory / name)
    config = load(SystemConfig, layout.config, prefix=PREFIX)
    control = f"http://127.0.0.1:{config.simulators.apns_control_port}"
    await alice.do("register", "--apns", control)
    await bob.do("register", "--webpush", "127.0.0.1")
    link = (await alice.do("connect", "--name", "bob")).strip()
    for phone in phones:
        await phone.watch(layout.journal)
    await bob.do("connect", link, "--name", "alice")


async def _talk(phones: list[DemoPhone]) -> None:
    until = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < until:
        number += 1
        sender, receiver = phones if number % 2 else reversed(phones)
        await sender.do("send", receiver.name, f"Message {number}")
        await receiver.until(f"Message {number}")
        await asyncio.sleep(MESSAGE_SECONDS)
