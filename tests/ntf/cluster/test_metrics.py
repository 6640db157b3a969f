"""The metrics of several processes as one."""

import pytest

from heliograph.ntf.cluster.metrics import WorkerCounters, merged

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
ONE_COUNTED = """\
# HELP simplex_ntf_notifications_received Received notifications.
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received {}.0
# HELP heliograph_ntf_tokens Stored tokens, by status.
# TYPE heliograph_ntf_tokens gauge
heliograph_ntf_tokens{{status="ACTIVE"}} {}.0
# HELP heliograph_ntf_push_latency_seconds Latency.
# TYPE heliograph_ntf_push_latency_seconds histogram
heliograph_ntf_push_latency_seconds_bucket{{le="1.0"}} 1.0
heliograph_ntf_push_latency_seconds_bucket{{le="+Inf"}} 2.0
heliograph_ntf_push_latency_seconds_sum 0.5
heliograph_ntf_push_latency_seconds_count {}.0
# HELP heliograph_ntf_pushes_expired_total Expired.
# TYPE heliograph_ntf_pushes_expired_total counter
heliograph_ntf_pushes_expired_total {}.0
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


def test_names_that_begin_like_one_of_the_store_are_added() -> None:
    """Tokens are collected by the leader, which changes: each has counted its own."""
    collected = "heliograph_ntf_tokens_collected_total"
    assert merged([f"{collected} 3.0\n", f"{collected} 4.0\n"]) == f"{collected} 7.0\n"


LABELLED = """\
# HELP heliograph_ntf_push_failures_total {}
# TYPE heliograph_ntf_push_failures_total counter
heliograph_ntf_push_failures_total{{reason="{}"}} 1.0
# HELP heliograph_ntf_clients Clients.
# TYPE heliograph_ntf_clients gauge
heliograph_ntf_clients 2.0
"""


def test_samples_of_a_metric_stay_together() -> None:
    """As the format demands, also those that only some workers have, of whatever version."""
    silent = 'heliograph_ntf_push_failures_total{reason="C"} 3.0\n'
    assert (
        merged([LABELLED.format("Failures.", "A"), LABELLED.format("Failed.", "B"), silent])
        == """\
# HELP heliograph_ntf_push_failures_total Failures.
# TYPE heliograph_ntf_push_failures_total counter
heliograph_ntf_push_failures_total{reason="A"} 1.0
heliograph_ntf_push_failures_total{reason="B"} 1.0
heliograph_ntf_push_failures_total{reason="C"} 3.0
# HELP heliograph_ntf_clients Clients.
# TYPE heliograph_ntf_clients gauge
heliograph_ntf_clients 4.0
"""
    )


@pytest.mark.parametrize(
    "sample",
    [
        'heliograph_ntf_alerts{finding="flood"}',
        'heliograph_ntf_actions_in_force{kind="throttle"}',
        "heliograph_ntf_journal_bytes",
    ],
)
def test_what_all_workers_have_in_common_is_not_added(sample: str) -> None:
    """Each has read the same restrictions from the store, and the same journal from the disk."""
    assert merged([f"{sample} 2.0\n", f"{sample} 2.0\n"]) == f"{sample} 2.0\n"


def test_counters_of_a_worker_do_not_fall() -> None:
    """When it is started again, some begin at 0, and others with what was saved."""
    counters = WorkerCounters()
    assert counters.continued(ONE.replace("} 7", "} 7.0")) == ONE_COUNTED.format(3, 7, 2, 1)
    again = ONE.replace("received 3", "received 2").replace("_count 2", "_count 1")
    again = again.replace("expired_total 1", "expired_total 0").replace("} 7", "} 5.0")
    assert counters.continued(again) == ONE_COUNTED.format(3, 5, 3, 1)
    more = again.replace("received 2", "received 4").replace("expired_total 0", "expired_total 2")
    assert counters.continued(more) == ONE_COUNTED.format(5, 5, 3, 3)
    silent = counters.continued(None)
    assert "notifications_received 5.0\n" in silent
    assert "heliograph_ntf_tokens" not in silent


@pytest.mark.parametrize("name", ["tokens_collected", "pushes_retried", "drift_repaired"])
def test_counters_that_are_saved_go_on_after_a_kill(name: str) -> None:
    """What was saved last is a little less than what was counted: nothing counts twice."""
    counters, sample = WorkerCounters(), f"heliograph_ntf_{name}_total"
    for counted, total in ((1000, 1000), (990, 1000), (995, 1005)):
        text = f"# TYPE {sample} counter\n{sample} {counted}.0\n"
        assert counters.continued(text).endswith(f"\n{sample} {total}.0\n")
