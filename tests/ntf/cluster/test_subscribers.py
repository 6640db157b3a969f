"""How new subscriptions reach the process that owns their shard."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from heliograph.ntf.cluster.subscribers import POLL_SECONDS
from heliograph.wire import smp
from tests.ntf.cluster.support import a_cluster
from tests.waiting import eventually


async def test_the_first_queue_of_a_messaging_router_is_subscribed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second NSUB, later, would take it back from a router that subscribed meanwhile."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        sent: list[smp.NSUB] = []
        observer = one.smp.router.observer
        commanded = observer.commanded

        def count(requests: Sequence[Any]) -> None:
            sent.extend(item.command for item in requests if isinstance(item.command, smp.NSUB))
            commanded(requests)

        monkeypatch.setattr(type(observer), "commanded", lambda _, requests: count(requests))
        phone = await one.registered()
        await phone.subscribe(await one.queue())

        async def are_taken() -> bool:
            return not await one.read(lambda tx: tx.query("SELECT 1 FROM new_subscriptions"))

        await eventually(are_taken)
        await asyncio.sleep(2 * POLL_SECONDS)
        assert len(sent) == 1
