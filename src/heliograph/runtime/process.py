"""One router process: alone in its directory, stopped by a signal.

A first SIGTERM or SIGINT stops cleanly; a second one ends the process at once, which loses nothing
that was acknowledged.
"""

import asyncio
import atexit
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from heliograph.runtime import logs
from heliograph.runtime.errors import StartError, file_error
from heliograph.transport import loop as net

__all__ = [
    "LOCK",
    "holder",
    "lock",
    "notify_systemd",
    "raise_file_limit",
    "run",
    "run_in",
    "run_worker",
    "running_address",
]

logger = logging.getLogger(__name__)

LOCK = "lock"
LOCK_ATTEMPTS = 5
LOCK_DELAY = 0.05
SAME_REQUEST_SECONDS = 0.5
"""A signal this many seconds after the first one is the same request, sent by two senders."""

Serve = Callable[[], AbstractAsyncContextManager[str]]
"""Returns a context that runs a router and yields its address once it accepts connections."""


def run(directory: Path, serve: Serve) -> int:
    """Run a router until a signal; the result is the exit code."""
    atexit.register(gc.freeze)  # collecting all modules takes longer than stopping the router
    with lock(directory) as record_address:
        return net.run(_run(serve, record_address))


def run_worker(serve: Serve, received: Callable[[bytes], object]) -> int:
    """Run a process of a router whose supervisor has locked the directory.

    `received` is called with each line of standard input, by another thread. The end of input,
    which is that of the supervisor, stops the process like SIGTERM.
    """
    atexit.register(gc.freeze)
    threading.Thread(target=_read_input, args=(received,), daemon=True).start()
    return net.run(_run(serve, lambda address: None))


def _read_input(received: Callable[[bytes], object]) -> None:
    rest = b""  # no buffered reader: its lock, held by this thread, would abort the exit
    while data := os.read(0, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            received(line)
    os.kill(os.getpid(), signal.SIGTERM)


def run_in(directory: Path, work: Coroutine[object, object, int]) -> int:
    """Run work that handles signals itself, with the directory locked."""
    try:
        with lock(directory):
            return net.run(work)
    finally:
        work.close()


async def _run(serve: Serve, record_address: Callable[[str], None]) -> int:
    main = asyncio.current_task()
    assert main is not None  # noqa: S101
    stopping = asyncio.Event()
    is_ready = False
    asked_at = 0.0

    def stop(number: int) -> None:
        name = signal.Signals(number).name
        nonlocal asked_at
        if stopping.is_set():
            if time.monotonic() - asked_at < SAME_REQUEST_SECONDS:
                return
            logger.warning("%s again: ending at once", name)
            logs.flush()
            os._exit(128 + number)
        asked_at = time.monotonic()
        logger.info("%s: stopping", name)
        notify_systemd("STOPPING=1")
        stopping.set()
        if not is_ready:
            main.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        async with serve() as address:
            is_ready = True
            record_address(address)
            print(f"ready {address}", flush=True)  # noqa: T201
            notify_systemd("READY=1")
            logger.info("ready")
            await stopping.wait()
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        logger.info("stopped before it was ready")
        logs.flush()
        os._exit(0)  # otherwise the exit waits for threads that wait for a database
    logger.info("stopped")
    for number in (signal.SIGTERM, signal.SIGINT):
        # The same request by another sender must not change the exit code of a clean stop.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    return 0


@contextmanager
def lock(directory: Path) -> Iterator[Callable[[str], None]]:
    """Lock a directory; the kernel releases it however the process ends.

    The function it yields records the address, for `running_address`.
    """
    try:
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        raise StartError(
            f"{directory}: there is no such directory: run `init` to make it"
        ) from None
    except OSError as exc:
        raise StartError(file_error(exc, directory, "cannot be written")) from exc
    with os.fdopen(descriptor, "r+") as file:
        if not _take(file):
            pid = file.readline().strip() or "unknown"
            raise StartError(
                f"{directory} is used by a program that runs already (process {pid}): stop it"
                " first, or choose another directory"
            )

        def record(address: str) -> None:
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n{address}\n".encode(), 0)
            except OSError as exc:
                raise StartError(file_error(exc, directory, "cannot be written")) from exc

        record("")
        try:
            yield record
        finally:
            os.ftruncate(descriptor, 0)


def _take(file: TextIO) -> bool:
    # More than once, because `running_address` holds the lock for a moment to try it.
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_DELAY)
        else:
            return True
    return False


def running_address(directory: Path) -> str | None:
    """Return the address of the router that runs in a directory, or None.

    Raises `PermissionError` if this user may not know.
    """
    lines = _held(directory)
    return (lines[1] or None) if len(lines) > 1 else None


def holder(directory: Path) -> int | None:
    """Return the ID of the process that locks a directory, or None.

    Raises `PermissionError` if this user may not know.
    """
    lines = _held(directory)
    return int(lines[0]) if lines else None


def _held(directory: Path) -> list[str]:
    """Return the lines that the process which locks a directory recorded."""
    try:
        with (directory / LOCK).open() as file:
            lines = file.read().splitlines()
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lines
    except (FileNotFoundError, NotADirectoryError):
        pass
    return []


def notify_systemd(state: str) -> None:
    """Notify the service manager, if there is one: see sd_notify(3)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    target = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), target)
    except OSError as exc:
        logger.warning("cannot notify the service manager: %s", exc.strerror)


def raise_file_limit(wanted: int) -> None:
    """Raise the limit of descriptors as far as possible, and warn if connections may need more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS reports no limit, and then refuses to set it.
        target = hard if hard != resource.RLIM_INFINITY else wanted
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):
            logger.debug("the limit of open files cannot be raised")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        logger.info(
            "at most %d files may be open, less than connections may need: for more, raise the"
            " limit (LimitNOFILE in a systemd unit, ulimit -n in a shell)",
            soft,
        )
