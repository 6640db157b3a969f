"""What the router counts, and the distinct tokens and subscriptions active in a period."""

import json
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

DAY = 86_400
PERIODS = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY}


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


class ActiveIds:
    """Distinct IDs in the current day, week and month, aligned to UTC."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, set[bytes]]] = {}

    def add(self, ids: set[bytes], now: float) -> None:
        for period, seconds in PERIODS.items():
            number = int(now // seconds)
            current, seen = self._seen.get(period, (number, set()))
            if current != number:
                seen = set()
            seen |= ids
            self._seen[period] = number, seen

    def count(self, period: str, now: float) -> int:
        number, seen = self._seen.get(period, (-1, set()))
        return len(seen) if number == int(now // PERIODS[period]) else 0

    def dump(self) -> dict[str, Any]:
        return {
            period: [number, [item.hex() for item in seen]]
            for period, (number, seen) in self._seen.items()
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self._seen = {
            period: (number, {bytes.fromhex(item) for item in seen})
            for period, (number, seen) in saved.items()
        }


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
