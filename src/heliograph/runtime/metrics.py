"""Prometheus metrics, under exactly the given names.

`prometheus_client.generate_latest` appends `_total` to every counter; the reference does not, and
dashboards made for it must keep working.
"""

import math
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from heliograph.runtime.log_writer import dropped_lines

__all__ = ["CONTENT_TYPE", "counter", "expose", "gauge", "process_registry"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Values = float | Mapping[str, float]


def counter(name: str, doc: str, value: Values, label: str = "type") -> Metric:
    """Return a counter; a mapping gives one value for each value of the label."""
    return _metric(name, doc, "counter", value, label)


def gauge(name: str, doc: str, value: Values, label: str = "type") -> Metric:
    """Return a gauge; a mapping gives one value for each value of the label."""
    return _metric(name, doc, "gauge", value, label)


def process_registry() -> CollectorRegistry:
    """Return a registry with CPU, memory, descriptors and garbage collection of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_LogCollector())
    return registry


class _LogCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        doc = "Log lines dropped because nobody read them in time."
        yield counter("heliograph_log_lines_dropped_total", doc, dropped_lines())


def expose(registry: CollectorRegistry) -> str:
    """Return the metrics in the text format, version 0.0.4."""
    lines = []
    for metric in registry.collect():
        name = metric.name
        if metric.type == "counter" and any(s.name == f"{name}_total" for s in metric.samples):
            name = f"{name}_total"  # a counter of prometheus_client's own
        lines.append(f"# HELP {name} {_escape(metric.documentation)}\n")
        lines.append(f"# TYPE {name} {_TYPES.get(metric.type, metric.type)}\n")
        lines += [
            _line(sample)
            for sample in metric.samples
            if not (sample.name.endswith("_created") and sample.name != metric.name)
        ]
    return "".join(lines)


_TYPES = {"unknown": "untyped", "info": "gauge", "stateset": "gauge"}


def _metric(name: str, doc: str, kind: str, value: Values, label: str) -> Metric:
    metric = Metric(name, doc, kind)
    if isinstance(value, Mapping):
        for text, number in value.items():
            metric.add_sample(name, {label: text}, number)
    else:
        metric.add_sample(name, {}, value)
    return metric


def _line(sample: Sample) -> str:
    labels = ",".join(f'{key}="{_quote(value)}"' for key, value in sample.labels.items())
    return f"{sample.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}\n"


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quote(text: str) -> str:
    return _escape(text).replace('"', '\\"')
