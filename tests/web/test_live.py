"""What the page shows of now, from the metrics that a router exposes."""

import pytest

from heliograph.web.live import live
from heliograph.web.metrics.samples import Sample, parse

EARLIER = """\
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received 100
# TYPE simplex_ntf_notifications_delivered counter
simplex_ntf_notifications_delivered 50
# TYPE heliograph_ntf_provider_accepted_total counter
heliograph_ntf_provider_accepted_total{provider="APNS_PROD"} 50
# TYPE heliograph_ntf_pushes_in_flight gauge
heliograph_ntf_pushes_in_flight{provider="APNS_PROD"} 0
heliograph_ntf_pushes_in_flight{provider="FCM"} 0
heliograph_ntf_pushes_in_flight{provider="WEBPUSH"} 0
# TYPE heliograph_ntf_push_latency_seconds histogram
heliograph_ntf_push_latency_seconds_bucket{le="0.01"} 50
heliograph_ntf_push_latency_seconds_bucket{le="0.1"} 50
heliograph_ntf_push_latency_seconds_bucket{le="+Inf"} 50
"""
LATER = """\
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received 140
# TYPE simplex_ntf_notifications_delivered counter
simplex_ntf_notifications_delivered 70
# TYPE simplex_ntf_notifications_failed counter
simplex_ntf_notifications_failed 3
# TYPE heliograph_ntf_tokens gauge
heliograph_ntf_tokens{status="ACTIVE"} 8
heliograph_ntf_tokens{status="NEW"} 1
# TYPE heliograph_ntf_pending_pushes gauge
heliograph_ntf_pending_pushes{kind="message"} 2
# TYPE heliograph_ntf_oldest_pending_push_seconds gauge
heliograph_ntf_oldest_pending_push_seconds 1.25
# TYPE heliograph_ntf_provider_accepted_total counter
heliograph_ntf_provider_accepted_total{provider="APNS_PROD"} 70
heliograph_ntf_provider_accepted_total{provider="FCM"} 1
# TYPE heliograph_ntf_provider_failed_total counter
heliograph_ntf_provider_failed_total{provider="FCM"} 2
heliograph_ntf_provider_failed_total{provider="WEBPUSH"} 1
# TYPE heliograph_ntf_push_failures_total counter
heliograph_ntf_push_failures_total{reason="429"} 3
# TYPE heliograph_ntf_actions_refused_total counter
heliograph_ntf_actions_refused_total{reason="forged"} 2
heliograph_ntf_actions_refused_total{reason="stale"} 1
# TYPE heliograph_ntf_actions_in_force gauge
heliograph_ntf_actions_in_force{kind="throttle_token"} 3
# TYPE heliograph_ntf_alerts gauge
heliograph_ntf_alerts{finding="silent_server"} 1
# TYPE heliograph_ntf_actions_waiting gauge
heliograph_ntf_actions_waiting{kind="resubscribe"} 4
# TYPE heliograph_ntf_pushes_in_flight gauge
heliograph_ntf_pushes_in_flight{provider="APNS_PROD"} 1
heliograph_ntf_pushes_in_flight{provider="FCM"} 0
heliograph_ntf_pushes_in_flight{provider="WEBPUSH"} 0
heliograph_ntf_pushes_in_flight{provider="APNS_DEV"} 0
# TYPE simplex_ntf_smp_subscription_active_sub_count_own gauge
simplex_ntf_smp_subscription_active_sub_count_own{server="smp.my.org"} 5
# TYPE simplex_ntf_smp_subscription_pending_sub_count_other gauge
simplex_ntf_smp_subscription_pending_sub_count_other 2
# TYPE simplex_ntf_smp_service_subscription_active_sub_count_own gauge
simplex_ntf_smp_service_subscription_active_sub_count_own{server="smp.my.org"} 7
# TYPE heliograph_ntf_push_latency_seconds histogram
heliograph_ntf_push_latency_seconds_bucket{le="0.01"} 50
heliograph_ntf_push_latency_seconds_bucket{le="0.1"} 70
heliograph_ntf_push_latency_seconds_bucket{le="+Inf"} 70
"""


def test_two_samples() -> None:
    now = live([parse(EARLIER, 10.0), parse(LATER, 20.0)], [Sample(20.0)])
    assert now["tokens"] == {"ACTIVE": 8, "NEW": 1}
    assert now["pushes"]["total"] == 71
    assert now["pushes"]["per_second"] == 2.1
    assert now["pushes"]["recently"] == 21
    assert now["pushes"]["failed"] == 3
    assert now["notifications"]["per_second"] == 4.0
    assert now["pending"] == {"message": 2}
    assert now["oldest_pending_seconds"] == 1.2
    # All pushes between the samples took from 10 to 100 ms.
    assert now["latency_ms"]["p50"] == 55.0
    assert {item["name"]: item["state"] for item in now["providers"]} == {
        "APNS_DEV": "idle",
        "APNS_PROD": "ok",
        "FCM": "failing",
        "WEBPUSH": "down",
    }
    assert now["failures"] == [{"reason": "429", "recent": 3, "total": 3}]
    assert (now["restrictions"], now["found"]) == ({"throttle_token": 3}, {"silent_server": 1})
    assert now["actions"] == {
        "applied": 0,
        "undone": 0,
        "refused": 3,
        "waiting": 4,
        "capped": 0,
    }
    assert now["smp_servers"] == [
        {"name": "smp.my.org", "own": True, "active": 12, "pending": 0},
        {"name": "other servers", "own": False, "active": 0, "pending": 2},
    ]


def test_no_samples() -> None:
    now = live([], [])
    assert now["tokens"] == {}
    assert now["pushes"]["per_second"] == 0.0
    assert now["providers"] == []
    assert now["latency_ms"] == {"p50": None, "p90": None, "p99": None}


def test_a_window_without_pushes_has_no_latency() -> None:
    now = live([parse(LATER, 10.0), parse(LATER, 20.0)], [])
    assert now["latency_ms"]["p50"] is None


def provider_at(at: float, accepted: int, failed: int) -> Sample:
    text = f"""\
# TYPE heliograph_ntf_provider_accepted_total counter
heliograph_ntf_provider_accepted_total{{provider="fcm"}} {accepted}
# TYPE heliograph_ntf_provider_failed_total counter
heliograph_ntf_provider_failed_total{{provider="fcm"}} {failed}
# TYPE heliograph_ntf_pushes_in_flight gauge
heliograph_ntf_pushes_in_flight{{provider="fcm"}} 0
"""
    return parse(text, at)


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ([(0, 0, 0), (2, 0, 0)], "idle"),
        ([(0, 0, 0), (2, 5, 0)], "ok"),
        ([(0, 0, 0), (2, 5, 0), (90, 5, 0)], "idle"),
        ([(0, 0, 0), (2, 0, 5)], "down"),
        # Attempts are rare while the outbox backs off: it stays down until one is accepted.
        ([(0, 0, 0), (2, 0, 5), (120, 0, 5)], "down"),
        ([(0, 9, 0), (2, 9, 5)], "down"),
        ([(0, 0, 0), (2, 5, 5)], "failing"),
        ([(0, 0, 0), (2, 999, 1)], "ok"),
        ([(0, 0, 0), (2, 0, 50), (20, 5, 50)], "ok"),
    ],
)
def test_state_of_a_provider(counts: list[tuple[int, int, int]], state: str) -> None:
    [provider] = live([provider_at(*item) for item in counts], [])["providers"]
    assert provider["state"] == state
