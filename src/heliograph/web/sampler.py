"""Asks the routers for their metrics again and again, and keeps the last minutes."""

import asyncio
import logging
import time
from collections import deque

import aiohttp

from heliograph.web.samples import Sample, parse

__all__ = ["Sampler"]

logger = logging.getLogger(__name__)

INTERVAL = 2.0
KEPT = 300
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class Sampler:
    """One router. `problem` says why there is no newer sample, if there is none."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.problem: str | None = "not asked yet" if url else "its metrics are off"

    async def run(self, session: aiohttp.ClientSession) -> None:
        while self._url is not None:
            await self.ask(session)
            await asyncio.sleep(INTERVAL)

    async def ask(self, session: aiohttp.ClientSession) -> None:
        if self._url is None:
            return
        try:
            async with session.get(f"{self._url}/metrics", timeout=_TIMEOUT) as answer:
                self.samples.append(parse(await answer.text(), time.time()))
            async with session.get(f"{self._url}/readyz", timeout=_TIMEOUT) as answer:
                text = (await answer.text()).strip()
                self.problem = None if answer.status == 200 else text
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            self.problem = "it does not answer"
            logger.debug("no metrics: %s", exc)
