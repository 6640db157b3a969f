"""The push source of a phone, kept in its settings; and its journal, if it has one."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from heliograph.journal.identity import journal_identity
from heliograph.phone.app import NTF
from heliograph.phone.phone import SOURCE, Phone, PhoneError
from heliograph.phone.push import ApnsSource, PushSource, WebPushSource, opened
from heliograph.wire.addresses import split_vapid

CHECK = 10.0
NEEDED = (
    "--apns is the control URL that `heliograph sim apns` prints after the word control, http://...,"
    " not the address that routers push to"
)


async def check_apns(control_url: str) -> None:
    """Check the control endpoint. Raises `PhoneError` if it is none, or cannot be reached."""
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
    """Save Web Push as the source. The port is chosen once, because the router stores it."""
    host, _, port = where.partition(":")
    if port and not (port.isascii() and port.isdecimal() and int(port[:6]) < 65_536):
        raise PhoneError("--webpush is HOST or HOST:PORT, such as 192.0.2.1:8443")
    source = WebPushSource(phone.directory, host, int(port or 0))
    async with opened(source):
        await phone.store.set(SOURCE, f"webpush {host} {source.endpoint.port}")


async def save_none(phone: Phone) -> None:
    await phone.store.set(SOURCE, "elsewhere")


async def load(phone: Phone) -> PushSource:
    kind, *rest = (await phone.store.get(SOURCE) or "none").split(" ")
    match kind, rest:
        case "apns", [url]:
            return ApnsSource(url, await phone.token())
        case "webpush", [host, port]:
            routers = map(split_vapid, (await phone.store.get(NTF) or "").split("\n"))
            keys = [key for _, key in routers]
            # A router whose address has no key may sign with any.
            senders = [key for key in keys if key is not None] if None not in keys else []
            return WebPushSource(phone.directory, host, int(port), senders)
        case "elsewhere", _:
            raise PhoneError(
                "this phone's pushes go to the device that has its token, and a terminal cannot"
                " see them: register with --apns or --webpush to watch here"
            )
    raise PhoneError("this phone is not registered: run `heliograph device register` first")


@contextlib.asynccontextmanager
async def journaled(phone: Phone, place: Path) -> AsyncIterator[None]:
    """Record shown notifications in a journal directory, which phones and routers may share."""
    # Imported late: most phones keep no journal, and pyarrow is slow to import.
    from heliograph.journal.storage.writer import JournalWriter

    writer = JournalWriter(place, journal_identity(phone.directory), "device")
    phone.journal = writer
    try:
        yield
    finally:
        writer.close()
