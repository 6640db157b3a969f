"""What the routers' metrics say at one moment, and what two moments say of the time between."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Sample", "parse", "quantile", "rate"]

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Sample:
    """All values of one scrape, by name and labels."""

    at: float
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def get(self, name: str) -> float:
        """The sum over all labels; 0 if nothing was told."""
        return sum(self._find(name).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values by one label."""
        found: dict[str, float] = {}
        for labels, value in self._find(name).items():
            key = dict(labels).get(label)
            if key is not None:
                found[key] = found.get(key, 0.0) + value
        return found

    def _find(self, name: str) -> dict[Labels, float]:
        """The parser puts `_total` behind the counters that do not have it."""
        return self.values.get(name) or self.values.get(f"{name}_total", {})

    def buckets(self, name: str) -> list[tuple[float, float]]:
        """A histogram: upper bounds and cumulative counts."""
        found = self.by(f"{name}_bucket", "le")
        return sorted((float(bound), count) for bound, count in found.items())


def parse(text: str, at: float) -> Sample:
    """Raises `ValueError` if it is not what Prometheus reads."""
    values: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            values.setdefault(name, {})[frozenset(labels.items())] = value
    return Sample(at, values)


def rate(samples: Iterable[Sample], name: str) -> Iterator[tuple[float, float]]:
    """Per second, between each two samples. A counter that fell began anew."""
    before: Sample | None = None
    for sample in samples:
        if before is not None and sample.at > before.at:
            grown = sample.get(name) - before.get(name)
            if grown < 0:
                grown = sample.get(name)
            yield sample.at, grown / (sample.at - before.at)
        before = sample


def quantile(
    part: float, later: list[tuple[float, float]], earlier: list[tuple[float, float]]
) -> float | None:
    """Of what a histogram counted between two moments, as Prometheus reckons it."""
    before = dict(earlier)
    counts = [(bound, count - before.get(bound, 0.0)) for bound, count in later]
    if counts and counts[-1][1] < 0:
        counts = later
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    wanted = part * total
    low, below = 0.0, 0.0
    for bound, count in counts:
        if count >= wanted and count > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low
