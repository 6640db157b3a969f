"""The metrics of all workers as one, and each for itself."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from heliograph.ntf.cluster.supervisor import PORT_FILE, worker_directory
from heliograph.runtime.http import HttpServer
from heliograph.runtime.metrics import CONTENT_TYPE, expose, gauge

__all__ = ["WorkersHttpServer", "merged"]

TIMEOUT = aiohttp.ClientTimeout(total=2.0)

OF_STORE = (
    "simplex_ntf_tokens_total",
    "simplex_ntf_subscriptions_approx_total",
    "simplex_ntf_notifications_total",
    "simplex_ntf_apns_push_queue_length",
    "simplex_ntf_smp_subscription_pending",
    "simplex_ntf_smp_service_subscription_pending",
    "simplex_ntf_info",
    "heliograph_ntf_tokens",
    "heliograph_ntf_subscriptions",
    "heliograph_ntf_pending_pushes",
    "heliograph_ntf_oldest_pending_push_seconds",
    "heliograph_ntf_processes",
    "process_start_time_seconds",
    "python_info",
)
"""Beginnings of names whose value each worker reads from the store: not added up."""
_NOT_ADDED = ("certificate", "expir", "max_fds")


def merged(texts: Iterable[str]) -> list[Metric]:
    """Add up the metrics of several processes; of what is the store's, take the greatest."""
    families: dict[str, Metric] = {}
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                if key not in values:
                    values[key] = sample.value
                    families[family.name].add_sample(sample.name, sample.labels, sample.value)
                elif _is_of_store(sample.name):
                    values[key] = max(values[key], sample.value)
                else:
                    values[key] += sample.value
    for family in families.values():
        family.samples = [
            sample._replace(value=values[sample.name, tuple(sorted(sample.labels.items()))])
            for sample in family.samples
        ]
    return list(families.values())


def _is_of_store(name: str) -> bool:
    is_fixed = any(word in name for word in _NOT_ADDED) and not name.endswith("_expired_total")
    return is_fixed or name.startswith(OF_STORE)


class _Merged(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class WorkersHttpServer(HttpServer):
    """`/metrics` of all workers added up; `/metrics?process=2` of one."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(CollectorRegistry(), self._not_ready)
        self._directory = directory
        self._numbers = range(1, count + 1)

    async def _metrics(self, request: web.Request) -> web.Response:
        wanted = request.query.get("process")
        numbers = [number for number in self._numbers if wanted in (None, str(number))]
        texts = [text for text in await self._ask(numbers, "metrics") if text is not None]
        metrics = merged(texts)
        metrics.append(gauge("heliograph_ntf_workers", "Workers that answer.", len(texts)))
        registry = CollectorRegistry()
        registry.register(_Merged(metrics))
        body = expose(registry).encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _not_ready(self) -> str | None:
        """Return None if any worker is ready: it serves every client."""
        answers = await self._ask(self._numbers, "readyz")
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
