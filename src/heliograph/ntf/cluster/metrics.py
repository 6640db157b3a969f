"""The metrics of all workers as one, and each for itself."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from heliograph.ntf.cluster.supervisor import PORT_FILE, worker_directory
from heliograph.ntf.observing.metrics import SAVED_COUNTERS
from heliograph.runtime.http import HttpServer
from heliograph.runtime.metrics import CONTENT_TYPE

__all__ = ["WorkerCounters", "WorkersHttpServer", "merged"]

TIMEOUT = aiohttp.ClientTimeout(total=2.0)

OF_STORE = frozenset(
    (
        "simplex_ntf_tokens_total",
        "simplex_ntf_subscriptions_approx_total",
        "simplex_ntf_notifications_total",
        "simplex_ntf_apns_push_queue_length",
        "simplex_ntf_info",
        "heliograph_ntf_tokens",
        "heliograph_ntf_subscriptions",
        "heliograph_ntf_pending_pushes",
        "heliograph_ntf_oldest_pending_push_seconds",
        "heliograph_ntf_actions_in_force",
        "heliograph_ntf_alerts",
        "heliograph_ntf_journal_bytes",
        "process_start_time_seconds",
        "python_info",
    )
)
"""Metrics that each worker reads from the store or the disk: not added up."""
_OF_STORE_BY_SERVER = (
    "simplex_ntf_smp_subscription_pending_",
    "simplex_ntf_smp_service_subscription_pending_",
)
"""Beginnings of the names of others."""
_WORKERS = "heliograph_ntf_workers"
_NOT_ADDED = ("certificate", "expir", "max_fds")


def merged(texts: Iterable[str]) -> str:
    """Add up the metrics of several processes; of what is the store's, take the greatest.

    The samples of a metric stay together, also those that only some processes have.
    """
    metrics: dict[str, dict[str, str | float]] = {}
    metric_of: dict[str, str] = {}
    for text in texts:
        metric = ""
        for line in text.splitlines():
            if line.startswith("#"):
                mark, word, metric, *_ = line.split(" ", 3)
                metrics.setdefault(metric, {}).setdefault(f"{mark} {word}", line)
                continue
            sample, _, value = line.rpartition(" ")
            name = sample.partition("{")[0]
            samples = metrics.setdefault(metric_of.setdefault(name, metric or name), {})
            before, number = samples.get(sample), float(value)
            if isinstance(before, float):
                number = max(before, number) if _is_of_store(sample) else before + number
            samples[sample] = number
    return "".join(
        f"{value}\n" if isinstance(value, str) else f"{key} {value!r}\n"
        for samples in metrics.values()
        for key, value in samples.items()
    )


def _is_of_store(sample: str) -> bool:
    name = sample.partition("{")[0]
    is_fixed = any(word in name for word in _NOT_ADDED) and not name.endswith("_expired_total")
    return is_fixed or name in OF_STORE or name.startswith(_OF_STORE_BY_SERVER)


class WorkerCounters:
    """The counters of one worker, which do not fall when it is started again or does not answer.

    Prometheus takes a counter that falls for one that began at 0: if a sum of workers fell, all
    that the others had ever counted would count as new.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def continued(self, text: str | None) -> str:
        """Return the metrics of the worker; its counters only, if it does not answer."""
        if text is None:
            return "".join(f"{sample} {total!r}\n" for sample, total in self._totals.items())
        lines, counts = [], False
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                counts = line.endswith((" counter", " histogram"))
            if counts and not line.startswith("#"):
                sample, _, value = line.rpartition(" ")
                line = f"{sample} {self._add(sample, float(value))!r}"
            lines.append(f"{line}\n")
        return "".join(lines)

    def _add(self, sample: str, value: float) -> float:
        grown = value - self._last.get(sample, 0.0)
        if grown < 0:
            grown = 0.0 if sample.startswith(SAVED_COUNTERS) else value
        self._last[sample] = value
        self._totals[sample] = self._totals.get(sample, 0.0) + grown
        return self._totals[sample]


class WorkersHttpServer(HttpServer):
    """`/metrics` of all workers added up; `/metrics?process=2` of one."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(CollectorRegistry(), self._not_ready)
        self._directory = directory
        self._asking = asyncio.Lock()
        self._counters = {number: WorkerCounters() for number in range(1, count + 1)}

    async def _metrics(self, request: web.Request) -> web.Response:
        wanted = request.query.get("process")
        if wanted is None:
            async with self._asking:  # an answer that comes late must not look like a restart
                body = self._sum(await self._ask(self._counters, "metrics"))
        else:
            numbers = [number for number in self._counters if wanted == str(number)]
            body = self._page([text for text in await self._ask(numbers, "metrics") if text])
        return web.Response(body=body.encode(), headers={"Content-Type": CONTENT_TYPE})

    def _sum(self, answers: Iterable[str | None]) -> str:
        """Return the sums of all; those that answered say of which type the samples are."""
        pairs = [*zip(self._counters.values(), answers, strict=True)]
        answered = [counters.continued(text) for counters, text in pairs if text is not None]
        silent = [counters.continued(None) for counters, text in pairs if text is None]
        return self._page(answered, silent if answered else ())

    @staticmethod
    def _page(answered: Sequence[str], silent: Sequence[str] = ()) -> str:
        return (
            f"{merged([*answered, *silent])}# TYPE {_WORKERS} gauge\n{_WORKERS} {len(answered)}\n"
        )

    async def _not_ready(self) -> str | None:
        """Return None if any worker is ready: it serves every client."""
        answers = await self._ask(self._counters, "readyz")
        return None if any(answer is not None for answer in answers) else "no worker is ready"

    async def _ask(self, numbers: Iterable[int], path: str) -> list[str | None]:
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            return await asyncio.gather(*(self._get(session, number, path) for number in numbers))

    async def _get(self, session: aiohttp.ClientSession, number: int, path: str) -> str | None:
        try:
            port = int((worker_directory(self._directory, number) / PORT_FILE).read_text())
            async with session.get(f"http://127.0.0.1:{port}/{path}") as response:
                return await response.text() if response.status == 200 else None
        except (OSError, ValueError, TimeoutError, aiohttp.ClientError):
            return None
