"""What the page is told of now, from the metrics that a router exposes."""

from heliograph.web.live import live
from heliograph.web.samples import Sample, parse

EARLIER = """\
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received 100
# TYPE simplex_ntf_notifications_delivered counter
simplex_ntf_notifications_delivered 50
# TYPE heliograph_ntf_provider_accepted_total counter
heliograph_ntf_provider_accepted_total{provider="APNS_PROD"} 50
# TYPE heliograph_ntf_pushes_under_way gauge
heliograph_ntf_pushes_under_way{provider="APNS_PROD"} 0
heliograph_ntf_pushes_under_way{provider="FCM"} 0
heliograph_ntf_pushes_under_way{provider="WEBPUSH"} 0
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
# TYPE heliograph_ntf_debts gauge
heliograph_ntf_debts{kind="message"} 2
# TYPE heliograph_ntf_oldest_debt_seconds gauge
heliograph_ntf_oldest_debt_seconds 1.25
# TYPE heliograph_ntf_provider_accepted_total counter
heliograph_ntf_provider_accepted_total{provider="APNS_PROD"} 70
heliograph_ntf_provider_accepted_total{provider="FCM"} 1
# TYPE heliograph_ntf_provider_failed_total counter
heliograph_ntf_provider_failed_total{provider="FCM"} 2
heliograph_ntf_provider_failed_total{provider="WEBPUSH"} 1
# TYPE heliograph_ntf_push_failures_total counter
heliograph_ntf_push_failures_total{reason="429"} 3
# TYPE heliograph_ntf_pushes_under_way gauge
heliograph_ntf_pushes_under_way{provider="APNS_PROD"} 1
heliograph_ntf_pushes_under_way{provider="FCM"} 0
heliograph_ntf_pushes_under_way{provider="WEBPUSH"} 0
heliograph_ntf_pushes_under_way{provider="APNS_DEV"} 0
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
    told = live([parse(EARLIER, 10.0), parse(LATER, 20.0)], [Sample(20.0)])
    assert told["tokens"] == {"ACTIVE": 8, "NEW": 1}
    assert told["pushes"]["total"] == 70
    assert told["pushes"]["per_second"] == 2.0
    assert told["pushes"]["failed"] == 3
    assert told["notifications"]["series"] == [(20.0, 4.0)]
    assert told["debts"] == {"message": 2}
    assert told["oldest_debt_seconds"] == 1.2
    # All of the window's pushes took from 10 to 100 ms.
    assert told["latency_ms"]["p50"] == 55.0
    assert {item["name"]: item["health"] for item in told["providers"]} == {
        "APNS_DEV": "idle",
        "APNS_PROD": "good",
        "FCM": "failing",
        "WEBPUSH": "down",
    }
    assert told["failures"] == [{"reason": "429", "recent": 3, "total": 3}]
    assert told["smp_routers"] == [
        {"name": "smp.my.org", "own": True, "active": 12, "pending": 0},
        {"name": "other routers", "own": False, "active": 0, "pending": 2},
    ]


def test_nothing_was_told() -> None:
    told = live([], [])
    assert told["tokens"] == {}
    assert told["pushes"]["per_second"] == 0.0
    assert told["latency_ms"] == {"p50": None, "p90": None, "p99": None}


def test_a_quiet_window_tells_the_latency_of_all_time() -> None:
    told = live([parse(LATER, 10.0), parse(LATER, 20.0)], [])
    assert told["latency_ms"]["p50"] is not None
