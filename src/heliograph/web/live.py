"""What the system does now, from samples of the routers' metrics. Pure."""

from collections.abc import Sequence

from heliograph.documents import JsonObject
from heliograph.web.metrics.samples import Sample, quantile
from heliograph.web.metrics.series import LATENCY, growth

__all__ = ["WINDOW_SECONDS", "certificates", "live"]

WINDOW_SECONDS = 300.0
"""Seconds over which recent counts and latencies are taken."""
RATE_WINDOW_SECONDS = 10.0
"""Seconds over which rates are taken."""
HEALTH_WINDOW = 15.0
"""Seconds before a provider's last answer over which it is judged."""
IDLE_AFTER = 60.0
FAILING_SHARE = 0.05

RECEIVED = "simplex_ntf_notifications_received"
ACCEPTED = "heliograph_ntf_provider_accepted_total"
FAILED = "heliograph_ntf_provider_failed_total"
_ACTIONS = {
    "applied": "applied_total",
    "undone": "undone_total",
    "refused": "refused_total",
    "waiting": "waiting",
    "capped": "capped",
}
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))

Samples = Sequence[Sample]


def live(ntf: Samples, smp: Samples) -> JsonObject:
    """Summarize samples of both routers, oldest first; there may be few, or none."""
    last = ntf[-1] if ntf else Sample(0.0)
    return {
        "tokens": _whole(last.by("heliograph_ntf_tokens", "status")),
        "subscriptions": _whole(last.by("heliograph_ntf_subscriptions", "status")),
        "smp_servers": _servers(last),
        "notifications": _flow(ntf, RECEIVED),
        "pushes": {
            **_flow(ntf, ACCEPTED),
            "failed": int(last.get(FAILED)),
            "failed_recently": _recent_growth(ntf, FAILED),
            "retried": int(last.get("heliograph_ntf_pushes_retried_total")),
            "expired": int(last.get("heliograph_ntf_pushes_expired_total")),
        },
        "latency_ms": _latency(ntf),
        "pending": _whole(last.by("heliograph_ntf_pending_pushes", "kind")),
        "oldest_pending_seconds": round(last.get("heliograph_ntf_oldest_pending_push_seconds"), 1),
        "providers": _providers(ntf),
        "failures": _failures(ntf),
        "actions": {
            name: int(last.get(f"heliograph_ntf_actions_{metric}"))
            for name, metric in _ACTIONS.items()
        },
        "restrictions": _whole(last.by("heliograph_ntf_actions_in_force", "kind")),
        "found": _whole(last.by("heliograph_ntf_alerts", "finding")),
        "ntf_clients": int(last.get("heliograph_ntf_clients")),
        "messaging": _messaging(smp),
        "window_seconds": WINDOW_SECONDS,
    }


def certificates(part: str, samples: Samples) -> dict[str, float]:
    """Return until when a router's certificates are valid, by name."""
    if not samples:
        return {}
    return samples[-1].by(f"heliograph_{part}_certificate_expires_at_seconds", "certificate")


def _messaging(smp: Samples) -> JsonObject:
    last = smp[-1] if smp else Sample(0.0)
    return {
        "queues": int(last.get("simplex_smp_queues_total1")),
        "notifiers": int(last.get("simplex_smp_queues_notify_total1")),
        "stored_messages": int(last.get("simplex_smp_messages_total")),
        "clients": int(last.get("simplex_smp_clients_total")),
        "sent": _flow(smp, "simplex_smp_messages_sent"),
        "received": _flow(smp, "simplex_smp_messages_received"),
        "notifications_sent": _flow(smp, "simplex_smp_messages_notify_sent"),
        "notifications_pending": int(last.get("heliograph_smp_notifications_pending")),
    }


def _whole(found: dict[str, float]) -> dict[str, int]:
    return {key: int(value) for key, value in sorted(found.items())}


def _since(samples: Samples, seconds: float) -> Sample:
    """Return the oldest sample that is at most so old."""
    begin = samples[-1].at - seconds
    return next(sample for sample in samples if sample.at >= begin)


def _flow(samples: Samples, name: str) -> JsonObject:
    if not samples:
        return {"total": 0, "per_second": 0.0, "recently": 0}
    last = samples[-1]
    first = _since(samples, RATE_WINDOW_SECONDS)
    elapsed = last.at - first.at
    rate = growth(first, last, name) / elapsed if elapsed > 0 else 0.0
    return {
        "total": int(last.get(name)),
        "per_second": round(rate, 2),
        "recently": _recent_growth(samples, name),
    }


def _recent_growth(samples: Samples, name: str) -> int:
    return int(growth(_since(samples, WINDOW_SECONDS), samples[-1], name)) if samples else 0


def _latency(samples: Samples) -> dict[str, float | None]:
    """Return quantiles of the window, or None if no push was accepted in it."""
    if not samples:
        return dict.fromkeys((name for name, _ in _QUANTILES), None)
    later, earlier = samples[-1].buckets(LATENCY), _since(samples, WINDOW_SECONDS).buckets(LATENCY)
    found = {name: quantile(part, later, earlier) for name, part in _QUANTILES}
    return {
        name: None if value is None else round(value * 1000, 1) for name, value in found.items()
    }


def _servers(last: Sample) -> list[JsonObject]:
    """Return own servers by name, and the sum of all others."""
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
        {"name": name or "other servers", "own": bool(name), **counts}
        for name, counts in sorted(found.items(), reverse=True)
    ]


def _providers(samples: Samples) -> list[JsonObject]:
    if not samples:
        return []
    first, last = _since(samples, WINDOW_SECONDS), samples[-1]
    in_flight = last.by("heliograph_ntf_pushes_in_flight", "provider")
    accepted, failed = _grown(first, last, ACCEPTED), _grown(first, last, FAILED)
    return [
        {
            "name": name,
            "in_flight": int(in_flight[name]),
            "accepted": accepted.get(name, 0),
            "failed": failed.get(name, 0),
            "state": _provider_state(samples, name),
        }
        for name in sorted(in_flight)
    ]


def _provider_state(samples: Samples, name: str) -> str:
    """Judge the seconds before the last answer, so that a failure and a recovery show at once."""
    for place in range(len(samples) - 1, 0, -1):
        if any(_answers(samples[place - 1], samples[place], name)):
            break
    else:
        return "idle"
    last = samples[place]
    first = _since(samples[: place + 1], HEALTH_WINDOW)
    accepted, failed = _answers(first, last, name)
    if not any((accepted, failed)):  # one interval longer than the window
        accepted, failed = _answers(samples[place - 1], last, name)
    if not accepted:
        return "down"
    if failed >= FAILING_SHARE * (accepted + failed):
        return "failing"
    return "ok" if samples[-1].at - last.at <= IDLE_AFTER else "idle"


def _answers(first: Sample, last: Sample, name: str) -> tuple[int, int]:
    """Return how many pushes a provider accepted and did not accept between two samples."""
    return _grown(first, last, ACCEPTED).get(name, 0), _grown(first, last, FAILED).get(name, 0)


def _failures(samples: Samples) -> list[JsonObject]:
    if not samples:
        return []
    name = "heliograph_ntf_push_failures_total"
    first, last = _since(samples, WINDOW_SECONDS), samples[-1]
    recent = _grown(first, last, name, "reason")
    total = last.by(name, "reason")
    return [
        {"reason": reason, "recent": recent.get(reason, 0), "total": int(count)}
        for reason, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    ]


def _grown(first: Sample, last: Sample, name: str, label: str = "provider") -> dict[str, int]:
    before = first.by(name, label)
    found = {}
    for key, value in last.by(name, label).items():
        grown = value - before.get(key, 0.0)
        found[key] = int(grown if grown >= 0 else value)
    return found
