"""Ask a router for its metrics and its readiness, and keep the samples of the last minutes."""

import logging
from collections import deque

import aiohttp

from heliograph.web.metrics.samples import Sample, parse

__all__ = ["INTERVAL", "STALE_AFTER", "Sampler"]

logger = logging.getLogger(__name__)

INTERVAL = 2.0
STALE_AFTER = 3 * INTERVAL
MAX_SAMPLES = 300
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)

NOT_ASKED = "not asked yet"
NO_ANSWER = "it does not answer"
METRICS_OFF = "its metrics are off"


class Sampler:
    """The samples of one router. `problem` says why there is none, or that it is not ready."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.problem: str | None = NOT_ASKED if url else METRICS_OFF

    @property
    def as_of(self) -> float | None:
        """Return when the newest sample was taken."""
        return self.samples[-1].at if self.samples else None

    def is_stale(self, now: float) -> bool:
        return self.as_of is None or now - self.as_of > STALE_AFTER

    async def ask(self, session: aiohttp.ClientSession, now: float) -> Sample | None:
        """Take one sample; return None if the router does not answer."""
        if self._url is None:
            return None
        try:
            async with session.get(f"{self._url}/metrics", timeout=_TIMEOUT) as answer:
                sample = parse(await answer.text(), now)
            async with session.get(f"{self._url}/readyz", timeout=_TIMEOUT) as answer:
                text = (await answer.text()).strip()
                self.problem = None if answer.status == 200 else text
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            self.problem = NO_ANSWER
            logger.debug("no metrics: %s", exc)
            return None
        self.samples.append(sample)
        return sample
