"""Confirm stored notifications to a messaging router that keeps them until then."""

import asyncio
import contextlib
import logging

from heliograph.transport.client import Client
from heliograph.transport.errors import ClientError, Disconnected, RequestRefused
from heliograph.wire import smp
from heliograph.wire.smp.confirmations import encode_confirmation

logger = logging.getLogger(__name__)

CONFIRM_DELAY = 0.05
"""Seconds to collect confirmations: each costs a block in both directions."""


class Confirmer:
    """Confirmations on one connection, at most one in flight."""

    def __init__(self, client: Client) -> None:
        self.is_supported = False
        """The router waits for confirmations."""
        self._client = client
        self._stored = 0
        self._changed = asyncio.Event()

    async def negotiate(self) -> None:
        """Find out whether the router waits for confirmations; call it before subscribing."""
        with contextlib.suppress(RequestRefused):
            await self._send(0)

    def stored(self, count: int) -> None:
        """Confirm the first `count` notifications of the connection."""
        self._stored = count
        self._changed.set()

    async def run(self) -> None:
        """Send confirmations until the connection ends."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(CONFIRM_DELAY)
            self._changed.clear()
            try:
                await self._send(self._stored)
            except Disconnected:
                return
            except ClientError as exc:
                logger.warning("a confirmation of notifications failed: %s", type(exc).__name__)

    async def _send(self, count: int) -> None:
        await self._client.request(smp.PING(), corr_id=encode_confirmation(count))
