"""The `heliograph` command as a process: run it, start routers, stop them."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.faults.processes import HELIOGRAPH as COMMAND

TIMEOUT = 60

Process = subprocess.Popen[str]
Start = Callable[..., Process]


def environment(**variables: str) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")
    }
    return {**inherited, **variables}


def run(*arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment(**variables),
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextmanager
def starting(part: str) -> Iterator[Start]:
    """Yield a function that starts routers of a part; those that still run are killed."""
    started: list[Process] = []

    def start(*arguments: object, **variables: str) -> Process:
        process = subprocess.Popen(
            [*COMMAND, part, "start", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**variables),
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ready(process: Process) -> str:
    """Wait for the line of a router that is ready, and return its address."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(("ready smp://", "ready ntf://")), process.communicate(timeout=TIMEOUT)
    return line.removeprefix("ready ").rstrip("\n")


def stop(process: Process, number: int = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT)
    assert "Traceback" not in err, err
    return process.returncode, out, err
