"""Where a phone's pushes come from: a simulated provider's record, or an endpoint of its own."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from heliograph.documents import JsonObject
from heliograph.phone.endpoint import WebPushEndpoint
from heliograph.wire.errors import WireError
from heliograph.wire.ntf.push import Push, decode_push
from heliograph.wire.ntf.tokens import APNSDeviceToken, DeviceToken, PushProvider

logger = logging.getLogger(__name__)

LONG_POLL = 2.0
RETRY_DELAY = 0.5


@dataclass(frozen=True, slots=True)
class DeliveredPush:
    """A push as a provider hands it to the device.

    `push_id` identifies the delivery, not the body: all pushes that wake the app are alike.
    """

    push_id: str
    push: Push


class PushSource(Protocol):
    @property
    def device(self) -> DeviceToken:
        """Return the token to register at the notification router."""

    def pushes(self) -> AsyncIterator[DeliveredPush]:
        """Yield every push that the source still has, then each that arrives; never ends."""

    async def handled(self, push_id: str) -> None:
        """Forget a push, because it was fully handled."""

    async def close(self) -> None: ...


class ApnsSource:
    """Reads the pushes of a `heliograph sim apns` through its control endpoint."""

    def __init__(self, control_url: str, token: str) -> None:
        self._url = control_url.rstrip("/")
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    @property
    def device(self) -> DeviceToken:
        return APNSDeviceToken(PushProvider.APNS_TEST, self._token.encode())

    async def pushes(self) -> AsyncIterator[DeliveredPush]:
        after = 0
        self._session = self._session or aiohttp.ClientSession()
        while True:
            try:
                entries = await self._poll(after)
                if not entries and await self._count() < after:
                    after = 0  # the simulator restarted and counts from one
            except (aiohttp.ClientError, TimeoutError, ValueError):
                after = 0
                await asyncio.sleep(RETRY_DELAY)
                continue
            for entry in entries:
                after = entry["seq"]
                body = entry["body"].encode()
                push_id = hashlib.sha256(f"{entry['time']} ".encode() + body).hexdigest()
                delivered = _decode(push_id, body)
                if delivered is not None:
                    yield delivered

    async def handled(self, push_id: str) -> None:
        """Do nothing: the simulator keeps its record."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _poll(self, after: int) -> list[JsonObject]:
        entries: list[JsonObject] = await self._get(
            f"/devices/{self._token}", {"after": str(after), "wait": str(LONG_POLL)}
        )
        return entries

    async def _count(self) -> int:
        """Return how many pushes the simulator received since it started."""
        stats = await self._get("/stats", {})
        return int(stats["accepted"]) + int(stats["rejected"])

    async def _get(self, path: str, query: Mapping[str, str]) -> Any:  # Any: a JSON document
        assert self._session is not None  # noqa: S101
        timeout = aiohttp.ClientTimeout(LONG_POLL + 10)
        url = self._url + path
        async with self._session.get(url, params=query, timeout=timeout) as answer:
            answer.raise_for_status()
            return await answer.json()


class SimulatedDevice:
    """A device for a probe, to which a simulated APNs pushes."""

    def __init__(self, source: ApnsSource) -> None:
        self.device = source.device
        self._pushes = source.pushes()

    async def receive(self) -> Push:
        return (await anext(self._pushes)).push


class WebPushSource:
    """Receives pushes at the phone's own endpoint: no provider, only a router that reaches it."""

    def __init__(
        self,
        directory: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        senders: Collection[bytes] = (),
    ) -> None:
        """`senders` are the VAPID keys of the routers that may push here; any if there are none."""
        self.endpoint = WebPushEndpoint(directory, host, port, senders)

    @property
    def device(self) -> DeviceToken:
        return self.endpoint.device

    async def pushes(self) -> AsyncIterator[DeliveredPush]:
        async for push_id, body in self.endpoint.bodies():
            delivered = _decode(push_id, body)
            if delivered is None:
                await self.endpoint.handled(push_id)
            else:
                yield delivered

    async def handled(self, push_id: str) -> None:
        await self.endpoint.handled(push_id)

    async def close(self) -> None:
        await self.endpoint.close()


def _decode(push_id: str, body: bytes) -> DeliveredPush | None:
    try:
        return DeliveredPush(push_id, decode_push(body))
    except WireError:
        logger.warning("skipped a push that cannot be decoded")
        return None


@contextlib.asynccontextmanager
async def opened(source: PushSource) -> AsyncIterator[PushSource]:
    """Start a source, and close it at the end. Raises `OSError` if its port is taken."""
    if isinstance(source, WebPushSource):
        await source.endpoint.start()
    try:
        yield source
    finally:
        await source.close()
