"""The metrics of several processes as one."""

from heliograph.ntf.cluster.metrics import merged

ONE = """\
# HELP simplex_ntf_notifications_received Received notifications.
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received 3
# HELP heliograph_ntf_tokens Stored tokens, by status.
# TYPE heliograph_ntf_tokens gauge
heliograph_ntf_tokens{status="ACTIVE"} 7
# HELP heliograph_ntf_push_latency_seconds Latency.
# TYPE heliograph_ntf_push_latency_seconds histogram
heliograph_ntf_push_latency_seconds_bucket{le="1.0"} 1
heliograph_ntf_push_latency_seconds_bucket{le="+Inf"} 2
heliograph_ntf_push_latency_seconds_sum 0.5
heliograph_ntf_push_latency_seconds_count 2
# HELP heliograph_ntf_pushes_expired_total Expired.
# TYPE heliograph_ntf_pushes_expired_total counter
heliograph_ntf_pushes_expired_total 1
"""


def test_counts_are_added_and_what_is_stored_is_not() -> None:
    other = ONE.replace("received 3", "received 4").replace('"ACTIVE"} 7', '"ACTIVE"} 8')
    assert (
        merged([ONE, other])
        == """\
# HELP simplex_ntf_notifications_received Received notifications.
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received 7.0
# HELP heliograph_ntf_tokens Stored tokens, by status.
# TYPE heliograph_ntf_tokens gauge
heliograph_ntf_tokens{status="ACTIVE"} 8.0
# HELP heliograph_ntf_push_latency_seconds Latency.
# TYPE heliograph_ntf_push_latency_seconds histogram
heliograph_ntf_push_latency_seconds_bucket{le="1.0"} 2.0
heliograph_ntf_push_latency_seconds_bucket{le="+Inf"} 4.0
heliograph_ntf_push_latency_seconds_sum 1.0
heliograph_ntf_push_latency_seconds_count 4.0
# HELP heliograph_ntf_pushes_expired_total Expired.
# TYPE heliograph_ntf_pushes_expired_total counter
heliograph_ntf_pushes_expired_total 2.0
"""
    )
