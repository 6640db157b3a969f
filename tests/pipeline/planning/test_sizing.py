import pytest
from hypothesis import given, strategies as st

from heliograph.pipeline.planning.costs import COSTS, values
from heliograph.pipeline.planning.sizing import Habits, Machine, require, usage

fleets = st.floats(1, 1e9)


@given(fleets, st.floats(1.0, 10.0))
def test_more_devices_never_need_less(devices: float, times: float) -> None:
    few = require(devices, Habits(wake_ups=72), values(), Machine())
    many = require(times * devices, Habits(wake_ups=72), values(), Machine())
    for name in few.__slots__:
        assert getattr(many, name) >= getattr(few, name) * (1 - 1e-9)


@given(fleets)
def test_machines_have_the_cores_and_the_memory(devices: float) -> None:
    machine = Machine(cores=4, memory_gb=16.0)
    need = require(devices, Habits(), values(), machine)
    assert need.machines * machine.cores >= need.router_cores + need.pipeline_cores
    assert need.machines * machine.memory_gb >= need.memory_gb
    assert need.routers * machine.cores >= need.database_cores
    streams = need.provider_connections * COSTS["provider_streams"].value
    assert streams >= need.provider_requests_per_second * COSTS["provider_seconds"].value


def test_an_example_by_hand() -> None:
    habits = Habits(notifications=86.4, subscriptions=10, wake_ups=24, pushes=0.5, peak=2.0)
    used = usage(1_000_000, habits, values())
    assert used["notifications"] == pytest.approx(2000.0)
    wake_ups = 24e6 / 86_400
    assert used["requests"] == pytest.approx(1000 + wake_ups)
    assert used["cores"] == pytest.approx(0.00026 * (2000 + wake_ups))
    assert used["store"] == pytest.approx(0.66 + 6.0)
    assert used["journal"] == pytest.approx(86.4 * 6.1 * 30 / 1000)
    need = require(1_000_000, habits, values(), Machine(cores=1))
    assert need.router_cores == pytest.approx(used["cores"] / 0.6)
    assert need.database_cores == pytest.approx(need.router_cores * 0.42)
    assert need.routers == 1
    assert need.provider_connections == 1
    assert need.network_gbit_per_second == pytest.approx(2000 * 40_800 * 8 / 1e9)
    assert need.log_mb_per_second == pytest.approx((2000 + wake_ups) * 944 / 1e6)


def test_a_cost_can_be_changed() -> None:
    assert values({"token_bytes": 1.0})["token_bytes"] == 1.0
    assert all(cost.value > 0 and cost.command for cost in COSTS.values())
