"""The table of fleets in docs/scale.md is what the plan computes."""

from pathlib import Path

from heliograph.pipeline.planning.costs import values
from heliograph.pipeline.planning.sizing import UTILISATION, Habits, Machine, require

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
DEVICES = (1e6, 1e7, 1e8)


def test_fleets() -> None:
    machine = Machine()
    needs = [require(count, Habits(wake_ups=72), values(), machine) for count in DEVICES]
    rows = {
        "notifications a second, in the busiest hour": [
            f"{need.notifications_per_second:,.0f}" for need in needs
        ],
        "cores of router processes": [
            f"{need.router_cores - need.database_cores:,.1f}" for need in needs
        ],
        "cores of PostgreSQL": [f"{need.database_cores:,.1f}" for need in needs],
        "routers, each with a PostgreSQL": [f"{need.routers}" for need in needs],
        "memory for subscriptions, GB": [f"{need.memory_gb:,.0f}" for need in needs],
        "store, GB": [f"{need.store_gb:,.0f}" for need in needs],
        "log of writes of PostgreSQL, MB/s": [f"{need.log_mb_per_second:,.1f}" for need in needs],
        "network, Gbit/s at most": [f"{need.network_gbit_per_second:,.2f}" for need in needs],
        "requests to providers a second": [
            f"{need.provider_requests_per_second:,.0f}" for need in needs
        ],
        "connections to providers": [f"{need.provider_connections}" for need in needs],
    }
    for name, cells in rows.items():
        assert f"| {name} | {' | '.join(cells)} |" in PAGE


def test_one_postgresql() -> None:
    costs, machine = values(), Machine()
    each = costs["notification_cpu"] * costs["database_share"]
    limit = machine.cores * UTILISATION / each
    assert f"{round(limit, -3):,.0f} notifications a second" in PAGE
    assert f"logs {limit * costs['log_bytes'] / 1e6:.0f} MB/s" in PAGE
