"""Where a simulated phone's pushes come from: a provider's record, or an endpoint of its own."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.webpush import decrypt
from heliograph.sim.authority import write_secret
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode, b64encode
from heliograph.wire.push import Push, decode_push, decode_push_binary
from heliograph.wire.tokens import APNSDeviceToken, DeviceToken, PushProvider, WPDeviceToken

logger = logging.getLogger(__name__)

WAIT = 2.0
RETRY = 0.5
WEBPUSH_FILE = "webpush.json"


@dataclass(frozen=True, slots=True)
class Delivered:
    """A push as a provider hands it to the device. `digest` is of its body, and unique to it."""

    digest: str
    push: Push


class PushSource(Protocol):
    @property
    def device(self) -> DeviceToken:
        """What the notification router is told to push to."""

    def pushes(self) -> AsyncIterator[Delivered]:
        """What was delivered, from the first that the provider remembers; never ends."""

    async def close(self) -> None: ...


class ApnsSource:
    """A `heliograph sim apns`, seen through its control endpoint."""

    def __init__(self, control_url: str, token: str) -> None:
        self._url = control_url.rstrip("/")
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    @property
    def device(self) -> DeviceToken:
        return APNSDeviceToken(PushProvider.APNS_TEST, self._token.encode())

    async def pushes(self) -> AsyncIterator[Delivered]:
        after = 0
        self._session = self._session or aiohttp.ClientSession()
        while True:
            try:
                entries = await self._poll(after)
                if not entries and await self._count() < after:
                    after = 0  # it started again, and counts from one
            except (aiohttp.ClientError, TimeoutError, ValueError):
                after = 0
                await asyncio.sleep(RETRY)
                continue
            for entry in entries:
                after = entry["seq"]
                delivered = _delivered(entry["body"].encode(), decode_push)
                if delivered is not None:
                    yield delivered

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _poll(self, after: int) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = await self._get(
            f"/devices/{self._token}", {"after": str(after), "wait": str(WAIT)}
        )
        return entries

    async def _count(self) -> int:
        """How many it got since it started."""
        stats = await self._get("/stats", {})
        return int(stats["accepted"]) + int(stats["rejected"])

    async def _get(self, path: str, query: Mapping[str, str]) -> Any:
        assert self._session is not None  # noqa: S101
        timeout = aiohttp.ClientTimeout(WAIT + 10)
        url = self._url + path
        async with self._session.get(url, params=query, timeout=timeout) as answer:
            answer.raise_for_status()
            return await answer.json()


class WebPushSource:
    """An endpoint that the phone itself has: it needs no provider, and a router that reaches it."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        from heliograph.sim.simulator import Simulator
        from heliograph.sim.webpush import WebPushService

        self._host = host
        self._port = port
        self._keys = _web_push_keys(directory)
        self.simulator = Simulator(WebPushService(), directory, record=False)

    async def start(self) -> None:
        """Listen; clients must trust `ca.crt` of the directory."""
        await self.simulator.start(self._host, self._port)
        self._port = int(self.simulator.url.rpartition(":")[2])

    @property
    def port(self) -> int:
        return self._port

    @property
    def device(self) -> DeviceToken:
        key, auth, path = self._keys
        return WPDeviceToken(self._host, str(self._port), f"/push/{path}", auth, key.public)

    async def pushes(self) -> AsyncIterator[Delivered]:
        key, auth, path = self._keys
        after = 0
        while True:
            for entry in await self.simulator.record.wait_for(path, after, WAIT):
                after = entry.seq
                try:
                    body = decrypt(b64decode(entry.body), key, auth)
                except (CryptoError, WireError):
                    logger.warning("a push that is not for this phone was left out")
                    continue
                delivered = _delivered(body, decode_push_binary)
                if delivered is not None:
                    yield delivered

    async def close(self) -> None:
        await self.simulator.close()


def _delivered(body: bytes, decode: Any) -> Delivered | None:
    try:
        return Delivered(hashlib.sha256(body).hexdigest(), decode(body))
    except WireError:
        logger.warning("a push that is none was left out")
        return None


def _web_push_keys(directory: Path) -> tuple[P256Key, bytes, str]:
    """The subscription's key, secret and path: the same from start to start."""
    file = directory / WEBPUSH_FILE
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        values = {
            "key": P256Key.generate().to_pem().decode(),
            "auth": b64encode(os.urandom(16)),
            "path": b64encode(os.urandom(18)),
        }
        write_secret(file, json.dumps(values).encode())
    values = json.loads(file.read_bytes())
    return P256Key.from_pem(values["key"].encode()), b64decode(values["auth"]), values["path"]


@contextlib.asynccontextmanager
async def opened(source: PushSource) -> AsyncIterator[PushSource]:
    if isinstance(source, WebPushSource):
        await source.start()
    try:
        yield source
    finally:
        await source.close()
