"""`heliograph up | down | status | logs`: the whole system in one directory."""

import argparse
import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from heliograph.cli.actions import Run, add_parser, check_directory, default_home, reporting
from heliograph.cli.arguments import Subparsers
from heliograph.documents import JsonObject
from heliograph.runtime import process
from heliograph.runtime.config.file import load
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import private_opener
from heliograph.system import state
from heliograph.system.config import PREFIX, PageOptions, SystemConfig
from heliograph.system.layout import Layout
from heliograph.system.logfile import merge, tail
from heliograph.system.parts import parts
from heliograph.system.state import PartState, SystemStatus
from heliograph.tasks import TaskScope

ALL_READY: Mapping[str, str] = MappingProxyType({})

_UP = """\
Start a messaging router, a notification router, the status page and the data pipeline, each in its
own process, and supervise them until SIGTERM or Ctrl-C. A process that ends is restarted.

The first time, create the directory, with keys, free ports and a commented config.toml for the
system and for each router. On a loopback or private --host, simulated push providers run too, for
phones in a terminal: see `heliograph device --help`.
"""
_EXAMPLES = """\
  heliograph up                              # for this machine
  heliograph up --host push.example.com -d   # for the public, in the background
  heliograph status
  heliograph logs -f ntf
  heliograph down
"""
START_TIMEOUT = 90.0
STOP_TIMEOUT = 40.0


def add(commands: Subparsers) -> None:
    up = add_command(commands, "up", "run the whole system from one directory", run_up, _UP)
    up.epilog = _EXAMPLES
    up.add_argument("--host", help="the name or address clients use, for a new system (127.0.0.1)")
    up.add_argument(
        "-d", "--detach", action="store_true", help="return when all but the pipeline is ready"
    )
    up.add_argument(
        "--no-pipeline", action="store_true", help="for a new system: without the data pipeline"
    )
    up.add_argument(
        "--no-simulators",
        action="store_true",
        help="for a new system: without simulated push providers",
    )
    up.add_argument("--any-port", action="store_true", help="for a new system: any free ports")
    down = add_command(commands, "down", "stop the system that runs in a directory", run_down)
    down.add_argument("--timeout", type=float, default=STOP_TIMEOUT, metavar="SECONDS")
    add_command(commands, "status", "show what runs, where, and whether it is ready", run_status)
    log = add_command(commands, "logs", "show the logs of all processes, by time", run_logs)
    log.add_argument("part", nargs="*", help="smp, ntf, page, pipeline, apns, webpush (all)")
    log.add_argument("-n", "--lines", type=int, default=20, help="how many lines of each (20)")
    log.add_argument("-f", "--follow", action="store_true", help="print new lines as they come")


def add_command(
    commands: Subparsers, name: str, help: str, run: Run, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command whose `--dir` is a system's directory."""
    place = "the system's directory (default: $HELIOGRAPH_HOME, or ~/.heliograph)"
    parser = add_parser(commands, name, help, description, default_home(), place)
    parser.set_defaults(run=reporting(f"heliograph {name}", _with_access(run)))
    return parser


def _with_access(run: Run) -> Run:
    """Refuse a directory that this user may not read, which would look empty."""

    def run_with_access(options: argparse.Namespace) -> int:
        root: Path = options.dir.absolute()
        check_directory(root)
        if root.is_dir() and not os.access(root, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))
        return run(options)

    return run_with_access


def load_system(layout: Layout, overrides: JsonObject | None = None) -> SystemConfig:
    if not layout.config.exists():
        raise StartError(f"{layout.config} is missing: run `heliograph up --dir {layout.root}`")
    return load(SystemConfig, layout.config, prefix=PREFIX, overrides=overrides or {})


def run_up(options: argparse.Namespace) -> int:
    from heliograph.system.install import create, has_simulators
    from heliograph.system.requirements import require

    layout = Layout(options.dir.absolute())
    if not layout.config.exists():
        host = "127.0.0.1" if options.host is None else options.host
        simulators = not options.no_simulators and has_simulators(host)
        pipeline = not options.no_pipeline
        require(simulators=simulators, pipeline=pipeline)
        create(
            layout.root,
            host,
            simulators=simulators,
            pipeline=pipeline,
            any_port=options.any_port,
        )
        print(f"Made a system in {layout.root}", flush=True)
    elif options.host is not None:
        raise StartError(
            f"--host is for a new system: change [listen] host in {layout.smp / 'config.toml'} and"
            f" {layout.ntf / 'config.toml'}"
        )
    config = load_system(layout)
    require(simulators=config.simulators.enabled, pipeline=config.pipeline.enabled)
    if options.detach:
        return _detach(layout)
    return process.run_in(layout.root, _serve(layout, config))


async def _serve(layout: Layout, config: SystemConfig) -> int:
    from heliograph.system.supervisor import Supervisor

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    supervisor = Supervisor(layout, parts(layout, config))
    tasks = TaskScope()
    starting = tasks.spawn(supervisor.start(), name="start all parts", is_awaited=True)
    stopped = tasks.spawn(stopping.wait(), name="wait for a signal")
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            for line in describe(layout, supervisor.status, time.time()):
                print(line, flush=True)
            print("Ctrl-C stops it.", flush=True)
            process.notify_systemd("READY=1")
            await stopped
        print("Stopping", flush=True)
        process.notify_systemd("STOPPING=1")
    finally:
        await tasks.close()
        await supervisor.stop()
    return 0


def _detach(layout: Layout) -> int:
    if (pid := process.holder(layout.root)) is not None:
        raise StartError(
            f"a system runs in {layout.root} already (process {pid}):"
            " see `heliograph status`, or stop it with `heliograph down`"
        )
    layout.logs.mkdir(mode=0o700, exist_ok=True)
    layout.state.unlink(missing_ok=True)
    command = [sys.executable, "-m", "heliograph", "up", "--dir", str(layout.root)]
    with open(layout.log("up"), "ab", opener=private_opener) as log:
        log.seek(0, os.SEEK_END)
        begin = log.tell()
        child = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        found = state.read(layout.state)
        if found is not None and found.is_up and found.pid == child.pid:
            for line in describe(layout, found, time.time()):
                print(line)
            return 0
        if child.poll() is not None:
            with layout.log("up").open(errors="replace") as log_text:
                log_text.seek(begin)
                words = [line.removeprefix("heliograph up: ") for line in log_text]
                words = [line for line in words if " INFO " not in line]
                raise StartError("".join(words).strip() or f"see {layout.log('up')}")
        time.sleep(0.1)
    child.terminate()
    raise StartError(f"it was not ready in {START_TIMEOUT:.0f} s: see {layout.logs}")


def run_down(options: argparse.Namespace) -> int:
    layout = Layout(options.dir.absolute())
    pid = process.holder(layout.root)
    if pid is None:
        print(f"Nothing runs in {layout.root}.")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + options.timeout
    while time.monotonic() < deadline:
        if process.holder(layout.root) != pid:
            print("Stopped.")
            return 0
        time.sleep(0.1)
    raise StartError(f"process {pid} still runs after {options.timeout:g} s: see {layout.logs}")


def run_status(options: argparse.Namespace) -> int:
    layout = Layout(options.dir.absolute())
    pid = process.holder(layout.root)
    if pid is None:
        print(f"Nothing runs in {layout.root}. `heliograph up --dir {layout.root}` starts it.")
        return 1
    found = state.read(layout.state)
    if found is None and layout.state.exists():
        raise StartError(
            f"a system runs in {layout.root} (process {pid}), but {layout.state} cannot be read:"
            " run `heliograph down`, then `heliograph up`"
        )
    if found is None or found.pid != pid:
        print(f"The system in {layout.root} is starting (process {pid}).")
        return 1
    from heliograph.system.readiness import problems

    running = [name for name, part in found.parts.items() if part.state is PartState.RUNNING]
    not_ready = problems(layout, running)
    for line in describe(layout, found, time.time(), not_ready):
        print(line)
    return 0 if len(running) == len(found.parts) and not not_ready else 1


def describe(
    layout: Layout, found: SystemStatus, now: float, not_ready: Mapping[str, str] = ALL_READY
) -> list[str]:
    """Return lines for people: each process, why a router is not ready, and what to do next."""
    lines = []
    for name, part in found.parts.items():
        for_how_long = _duration(now - part.since)
        details = part.address.split(" ca ")[0]
        if part.state is not PartState.RUNNING:
            details = f"last run: {part.ended}" if part.ended else ""
        times = "once" if part.restarts == 1 else f"{part.restarts} times"
        restarts = f"  restarted {times}" if part.restarts else ""
        lines.append(f"{name:<9} {part.state.value:<8} {for_how_long:>6}  {details}{restarts}")
        if name in not_ready:
            lines.append(f"{'':<9} {not_ready[name]}")
    page = found.parts.get("page")
    if page is not None and page.address:
        asked = not PageOptions(host=urlsplit(page.address).hostname or "").is_loopback
        lines.append(f"\nStatus page: {page.address}")
        if asked:
            lines.append(f"Its token is in {layout.token}.")
        lines.append(f"Logs: heliograph logs --dir {layout.root}")
    return [*lines, *_phone_lines(found)]


def _phone_lines(found: SystemStatus) -> list[str]:
    """Return the commands that create a phone in this terminal, if simulators and routers run."""
    addresses = {name: part.address for name, part in found.parts.items()}
    if " control " not in addresses.get("apns", "") or not (addresses["smp"] and addresses["ntf"]):
        return []
    control = addresses["apns"].split(" control ")[1].split(" ")[0]
    routers = f"--smp {addresses['smp']} --ntf {addresses['ntf']}"
    return [
        "A phone to try it with:",
        f"  heliograph device init --dir alice --name Alice {routers}",
        f"  heliograph device register --dir alice --apns {control}",
    ]


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def run_logs(options: argparse.Namespace) -> int:
    layout = Layout(options.dir.absolute())
    files = os.listdir(layout.logs) if layout.logs.exists() else []
    known = sorted(Path(name).stem for name in files if name.endswith(".log"))
    unknown = [part for part in options.part if part not in known]
    if unknown or not known:
        names = ", ".join(known) or "none yet"
        raise StartError(f"there is no log of {', '.join(unknown) or 'anything'}: there is {names}")
    shown = options.part or known
    lines = max(options.lines, 0)
    for part, line in merge({part: tail(layout.log(part), lines) for part in shown}):
        print(f"{part:<9} {line}")
    return _follow(layout, shown) if options.follow else 0


def _follow(layout: Layout, shown: list[str]) -> int:
    places = {part: layout.log(part).stat().st_size for part in shown}
    while True:
        sys.stdout.flush()
        time.sleep(0.2)
        added: dict[str, list[str]] = {}
        for part, place in places.items():
            path = layout.log(part)
            if not path.exists():
                continue
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = place if size >= place else 0  # smaller: the log was rotated
                file.seek(begin)
                data = file.read()
            whole = data.rfind(b"\n") + 1
            places[part] = begin + whole
            added[part] = data[:whole].decode(errors="replace").splitlines()
        for part, line in merge(added):
            print(f"{part:<9} {line}")
