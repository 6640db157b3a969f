"""Actions in a router of several processes: the owner of a queue subscribes it again."""

import asyncio
from pathlib import Path

from heliograph.actions.contract import ActionKind
from tests.ntf.actions.support import a_runner, decided, publish
from tests.ntf.cluster.support import a_cluster
from tests.waiting import until


async def test_the_owner_of_the_queue_subscribes_it_again(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        subscription_id = await phone.subscribe(queue)
        subscribers = one.smp.router.subscribers
        subscribers.drop_notifier(queue.notifier_id)  # and nobody is told
        action = decided(ActionKind.RESUBSCRIBE, subscription_id)
        publish(tables, action)
        # The first process owns the queue, and the second applies the action: once for both.
        runners = [a_runner(world, tables) for world in (other, one)]
        results = [await runner.apply([action.action_id]) for runner in runners]
        assert [found[action.action_id] for found in results] == ["applied", "applied_before"]
        await until(lambda: queue.notifier_id in subscribers.notifiers)
        one.apns.skip(phone.device)
        await one.send(queue)
        await phone.notified_of(queue)
        applied = [
            event
            for world in cluster.members
            for event in world.events
            if event.kind == "action_applied"
        ]
        assert len(applied) == 1


async def test_only_the_leader_applies_by_itself(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    async with a_cluster(tmp_path, 2) as cluster:
        phone = await cluster.first.registered()
        subscription_id = await phone.subscribe(await cluster.first.queue())
        publish(tables, decided(ActionKind.RESUBSCRIBE, subscription_id))
        running = [asyncio.create_task(a_runner(world, tables).run()) for world in cluster.members]

        def applied() -> list[str]:
            return [
                world.name
                for world in cluster.members
                for event in world.events
                if event.kind == "action_applied"
            ]

        try:
            await until(lambda: bool(applied()))
            leaders = [w.name for w in cluster.members if w.router.store.sharing.is_leader]
            assert applied() == leaders
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
