"""Where a phone's pushes come from, kept in its settings; and its journal, if it has one."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from heliograph.journal.identity import journal_identity
from heliograph.journal.writer import JournalWriter
from heliograph.sim.phone import SOURCE, Phone, PhoneError
from heliograph.sim.phone_push import ApnsSource, PushSource, WebPushSource

CHECK = 10.0
NEEDED = (
    "--apns is the control URL that `heliograph sim apns` prints after the word control, http://...,"
    " not the address that routers push to"
)


async def check_apns(control_url: str) -> None:
    """Raises `PhoneError` if it is no control endpoint, or cannot be reached."""
    if not control_url.startswith(("http://", "https://")):
        raise PhoneError(NEEDED)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(CHECK)) as session,
            session.get(f"{control_url.rstrip('/')}/stats") as answer,
        ):
            answer.raise_for_status()
            await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        raise PhoneError(f"{control_url} does not answer as a control endpoint: {NEEDED}") from None


async def save_apns(phone: Phone, control_url: str) -> None:
    if not control_url.startswith(("http://", "https://")):
        raise PhoneError(NEEDED)
    await phone.store.set(SOURCE, f"apns {control_url}")


async def save_web_push(phone: Phone, where: str) -> None:
    """The port is chosen once: the router knows it from then on."""
    host, _, port = where.partition(":")
    if port and not (port.isascii() and port.isdecimal() and int(port[:6]) < 65_536):
        raise PhoneError("--webpush is HOST or HOST:PORT, such as 192.0.2.1:8443")
    source = WebPushSource(phone.directory, host, int(port or 0))
    await source.start()
    await source.close()
    await phone.store.set(SOURCE, f"webpush {host} {source.port}")


async def save_none(phone: Phone) -> None:
    await phone.store.set(SOURCE, "elsewhere")


async def load(phone: Phone) -> PushSource:
    kind, *rest = (await phone.store.get(SOURCE) or "none").split(" ")
    match kind, rest:
        case "apns", [url]:
            return ApnsSource(url, await phone.token())
        case "webpush", [host, port]:
            return WebPushSource(phone.directory, host, int(port))
        case "elsewhere", _:
            raise PhoneError(
                "this phone's pushes go to the device that has its token, and a terminal cannot"
                " see them: register with --apns or --webpush to watch here"
            )
    raise PhoneError("this phone is not registered: run `heliograph device register` first")


@contextlib.asynccontextmanager
async def journaled(phone: Phone, place: Path) -> AsyncIterator[None]:
    """What is shown meanwhile is recorded in a directory, which phones and routers may share."""
    writer = JournalWriter(place, journal_identity(phone.directory), "device")
    phone.journal = writer
    try:
        yield
    finally:
        writer.close()
