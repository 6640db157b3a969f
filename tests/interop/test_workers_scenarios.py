"""The scenarios of the notification router with one that is three processes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.db.postgres import shared_postgres
from tests.interop import test_ntf_scenarios as scenarios
from tests.ntf.cluster.support import CLUSTER, WorkersWorld

Scenario = Callable[..., Awaitable[Any]]


@pytest_asyncio.fixture
async def workers_world(tmp_path: Path) -> AsyncIterator[WorkersWorld]:
    world = WorkersWorld(shared_postgres().new_url(), tmp_path, CLUSTER)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


@pytest.mark.parametrize(
    "scenario",
    [
        scenarios.test_register_and_verify_a_token,
        scenarios.test_repeat_a_registration_with_the_same_keys,
        scenarios.test_verify_after_a_restart,
        scenarios.test_verify_again_when_the_first_answer_was_lost,
        scenarios.test_register_again_after_a_restart,
        scenarios.test_an_active_token_works_until_it_is_replaced,
        scenarios.test_subscribe_an_existing_queue,
        scenarios.test_a_push_names_its_message,
        scenarios.test_subscribe_new_queues_of_both_sides,
        scenarios.test_several_messaging_routers,
        scenarios.test_repeat_a_subscription,
        scenarios.test_change_the_mode,
        scenarios.test_change_the_token,
    ],
    ids=lambda scenario: scenario.__name__.removeprefix("test_"),
)
async def test_scenario(workers_world: WorkersWorld, scenario: Scenario) -> None:
    await scenario(workers_world)
