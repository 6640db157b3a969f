"""Samples of the routers' metrics, and quantiles of what happened between two of them. Pure."""

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Sample", "parse", "quantile"]

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Sample:
    """All values of one scrape, by name and labels."""

    at: float
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def get(self, name: str) -> float:
        """Return the sum over all labels; 0 if there is no such metric."""
        return sum(self._find(name).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values by one label."""
        found: dict[str, float] = {}
        for labels, value in self._find(name).items():
            key = dict(labels).get(label)
            if key is not None:
                found[key] = found.get(key, 0.0) + value
        return found

    def _find(self, name: str) -> dict[Labels, float]:
        """Return the values of a metric; the parser appends `_total` to counters without it."""
        return self.values.get(name) or self.values.get(f"{name}_total", {})

    def buckets(self, name: str) -> list[tuple[float, float]]:
        """Return a histogram's upper bounds and cumulative counts."""
        found = self.by(f"{name}_bucket", "le")
        return sorted((float(bound), count) for bound, count in found.items())


def parse(text: str, at: float) -> Sample:
    """Parse the text format of Prometheus. Raises `ValueError`."""
    values: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            values.setdefault(name, {})[frozenset(labels.items())] = value
    return Sample(at, values)


def quantile(
    part: float, later: list[tuple[float, float]], earlier: list[tuple[float, float]]
) -> float | None:
    """Return a quantile of what a histogram counted between two moments, as Prometheus does."""
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
