"""Writes deploy/grafana/dashboard.json: `python deploy/grafana/dashboard.py`."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).with_name("dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH = 24

_CPU = 'rate(process_cpu_seconds_total{job=~"heliograph.*"}[$__rate_interval])'
_LATENCY = "sum by (le) (rate(heliograph_ntf_push_latency_seconds_bucket[$__rate_interval]))"
_BY_REASON = "sum by (reason) (rate(heliograph_ntf_push_failures_total[$__rate_interval]))"


class Panel(NamedTuple):
    """`queries` are the expressions with the legend of each."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    help: str = ""


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str) -> str:
    return f"sum(rate({metric}[$__rate_interval]))"


def _by_provider(what: str) -> str:
    metric = f"heliograph_ntf_provider_{what}_total"
    return f"sum by (provider) (rate({metric}[$__rate_interval]))"


ROWS = (
    Row(
        "Now",
        (
            Panel("Routers up", (('sum(up{job=~"heliograph.*"})', ""),), kind="stat", width=4),
            Panel(
                "Oldest pending push",
                (("max(heliograph_ntf_oldest_pending_push_seconds)", ""),),
                "s",
                "stat",
                4,
                "How long the oldest push has been pending. More than ten minutes is late.",
            ),
            Panel(
                "Pending pushes",
                (("sum(heliograph_ntf_pending_pushes)", ""),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Active tokens",
                (('sum(heliograph_ntf_tokens{status="ACTIVE"})', ""),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Active subscriptions",
                (('sum(heliograph_ntf_subscriptions{status="ACTIVE"})', ""),),
                kind="stat",
                width=4,
            ),
            Panel(
                "Certificates valid for",
                (
                    ("min(heliograph_ntf_certificate_expires_at_seconds) - time()", "ntf"),
                    ("min(heliograph_smp_certificate_expires_at_seconds) - time()", "smp"),
                ),
                "s",
                "stat",
                4,
            ),
        ),
    ),
    Row(
        "Pushes",
        (
            Panel(
                "Notifications a second",
                (
                    (_rate("simplex_ntf_notifications_received"), "received"),
                    (_rate("simplex_ntf_notifications_delivered"), "accepted by providers"),
                    (_rate("simplex_ntf_notifications_failed"), "failed"),
                ),
                "ops",
                help="One push carries several notifications, so fewer are accepted than received.",
            ),
            Panel(
                "From notification to the provider's acceptance",
                tuple(
                    (f"histogram_quantile({q}, {_LATENCY})", name)
                    for q, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"))
                ),
                "s",
            ),
            Panel("Failures by reason", ((_BY_REASON, "{{reason}}"),), "ops"),
            Panel(
                "Providers' answers",
                (
                    (_by_provider("accepted"), "{{provider}} accepted"),
                    (_by_provider("failed"), "{{provider}} failed"),
                ),
                "ops",
            ),
            Panel(
                "Pending, by kind",
                (("sum by (kind) (heliograph_ntf_pending_pushes)", "{{kind}}"),),
            ),
            Panel(
                "In flight, by provider",
                (("sum by (provider) (heliograph_ntf_pushes_in_flight)", "{{provider}}"),),
            ),
            Panel(
                "Retried and expired",
                (
                    (_rate("heliograph_ntf_pushes_retried_total"), "retried"),
                    (_rate("heliograph_ntf_pushes_expired_total"), "expired"),
                ),
                "ops",
            ),
        ),
    ),
    Row(
        "Tokens and subscriptions",
        (
            Panel("Tokens by status", (("sum by (status) (heliograph_ntf_tokens)", "{{status}}"),)),
            Panel(
                "Registration",
                (
                    (_rate("simplex_ntf_tokens_created"), "created"),
                    (_rate("simplex_ntf_tokens_verified"), "verified"),
                    (_rate("simplex_ntf_tokens_replaced"), "replaced"),
                    (_rate("simplex_ntf_tokens_deleted"), "deleted"),
                ),
                "ops",
            ),
            Panel(
                "Subscriptions by status",
                (("sum by (status) (heliograph_ntf_subscriptions)", "{{status}}"),),
            ),
            Panel(
                "Messaging routers",
                (
                    ("sum(simplex_ntf_smp_agent_clients_count_other)", "connected"),
                    ("sum(simplex_ntf_smp_agent_sub_workers_count_other)", "reconnecting"),
                ),
            ),
            Panel(
                "Subscriptions at messaging routers",
                (
                    ("sum(simplex_ntf_smp_subscription_active_sub_count_other)", "active"),
                    ("sum(simplex_ntf_smp_subscription_pending_sub_count_other)", "pending"),
                ),
            ),
            Panel("Drift repaired", ((_rate("heliograph_ntf_drift_repaired_total"), ""),), "ops"),
        ),
    ),
    Row(
        "Messaging router",
        (
            Panel(
                "Messages a second",
                (
                    (_rate("simplex_smp_messages_sent"), "sent"),
                    (_rate("simplex_smp_messages_received"), "received"),
                    (_rate("simplex_smp_messages_expired"), "expired"),
                ),
                "ops",
            ),
            Panel(
                "Notifications a second",
                (
                    (_rate("simplex_smp_messages_notify_sent"), "of sent messages"),
                    (_rate("simplex_smp_messages_ntf_successes"), "delivered"),
                    (_rate("heliograph_smp_notifications_redelivered_total"), "repeated"),
                ),
                "ops",
            ),
            Panel("Notifications waiting", (("sum(heliograph_smp_notifications_pending)", ""),)),
            Panel("Queues", (("sum(simplex_smp_queues_total1)", "stored"),
                             ("sum(simplex_smp_loaded_queues_queue_count)", "in memory"))),
            Panel("Messages stored", (("sum(simplex_smp_messages_total)", ""),)),
            Panel("Store failures", ((_rate("heliograph_smp_store_failures_total"), ""),), "ops"),
        ),
    ),
    Row(
        "Processes",
        (
            Panel(
                "CPU",
                ((_CPU, "{{job}}"),),
                "percentunit",
            ),
            Panel(
                "Memory",
                (('process_resident_memory_bytes{job=~"heliograph.*"}', "{{job}}"),),
                "bytes",
            ),
            Panel(
                "Journal on disk",
                (
                    ("sum(heliograph_ntf_journal_bytes)", "ntf"),
                    ("sum(heliograph_smp_journal_bytes)", "smp"),
                ),
                "bytes",
            ),
            Panel(
                "Events that could not be journaled",
                (
                    (_rate("heliograph_ntf_journal_events_lost_total"), "ntf"),
                    (_rate("heliograph_smp_journal_events_lost_total"), "smp"),
                ),
                "ops",
            ),
            Panel(
                "Clients",
                (
                    ("sum(heliograph_ntf_clients)", "ntf"),
                    ("sum(simplex_smp_clients_total)", "smp"),
                ),
            ),
        ),
    ),
    Row(
        "Data pipeline",
        (
            Panel(
                "Verdict",
                (("heliograph_pipeline_verdict == 1", "{{verdict}}"),),
                kind="stat",
                help="Complete, lagging, complete but for known gaps, or missing: of the last"
                " account, unless a router lags since.",
            ),
            Panel(
                "Unaccounted notifications",
                (("heliograph_pipeline_unaccounted_notifications", ""),),
                kind="stat",
            ),
            Panel(
                "Since the last account",
                (("time() - heliograph_pipeline_account_timestamp_seconds", ""),),
                "s",
                "stat",
            ),
            Panel(
                "Lag by router",
                (("heliograph_pipeline_router_lag_seconds", "{{router}}"),),
                "s",
                help="Age of the oldest segment that is not ingested.",
            ),
            Panel("Duration of a batch", (("heliograph_pipeline_batch_seconds", ""),), "s"),
            Panel(
                "Events a second",
                (("sum(rate(heliograph_pipeline_events[$__rate_interval]))", "ingested"),),
                "ops",
            ),
            Panel(
                "Missing events by router",
                (("heliograph_pipeline_router_missing_events", "{{router}}"),),
                help="Gaps in sequence numbers: lost, removed unread, damaged or on their way.",
            ),
            Panel("In quarantine", (("heliograph_pipeline_quarantined", ""),)),
            Panel(
                "Removed before they were read",
                (
                    (_rate("heliograph_ntf_journal_events_removed_total"), "ntf"),
                    (_rate("heliograph_smp_journal_events_removed_total"), "smp"),
                ),
                "ops",
            ),
        ),
    ),
)  # fmt: skip


def main() -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(_row(row.title, len(panels) + 1, top))
        top += 1
        left, height = 0, 4 if row.panels[0].kind == "stat" else 8
        for panel in row.panels:
            if left + panel.width > WIDTH:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.width
        top += height
    return json.dumps(_dashboard(panels), indent=1) + "\n"


def _dashboard(panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": "Heliograph",
        "uid": "heliograph",
        "tags": ["heliograph", "simplex"],
        "description": "Routers and pipeline: what is pending, how fast it is pushed, what fails.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [{"name": "source", "label": "Source", "type": "datasource",
                      "query": "prometheus"}]
        },
        "panels": panels,
    }  # fmt: skip


def _row(title: str, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place,
            "panels": []}  # fmt: skip


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for index, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != main())
    TARGET.write_text(main())
