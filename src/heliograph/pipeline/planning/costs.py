"""What operations cost, as measured: each figure with the command that prints it.

Machines differ: run the commands on yours and pass `--cost NAME=VALUE` for what differs much.
"""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["COSTS", "MeasuredCost", "values"]


class MeasuredCost(NamedTuple):
    value: float
    unit: str
    command: str


COSTS: Mapping[str, MeasuredCost] = {
    "notification_cpu": MeasuredCost(
        260e-6,
        "s of CPU from NMSG to the accepted push, PostgreSQL included",
        "python -m bench readme",
    ),
    "wake_up_cpu": MeasuredCost(
        260e-6, "s of CPU a periodic push: no more than a notification", "python -m bench readme"
    ),
    "database_share": MeasuredCost(
        0.42, "of that CPU is PostgreSQL's (four workers)", "python -m bench workers"
    ),
    "network_bytes": MeasuredCost(
        40_800.0,
        "bytes for a notification that comes alone, in and out",
        "python -m bench network",
    ),
    "log_bytes": MeasuredCost(
        944.0, "bytes of PostgreSQL's log of writes, a notification", "python -m bench network"
    ),
    "provider_seconds": MeasuredCost(0.1, "s until a provider answers", "assumed"),
    "provider_streams": MeasuredCost(
        250.0, "pushes in flight on a connection: [pushes] window", "by default, two connections"
    ),
    "token_bytes": MeasuredCost(660.0, "bytes in PostgreSQL", "python -m bench sizing-postgresql"),
    "subscription_bytes": MeasuredCost(
        600.0, "bytes in PostgreSQL", "python -m bench sizing-postgresql"
    ),
    "subscription_memory": MeasuredCost(
        300.0, "bytes of memory", "python -m bench sizing-postgresql"
    ),
    "event_bytes": MeasuredCost(30.0, "bytes of journal", "python -m bench.pipeline 1000000"),
    "event_cpu": MeasuredCost(
        18.9e-6, "s of CPU in the pipeline, all jobs", "python -m bench.pipeline 5000000"
    ),
    "events_per_notification": MeasuredCost(
        6.1, "events from stored to shown", "python -m bench.pipeline 1000000"
    ),
}


def values(changed: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return all costs by name, some of them changed."""
    return {name: cost.value for name, cost in COSTS.items()} | dict(changed or {})
