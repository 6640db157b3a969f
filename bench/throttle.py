"""Give processes a small budget of CPU each, so that few cores show how several processes scale.

Without privileges: a process that has used more than its budget is stopped until it has earned it.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

TICK = 0.002
BURST = 0.02
"""Seconds of CPU that a process may save up while it has nothing to do."""


@contextmanager
def throttled(pids: Sequence[int], share: float) -> Iterator[None]:
    """Continue stopped processes, and limit each to a share of a core inside the context."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_throttle, args=(pids, share, theirs), daemon=True)
    process.start()
    try:
        ours.recv()
        yield
    finally:
        process.kill()
        process.join()
        send(pids, signal.SIGCONT)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    return time.clock_gettime((~pid << 3) | 2)  # Linux's clock of another process


def _throttle(pids: Sequence[int], share: float, pipe: Connection) -> None:
    earned = {pid: cpu_of(pid) for pid in pids}
    stopped: set[int] = set()
    before = time.monotonic()
    send(pids, signal.SIGCONT)
    pipe.send(None)
    while True:
        time.sleep(TICK)
        now = time.monotonic()
        for pid in pids:
            used = cpu_of(pid)
            earned[pid] = min(earned[pid] + share * (now - before), used + BURST)
            if used > earned[pid] and pid not in stopped:
                os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)
            elif used <= earned[pid] and pid in stopped:
                os.kill(pid, signal.SIGCONT)
                stopped.remove(pid)
        before = now
