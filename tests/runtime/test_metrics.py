import prometheus_client
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from heliograph.runtime.metrics import counter, expose, gauge, process_registry


class Fixed(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return list(self._metrics)


def exposed(*metrics: Metric) -> str:
    registry = CollectorRegistry()
    registry.register(Fixed(*metrics))
    return expose(registry)


def test_names_are_exactly_what_was_given() -> None:
    text = exposed(
        counter("simplex_x_sent", "Sent\nmessages.", 3), gauge("simplex_x_total", "T", 2.5)
    )
    assert text == (
        "# HELP simplex_x_sent Sent\\nmessages.\n"
        "# TYPE simplex_x_sent counter\n"
        "simplex_x_sent 3\n"
        "# HELP simplex_x_total T\n"
        "# TYPE simplex_x_total gauge\n"
        "simplex_x_total 2.5\n"
    )


def test_labels_and_odd_numbers() -> None:
    text = exposed(gauge("g", "G", {'a"\\\n': float("inf"), "b": float("nan")}, label="kind"))
    assert 'g{kind="a\\"\\\\\\n"} +Inf\n' in text
    assert 'g{kind="b"} NaN\n' in text
    assert exposed(gauge("g", "G", float("-inf"))).endswith("g -Inf\n")


def test_prometheus_understands_metrics_of_the_library_too() -> None:
    registry = process_registry()
    prometheus_client.Counter("c", "C", registry=registry).inc()
    prometheus_client.Histogram("h", "H", registry=registry, buckets=(1, 2)).observe(1.5)
    text = expose(registry)
    assert "# TYPE c_total counter\nc_total 1\n" in text
    assert 'h_bucket{le="2.0"} 1\n' in text
    assert "_created" not in text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["h"].type == "histogram"
    assert families["process_resident_memory_bytes"].samples[0].value > 0
