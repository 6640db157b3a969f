"""A report with a value in every table, made without Spark."""

from heliograph.pipeline.jobs.health import QUANTILES
from heliograph.pipeline.jobs.outcomes import LATENCIES
from heliograph.pipeline.jobs.stats import HEADER
from heliograph.pipeline.objectives.describing import COLUMNS
from heliograph.pipeline.report.report import Report, ReportTable
from heliograph.pipeline.vocabulary import OUTCOMES

HOURS = [f"2026-01-05T{hour:02}:00:00Z" for hour in range(24)]


def example() -> Report:
    outcomes = {outcome: 3 + 40 * (outcome in ("shown", "accepted")) for outcome in OUTCOMES}
    latencies = tuple(f"{name}_{label}" for name in LATENCIES for label in ("n", *QUANTILES))
    spread = {"n": 100, "p50": 4_000, "p90": 31_000, "p99": 900_000, "p999": 75_000_000}

    def values(hour: int) -> tuple[int, ...]:
        return tuple(spread[name.rpartition("_")[2]] + 997 * hour for name in latencies)

    daily = [("2026-01-05", *range(1, len(HEADER))), ("2026-01-06", *range(2, len(HEADER) + 1))]
    gap = ("0123456789abcdef", "ntf", "1767600000000000", 6, 25, 20, HOURS[2], HOURS[3])
    objective = ("99% accepted in 10s", "all", "incomplete", "99.731%", "73.1%", "0.20", "", "0.27")
    tables = {
        "objectives": _table("Objectives, of the last 30 days", COLUMNS, [objective]),
        "hours": _table(
            "Notifications by hour and outcome",
            ("hour", *OUTCOMES),
            [(hour, *(count + n for count in outcomes.values())) for n, hour in enumerate(HOURS)],
        ),
        "latency": _table(
            "Latency by hour",
            ("hour", *latencies),
            [(hour, *values(n)) for n, hour in enumerate(HOURS)],
        ),
        "providers": _table(
            "Pushes by hour and provider",
            ("hour", "provider", "attempts", "accepted", "retried", "rejected", "expired"),
            [(hour, "apns_prod", 60 + n, 50 + n, 7, 2, 1) for n, hour in enumerate(HOURS)],
        ),
        "provider_latency": _table(
            "Latency by provider and own messaging router",
            ("provider", "smp_host", *latencies),
            [("apns_prod", "smp1.example.org", *values(0)), ("fcm", None, *values(5))],
        ),
        "failures": _table(
            "Why pushes were not accepted",
            ("provider", "kind", "code", "reason", "events"),
            [("apns_prod", "push_retried", 503, "ServiceUnavailable", 168)],
        ),
        "funnel": _table("Tokens", ("provider", "registered", "active"), [("apns_prod", 12, 11)]),
        "own_servers": _table(
            "By own messaging router",
            ("smp_host", "kind", "events"),
            [("smp1.example.org", "nmsg_received", 1900)],
        ),
        "connections": _table(
            "Connections to messaging routers",
            ("hour", "router", "server", "smp_host", "subscribe_us", "gap_us", "drift"),
            [(HOURS[0], "0123456789abcdef", "5f5f", None, 1_200_000, 3_500_000, 0)],
        ),
        "quarantine": _table("Quarantined", ("reason", "count"), [("the segment is damaged", 1)]),
        "daily": _table("Daily statistics", HEADER, daily),
        "reconciliation": _table(
            "Where a router's own statistics differ", ("day", "column", "pipeline", "router"), []
        ),
        "coverage": _table(
            "Events known to be missing",
            ("router", "part", "boot", "first_seq", "last_seq", "events", "from_at", "until_at"),
            [gap],
        ),
    }
    return Report(
        "2026-01-05",
        "2026-01-05",
        "2026-01-06T00:10:00+00:00",
        outcomes,
        1.42,
        {"quarantined": 1},
        tables,
        missing_events=20,
        explained=3,
        recovered={"accepted": 4},
    )


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> ReportTable:
    return ReportTable(title, tuple(columns), tuple(rows))
