"""What a fleet needs: machines, routers, storage and requests, from costs and habits. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Habits", "Machine", "Requirements", "require", "usage"]

DAY = 86_400.0
UTILISATION = 0.6
"""Share of a core that is planned for: the rest is for retries, restarts and neighbours."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What a device does in a day, and how uneven the day is."""

    notifications: float = 50.0
    subscriptions: float = 20.0
    wake_ups: float = 0.0
    pushes: float = 1.0
    """Accepted pushes for each notification; fewer than one if they are coalesced."""
    peak: float = 3.0
    """The busiest hour, in units of the mean."""


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int = 8
    memory_gb: float = 32.0


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a fleet needs. Rates are of the busiest hour; wake-ups are flat."""

    notifications_per_second: float
    provider_requests_per_second: float
    provider_connections: int
    router_cores: float
    """Of router processes and PostgreSQL."""
    database_cores: float
    """PostgreSQL's part of them."""
    routers: int
    """Routers with a PostgreSQL of their own: each is as large as one machine allows."""
    network_gbit_per_second: float
    """At most: notifications that arrive together share a block."""
    store_gb: float
    log_mb_per_second: float
    """What PostgreSQL logs, and a copy of it receives."""
    memory_gb: float
    journal_gb_per_day: float
    pipeline_cores: float
    machines: int


def usage(devices: float, habits: Habits, costs: Mapping[str, float]) -> dict[str, float]:
    """Return what devices use: cores, GB of the store, requests/s, and GB of journal a day."""
    notifications = devices * habits.notifications / DAY * habits.peak
    wake_ups = devices * habits.wake_ups / DAY
    events = devices * habits.notifications * costs["events_per_notification"]
    return {
        "notifications": notifications,
        "cores": notifications * costs["notification_cpu"] + wake_ups * costs["wake_up_cpu"],
        "store": devices
        * (costs["token_bytes"] + habits.subscriptions * costs["subscription_bytes"])
        / 1e9,
        "requests": notifications * habits.pushes + wake_ups,
        "journal": events * costs["event_bytes"] / 1e9,
        "pipeline_cores": events / DAY * habits.peak * costs["event_cpu"],
    }


def require(
    devices: float, habits: Habits, costs: Mapping[str, float], machine: Machine
) -> Requirements:
    """Return what devices need, with room in every core."""
    used = usage(devices, habits, costs)
    router_cores = used["cores"] / UTILISATION
    pipeline_cores = used["pipeline_cores"] / UTILISATION
    database_cores = router_cores * costs["database_share"]
    written = used["notifications"] + devices * habits.wake_ups / DAY
    in_flight = used["requests"] * costs["provider_seconds"]
    memory = devices * habits.subscriptions * costs["subscription_memory"] / 1e9
    by_core = (router_cores + pipeline_cores) / machine.cores
    return Requirements(
        used["notifications"],
        used["requests"],
        max(1, math.ceil(in_flight / costs["provider_streams"])),
        router_cores,
        database_cores,
        max(1, math.ceil(database_cores / machine.cores)),
        used["notifications"] * costs["network_bytes"] * 8 / 1e9,
        used["store"],
        written * costs["log_bytes"] / 1e6,
        memory,
        used["journal"],
        pipeline_cores,
        max(1, math.ceil(by_core), math.ceil(memory / (machine.memory_gb * UTILISATION))),
    )
