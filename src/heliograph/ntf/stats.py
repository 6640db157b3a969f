"""What the router counts, and the distinct tokens and subscriptions active in a period."""

import json
import time
from array import array
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field, fields
from typing import Any

DAY = 86_400
PERIODS = ("day", "week", "month")


@dataclass(slots=True)
class Counters:
    """Plain numbers, because they are counted on every command and notification."""

    tkn_created: int = 0
    tkn_verified: int = 0
    tkn_deleted: int = 0
    tkn_replaced: int = 0
    sub_created: int = 0
    sub_deleted: int = 0
    ntf_received: int = 0
    ntf_received_auth: int = 0
    ntf_delivered: int = 0
    ntf_failed: int = 0
    ntf_retried: int = 0
    ntf_expired: int = 0
    ntf_cron_delivered: int = 0
    ntf_cron_failed: int = 0
    ntf_vrf_queued: int = 0
    ntf_vrf_delivered: int = 0
    ntf_vrf_failed: int = 0
    ntf_vrf_invalid_tkn: int = 0
    pushes_coalesced: int = 0
    drift_repaired: int = 0
    received_own: dict[str, int] = field(default_factory=dict)
    received_auth_own: dict[str, int] = field(default_factory=dict)
    delivered_own: dict[str, int] = field(default_factory=dict)
    failed_own: dict[str, int] = field(default_factory=dict)


class ActiveIds:
    """Distinct IDs in a day, a week from Monday and a month, all of UTC.

    Of each ID its first eight bytes, which are random: enough to count, and not the ID.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, set[int]]] = {}
        self._ended: dict[str, tuple[int, int]] = {}

    def add(self, ids: set[bytes], now: float) -> None:
        numbers = {int.from_bytes(item[:8]) for item in ids}
        for period in PERIODS:
            number = _number(period, now)
            current, seen = self._seen.get(period, (number, set()))
            if current != number:
                self._ended[period] = current, len(seen)
                seen = set()
            seen |= numbers
            self._seen[period] = number, seen

    def count(self, period: str, now: float) -> int:
        """In the current period."""
        number, seen = self._seen.get(period, (-1, set()))
        return len(seen) if number == _number(period, now) else 0

    def ended(self, period: str, now: float) -> int:
        """In the whole of the period before the current one."""
        before = _number(period, now) - 1
        number, seen = self._seen.get(period, (-1, set()))
        if number == before:
            return len(seen)
        number, count = self._ended.get(period, (-1, 0))
        return count if number == before else 0

    def dump(self) -> dict[str, Any]:
        return {
            period: {
                "number": number,
                "ids": b64encode(array("Q", seen).tobytes()).decode(),
                "ended": self._ended.get(period, (-1, 0)),
            }
            for period, (number, seen) in self._seen.items()
        }

    def restore(self, saved: dict[str, Any]) -> None:
        for period in PERIODS:
            if period in saved:
                kept = saved[period]
                ids = array("Q", b64decode(kept["ids"]))
                self._seen[period] = int(kept["number"]), set(ids)
                number, count = kept["ended"]
                self._ended[period] = int(number), int(count)


def _number(period: str, now: float) -> int:
    """Which day, week or month it is, so that the next one has the next number."""
    if period == "month":
        date = time.gmtime(now)
        return date.tm_year * 12 + date.tm_mon
    day = int(now // DAY)
    return day if period == "day" else (day + 3) // 7  # the epoch was a Thursday


class Histogram:
    """Seconds, in cumulative buckets as Prometheus has them."""

    BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.sum += seconds
        for index, bound in enumerate(self.BOUNDS):
            if seconds <= bound:
                self.counts[index] += 1
                return
        self.counts[-1] += 1


class Stats:
    def __init__(self) -> None:
        self.counters = Counters()
        self.active_tokens = ActiveIds()
        self.active_subs = ActiveIds()
        self.push_latency = Histogram()
        self.started_at = time.time()
        self.failures: dict[str, int] = {}
        self.by_provider: dict[str, list[int]] = {}
        """Pushes accepted and not accepted."""

    def answered(self, provider: str, accepted: bool) -> None:
        self.by_provider.setdefault(provider, [0, 0])[0 if accepted else 1] += 1

    def failed(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def dump(self) -> str:
        return json.dumps(
            {
                "counters": asdict(self.counters),
                "active_tokens": self.active_tokens.dump(),
                "active_subs": self.active_subs.dump(),
            }
        )

    def restore(self, text: str) -> None:
        saved = json.loads(text)
        known = {item.name for item in fields(Counters)}
        for name, value in saved["counters"].items():
            if name in known:
                setattr(self.counters, name, value)
        self.active_tokens.restore(saved["active_tokens"])
        self.active_subs.restore(saved["active_subs"])
