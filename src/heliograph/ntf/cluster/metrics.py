"""The metrics of all workers as one, and each for itself."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from heliograph.ntf.cluster.supervisor import PORT_FILE, worker_directory
from heliograph.runtime.http import HttpServer
from heliograph.runtime.metrics import CONTENT_TYPE

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
_WORKERS = "heliograph_ntf_workers"
_NOT_ADDED = ("certificate", "expir", "max_fds")


def merged(texts: Iterable[str]) -> str:
    """Add up the metrics of several processes; of what is the store's, take the greatest."""
    lines: dict[str, float | None] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("#"):
                lines.setdefault(line)
                continue
            sample, _, value = line.rpartition(" ")
            before, number = lines.get(sample), float(value)
            if before is not None:
                number = max(before, number) if _is_of_store(sample) else before + number
            lines[sample] = number
    return "".join(
        f"{line}\n" if value is None else f"{line} {value!r}\n" for line, value in lines.items()
    )


def _is_of_store(sample: str) -> bool:
    name = sample.partition("{")[0]
    is_fixed = any(word in name for word in _NOT_ADDED) and not name.endswith("_expired_total")
    return is_fixed or name.startswith(OF_STORE)


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
        number = f"{_WORKERS} {len(texts)}\n"
        body = f"{merged(texts)}# TYPE {_WORKERS} gauge\n{number}".encode()
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
