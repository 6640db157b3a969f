"""`heliograph ntf probe`: check a running router step by step."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from heliograph.runtime.errors import StartError
from heliograph.transport import loop
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address
from heliograph.wire.errors import WireError
from heliograph.wire.ntf.push import Push, decode_push
from heliograph.wire.ntf.tokens import DeviceToken, decode_token_text

if TYPE_CHECKING:
    from heliograph.ntf.diagnosis.probe import ProbePath
__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", help="another router (default: the one that runs in the directory)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="time limit of each step (default: 20)",
    )
    parser.add_argument(
        "--smp",
        metavar="ADDRESS",
        help="a messaging router: send a message through it, and receive its push as --apns"
        " or --token says",
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--apns", metavar="URL", help="the control URL of `heliograph sim apns`")
    device.add_argument(
        "--token",
        metavar="TOKEN",
        help="the token of a real device, such as 'apns_dev 00ff'; each push that it receives is"
        " read from standard input as one line of JSON",
    )


def run(options: argparse.Namespace, local: Callable[[], ServerAddress]) -> int:
    """Probe a router, the `local` one by default; the result is the exit code.

    Raises `StartError` for wrong options.
    """
    if (options.smp is None) != (options.apns is None and options.token is None):
        raise StartError("--smp needs --apns or --token, and they need --smp")
    given = options.address
    address = local() if given is None else _address("--address", given, Scheme.NTF)
    print(f"probing {address}", flush=True)
    return 0 if loop.run(_probe(options, address)) else 1


async def _probe(options: argparse.Namespace, address: ServerAddress) -> bool:
    from heliograph.ntf.diagnosis.probe import probe

    def report(step: str, seconds: float, problem: str | None) -> None:
        result = "ok" if problem is None else f"FAILED: {problem}"
        print(f"  {step:<24} {seconds * 1000:8.1f} ms  {result}", flush=True)

    if options.smp is None:
        return await probe(address, report, options.timeout)
    async with _path(options) as path:
        return await probe(address, report, options.timeout, path)


@asynccontextmanager
async def _path(options: argparse.Namespace) -> AsyncIterator["ProbePath"]:
    from heliograph.ntf.diagnosis.probe import ProbePath

    smp = _address("--smp", options.smp, Scheme.SMP)
    async with AsyncExitStack() as stack:
        if options.token is not None:
            yield ProbePath(smp, _piped(options.token, stack))
            return
        from heliograph.phone.errors import PhoneError
        from heliograph.phone.push import ApnsSource, SimulatedDevice
        from heliograph.phone.sources import check_apns

        try:
            await check_apns(options.apns)
        except PhoneError as exc:
            raise StartError(str(exc)) from None
        source = ApnsSource(options.apns, os.urandom(32).hex())
        stack.push_async_callback(source.close)
        yield ProbePath(smp, SimulatedDevice(source))


def _piped(text: str, stack: AsyncExitStack) -> "_Piped":
    try:
        piped = _Piped(decode_token_text(text))
    except WireError as exc:
        raise StartError(f"--token: {exc}") from exc
    stack.callback(piped.close)
    return piped


def _address(option: str, text: str, scheme: Scheme) -> ServerAddress:
    try:
        address = decode_address(text)
    except WireError as exc:
        raise StartError(f"{option}: {exc}") from exc
    if address.scheme is not scheme:
        raise StartError(f"{option}: must begin with {scheme.value}://")
    return address


class _Piped:
    """A real device, whose pushes are lines of JSON on standard input."""

    def __init__(self, device: DeviceToken) -> None:
        self.device = device
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sys.stdin.fileno(), self._read)

    async def receive(self) -> Push:
        return decode_push(await self._lines.get())

    def close(self) -> None:
        self._loop.remove_reader(sys.stdin.fileno())

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 64 * 1024)
        if not data:
            self.close()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line)
