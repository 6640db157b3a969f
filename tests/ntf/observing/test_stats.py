import json

from heliograph.ntf.observing.stats import Histogram, Stats
from tests.runtime.reference.test_periods import at, ids


def test_saved_and_restored_without_ids() -> None:
    stats, now = Stats(), at("2026-06-03 10:00")
    stats.counters.ntf_received = 5
    stats.counters.received_own["smp.my.org"] = 3
    secret = b"\xaa" * 8 + b"\xbb" * 16
    stats.active_tokens.add({secret, *ids(1)}, now)
    stats.active_tokens.add(ids(2), now + 86_400)
    saved = stats.dump()
    assert secret.hex() not in json.dumps(saved)
    restored = Stats()
    restored.restore(saved)
    assert restored.counters == stats.counters
    for period in ("day", "week", "month"):
        for when in (now, now + 86_400, now + 2 * 86_400):
            assert restored.active_tokens.count(period, when) == stats.active_tokens.count(
                period, when
            )
            assert restored.active_tokens.ended(period, when) == stats.active_tokens.ended(
                period, when
            )


def test_histogram() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.005, 0.006, 4000):
        histogram.observe(seconds)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-1] == 1
    assert sum(histogram.counts) == 4
