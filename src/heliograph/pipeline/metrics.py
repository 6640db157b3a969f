"""Prometheus metrics of the pipeline: its progress, missing events, and its last verdict."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from heliograph.documents import JsonMapping
from heliograph.pipeline.objectives.budget import ObjectiveState
from heliograph.pipeline.objectives.describing import provider_of
from heliograph.pipeline.status import status
from heliograph.pipeline.vocabulary import UNACCOUNTED
from heliograph.runtime.errors import StartError
from heliograph.runtime.metrics import CONTENT_TYPE, counter, expose, gauge, process_registry

VERDICTS = ("complete", "lagging", "gaps", "missing")


class PipelineCollector(Collector):
    """Reads offsets, account and journals at each scrape, without Spark."""

    def __init__(self, place: str | Path, journals: Sequence[str]) -> None:
        self._place = place
        self._journals = journals
        self.batch_seconds = 0.0
        """Duration of the last batch."""

    def collect(self) -> Iterator[Metric]:
        try:
            found = status(self._place, self._journals, time.time())
        except (StartError, OSError):
            return
        offsets, account = found.offsets, found.account
        prefix = "heliograph_pipeline"
        for name, doc in (
            ("events", "Events ingested from the journals."),
            ("duplicates", "Events that were there twice."),
            ("quarantined", "Events and segments put into quarantine, and not requeued."),
        ):
            yield gauge(f"{prefix}_{name}", doc, offsets.counts.get(name, 0))
        yield counter(f"{prefix}_batches_total", "Batches committed.", offsets.batch)
        yield gauge(f"{prefix}_batch_seconds", "Duration of the last batch.", self.batch_seconds)
        yield gauge(f"{prefix}_segments_waiting", "Segments not ingested yet.", found.waiting or 0)
        doc = "Age of the oldest segment not ingested yet."
        yield gauge(f"{prefix}_lag_seconds", doc, found.lag or 0.0)
        known = dict.fromkeys(offsets.routers, 0.0)
        doc = "The same by router, by its ID in the journal; 0 if all is ingested."
        yield gauge(f"{prefix}_router_lag_seconds", doc, {**known, **found.lag_by_router}, "router")
        gaps = found.gaps
        doc = "Events known to be missing: gaps in sequence numbers."
        yield gauge(f"{prefix}_missing_events", doc, sum(gap.events for gap in gaps))
        missing = dict(known)
        for gap in gaps:
            missing[gap.router] = missing.get(gap.router, 0.0) + gap.events
        doc = "The same by router."
        yield gauge(f"{prefix}_router_missing_events", doc, missing, "router")
        doc = "When the last batch was committed, in Unix time; 0 if none was."
        yield gauge(f"{prefix}_committed_timestamp_seconds", doc, offsets.committed_at)
        doc = "When the last account began, in Unix time; 0 if there is none."
        yield gauge(f"{prefix}_account_timestamp_seconds", doc, account.get("at", 0.0))
        doc = "Notifications without an outcome, as of the last account."
        unaccounted = account.get("outcomes", {}).get(UNACCOUNTED, 0)
        yield gauge(f"{prefix}_unaccounted_notifications", doc, unaccounted)
        said = {name: float(found.verdict == name) for name in VERDICTS}
        yield gauge(f"{prefix}_verdict", "1 for the verdict.", said, "verdict")
        doc = "Routers and journals whose missing events are not known."
        yield gauge(f"{prefix}_lagging", doc, len(found.lags))
        yield from _objectives(account.get("objectives", {}))


def _objectives(objectives: JsonMapping) -> Iterator[Metric]:
    """Yield the objectives of the last account. A rate that is not known has no sample."""
    prefix = "heliograph_pipeline_objective"
    doc = "When the windows of the objectives end, in Unix time; 0 if none was measured."
    yield gauge(f"{prefix}s_timestamp_seconds", doc, objectives.get("until", 0.0))
    doc = "1 for the state of an objective over 30 days, by provider."
    states = Metric(f"{prefix}_state", doc, "gauge")
    doc = "Share of the error budget of 30 days that is left; negative if it is used up."
    budgets = Metric(f"{prefix}_budget_left_ratio", doc, "gauge")
    doc = "How many times as fast as allowed the error budget is used, by window."
    rates = Metric(f"{prefix}_burn_rate", doc, "gauge")
    for result in objectives.get("results", ()):
        labels = {"objective": result["objective"], "provider": provider_of(result)}
        for state in ObjectiveState:
            value = float(result["state"] == state)
            states.add_sample(states.name, {**labels, "state": state.value}, value)
        if result["budget_left"] is not None:
            budgets.add_sample(budgets.name, labels, result["budget_left"])
        for window, rate in result["burn"].items():
            if rate is not None:
                rates.add_sample(rates.name, {**labels, "window": window}, rate)
    yield from (states, budgets, rates)


@contextmanager
def served(collector: PipelineCollector, address: str) -> Iterator[str]:
    """Serve `/metrics` at HOST:PORT on a thread; yield the URL. Raises `StartError`."""
    host, _, port = address.rpartition(":")
    registry = process_registry()
    registry.register(collector)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = expose(registry).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing for a scrape."""

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as exc:
        raise StartError(f"--metrics {address}: {exc}: name HOST:PORT") from exc
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{server.server_address[0]!s}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
