"""Counters of the router, and the distinct tokens and subscriptions active in a period."""

import time
from dataclasses import asdict, dataclass, field, fields

from heliograph.documents import JsonObject
from heliograph.runtime.reference.periods import ActiveIds
from heliograph.wire.ntf.tokens import DeviceToken, PushProvider


def is_real_device(device: DeviceToken) -> bool:
    """Return False for devices of the null provider, which only test routers."""
    return device.provider is not PushProvider.APNS_NULL


@dataclass(slots=True)
class Counters:
    """Plain integers, because every command and notification increments some.

    One attribute for each counter that the reference exports, and for a few more.
    """

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
    drift_repaired: int = 0
    tkn_collected: int = 0
    received_own: dict[str, int] = field(default_factory=dict)
    received_auth_own: dict[str, int] = field(default_factory=dict)
    delivered_own: dict[str, int] = field(default_factory=dict)
    failed_own: dict[str, int] = field(default_factory=dict)


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
        self.quota_exceeded: dict[str, int] = {}
        """Commands refused because of a limit, by limit."""
        self.worthless_events: dict[str, int] = {}
        """Events that concern no subscription, by own messaging router, or "other"."""
        self.by_provider: dict[str, list[int]] = {}
        """Accepted pushes, and those not accepted."""

    def answered(self, provider: str, accepted: bool) -> None:
        self.by_provider.setdefault(provider, [0, 0])[0 if accepted else 1] += 1

    def failed(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def dump(self) -> JsonObject:
        return {
            "counters": asdict(self.counters),
            "active_tokens": self.active_tokens.dump(),
            "active_subs": self.active_subs.dump(),
        }

    def restore(self, saved: JsonObject) -> None:
        """Add what an earlier run, or another process, has saved."""
        for item in fields(Counters):
            value = saved["counters"].get(item.name, 0)
            counted = getattr(self.counters, item.name)
            if isinstance(counted, int):
                setattr(self.counters, item.name, counted + int(value))
            else:
                for host, number in (value or {}).items():
                    counted[host] = counted.get(host, 0) + number
        self.active_tokens.restore(saved["active_tokens"])
        self.active_subs.restore(saved["active_subs"])
