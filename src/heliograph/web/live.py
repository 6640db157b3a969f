"""What the page shows of now, from samples of the routers' metrics. Pure."""

from collections.abc import Sequence
from typing import Any

from heliograph.web.samples import Sample, quantile, rate

__all__ = ["live"]

LATENCY = "heliograph_ntf_push_latency_seconds"
RECEIVED = "simplex_ntf_notifications_received"
DELIVERED = "simplex_ntf_notifications_delivered"
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_RECENT = 5
"""How many samples a figure per second is taken over."""


def live(ntf: Sequence[Sample], smp: Sequence[Sample]) -> dict[str, Any]:
    """From samples of both routers, oldest first; those of a router that is silent may be few."""
    last = ntf[-1] if ntf else Sample(0.0)
    first = ntf[0] if ntf else last
    messages = smp[-1] if smp else Sample(0.0)
    return {
        "tokens": _whole(last.by("heliograph_ntf_tokens", "status")),
        "subscriptions": _whole(last.by("heliograph_ntf_subscriptions", "status")),
        "smp_routers": _routers(last),
        "notifications": _flow(ntf, RECEIVED),
        "pushes": {
            **_flow(ntf, DELIVERED),
            "failed": int(last.get("simplex_ntf_notifications_failed")),
            "retried": int(last.get("heliograph_ntf_pushes_retried_total")),
            "expired": int(last.get("heliograph_ntf_pushes_expired_total")),
        },
        "latency_ms": _latency(first, last),
        "debts": _whole(last.by("heliograph_ntf_debts", "kind")),
        "oldest_debt_seconds": round(last.get("heliograph_ntf_oldest_debt_seconds"), 1),
        "providers": _providers(first, last),
        "failures": _failures(first, last),
        "clients": int(last.get("heliograph_ntf_clients")),
        "queues": int(messages.get("simplex_smp_queues_total1")),
        "window_seconds": round(last.at - first.at, 1),
    }


def _whole(found: dict[str, float]) -> dict[str, int]:
    return {key: int(value) for key, value in sorted(found.items())}


def _flow(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    series = [(round(at, 1), round(value, 2)) for at, value in rate(samples, name)]
    recent = list(rate((samples[-_RECENT:][0], samples[-1]), name)) if samples else []
    return {
        "total": int(samples[-1].get(name)) if samples else 0,
        "per_second": round(recent[-1][1], 2) if recent else 0.0,
        "series": series,
    }


def _latency(first: Sample, last: Sample) -> dict[str, float | None]:
    """Of the window if there was a push in it, else of all time."""
    later, earlier = last.buckets(LATENCY), first.buckets(LATENCY)
    if quantile(0.5, later, earlier) is None:
        earlier = []
    found = {name: quantile(part, later, earlier) for name, part in _QUANTILES}
    return {
        name: None if value is None else round(value * 1000, 1) for name, value in found.items()
    }


def _routers(last: Sample) -> list[dict[str, Any]]:
    """Own messaging routers by name; the others are counted, and not named."""
    found: dict[str, dict[str, int]] = {}
    for state in ("active", "pending"):
        for kind in ("", "service_"):
            own = last.by(f"simplex_ntf_smp_{kind}subscription_{state}_sub_count_own", "server")
            for server, count in own.items():
                entry = found.setdefault(server, {"active": 0, "pending": 0})
                entry[state] += int(count)
            other = int(last.get(f"simplex_ntf_smp_{kind}subscription_{state}_sub_count_other"))
            if other:
                entry = found.setdefault("", {"active": 0, "pending": 0})
                entry[state] += other
    return [
        {"name": name or "other routers", "own": bool(name), **counts}
        for name, counts in sorted(found.items(), reverse=True)
    ]


def _providers(first: Sample, last: Sample) -> list[dict[str, Any]]:
    under_way = last.by("heliograph_ntf_pushes_under_way", "provider")
    accepted = _grown(first, last, "heliograph_ntf_provider_accepted_total", "provider")
    failed = _grown(first, last, "heliograph_ntf_provider_failed_total", "provider")
    return [
        {
            "name": name,
            "under_way": int(under_way[name]),
            "accepted": accepted.get(name, 0),
            "failed": failed.get(name, 0),
            "health": _health(accepted.get(name, 0), failed.get(name, 0)),
        }
        for name in sorted(under_way)
    ]


def _health(accepted: int, failed: int) -> str:
    if failed == 0:
        return "good" if accepted else "idle"
    return "down" if accepted == 0 else "failing"


def _failures(first: Sample, last: Sample) -> list[dict[str, Any]]:
    name = "heliograph_ntf_push_failures_total"
    recent = _grown(first, last, name, "reason")
    total = last.by(name, "reason")
    return [
        {"reason": reason, "recent": recent.get(reason, 0), "total": int(count)}
        for reason, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    ]


def _grown(first: Sample, last: Sample, name: str, label: str) -> dict[str, int]:
    before = first.by(name, label)
    found = {}
    for key, value in last.by(name, label).items():
        grown = value - before.get(key, 0.0)
        found[key] = int(grown if grown >= 0 else value)
    return found
