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
        260e-6, "s of CPU from NMSG to the accepted push", "python -m bench readme"
    ),
    "wake_up_cpu": MeasuredCost(
        260e-6, "s of CPU a periodic push: no more than a notification", "python -m bench readme"
    ),
    "database_cpu": MeasuredCost(
        26e-6, "s of CPU of PostgreSQL, a notification", "python -m bench workers"
    ),
    "router_rate": MeasuredCost(
        3000.0,
        "notifications/s of a router with one process",
        "python -m bench readme",
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
