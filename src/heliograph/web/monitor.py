"""Watch a system: sample the routers, keep series, find problems and send alerts."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

import aiohttp

from heliograph import __version__
from heliograph.documents import JsonObject
from heliograph.web import live
from heliograph.web.alerts import AlertRules, Alerts, AlertTarget, Installation, send
from heliograph.web.health import HealthProblem, problems, state_of
from heliograph.web.metrics.sampler import INTERVAL, Sampler
from heliograph.web.metrics.series import RANGES, Series

__all__ = ["Monitor", "Sources"]

logger = logging.getLogger(__name__)


class Sources(Protocol):
    """What the page reads besides metrics. Each call may take a while."""

    def processes(self) -> list[JsonObject]: ...

    def machine(self) -> JsonObject: ...

    def disks(self) -> list[JsonObject]: ...

    def pipeline(self) -> JsonObject: ...

    def history(self, hours: int) -> JsonObject: ...

    def search(self, wanted: str) -> JsonObject: ...

    def addresses(self) -> dict[str, str | None]: ...


class Monitor:
    """The state of a system now, refreshed by `run`."""

    def __init__(
        self,
        samplers: Mapping[str, Sampler],
        sources: Sources,
        installation: Installation,
        target: AlertTarget | None = None,
        rules: AlertRules | None = None,
    ) -> None:
        self.series = {name: Series(*shape) for name, shape in RANGES.items()}
        self.sources = sources
        self._samplers = samplers
        self._installation = installation
        self._target = target or AlertTarget()
        self._alerts = Alerts(rules or AlertRules())
        self._started_at = time.time()
        self._slow: JsonObject = {}
        self._looked = False

    async def run(self) -> None:
        """Refresh every few seconds, until it is cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    await self.refresh(session)
                except Exception:
                    logger.exception("the state of the system could not be read")
                await asyncio.sleep(INTERVAL)

    async def refresh(self, session: aiohttp.ClientSession) -> None:
        now = time.time()
        names = list(self._samplers)
        samples = await asyncio.gather(*(self._samplers[name].ask(session, now) for name in names))
        for series in self.series.values():
            series.add(now, dict(zip(names, samples, strict=True)))
        self._slow = await asyncio.to_thread(self._read_sources)
        self._looked = True
        document = self.document(now)
        alerts = self._alerts.update(self._problems(document, now), now)
        for alert in alerts if self._target else ():
            await send(session, self._target, self._installation, alert)

    def document(self, now: float) -> JsonObject:
        """Return everything that the page shows of now, without the problems."""
        slow = self._slow or _NOTHING_READ
        return {
            "at": now,
            "version": __version__,
            "installation": self._installation.as_json(),
            "page_started_at": self._started_at,
            "interval_seconds": INTERVAL,
            "routers": {
                name: {
                    "problem": sampler.problem,
                    "as_of": sampler.as_of,
                    "is_stale": sampler.is_stale(now),
                }
                for name, sampler in self._samplers.items()
            },
            **slow,
            **live.live(tuple(self._samplers["ntf"].samples), tuple(self._samplers["smp"].samples)),
        }

    def current(self, now: float) -> JsonObject:
        """Return the document with its problems."""
        document = self.document(now)
        found = self._problems(document, now) if self._looked else []
        return {
            **document,
            "state": state_of(found, self._looked),
            "problems": [problem.as_json() for problem in found],
        }

    def _problems(self, document: JsonObject, now: float) -> list[HealthProblem]:
        certificates = {
            name: live.certificates(name, tuple(sampler.samples))
            for name, sampler in self._samplers.items()
        }
        return problems(document, certificates, now)

    def _read_sources(self) -> JsonObject:
        return {
            "processes": self.sources.processes(),
            "machine": self.sources.machine(),
            "disks": self.sources.disks(),
            "pipeline": self.sources.pipeline(),
        }


_NOTHING_READ: JsonObject = {
    "processes": [],
    "machine": {
        "cores": 1,
        "load": None,
        "memory_total": None,
        "memory_available": None,
        "uptime_seconds": None,
    },
    "disks": [],
    "pipeline": {
        "state": "unknown",
        "lag_seconds": None,
        "events": None,
        "quarantined": None,
        "unaccounted": None,
        "outcomes": {},
        "objectives_until": None,
        "objectives": [],
    },
}
