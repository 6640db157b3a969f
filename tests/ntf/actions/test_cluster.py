"""Actions in a router of several processes: the owner of a queue subscribes it again."""

import asyncio
from pathlib import Path

from heliograph.actions.contract import EVERYTHING, ActionKind
from heliograph.ntf.actions import requests
from heliograph.wire import ntf
from heliograph.wire.errors import ErrorCode
from tests.actions.support import an_action
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
        subscribers.drop_notifier(queue.notifier_id)  # without an END
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
            leaders = [w.name for w in cluster.members if w.router.store.coordinator.is_leader]
            assert applied() == leaders
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def test_a_throttle_and_a_pause_are_in_force_in_every_process(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    async with a_cluster(tmp_path, 2) as cluster:
        phone = await cluster.first.registered()
        evidence = {"finding": "token_flood", "observed": 100_000}
        throttle = decided(ActionKind.THROTTLE_TOKEN, phone.token_id, evidence=evidence)
        pause = an_action(
            ActionKind.PAUSE_REGISTRATIONS,
            subject=EVERYTHING,
            evidence=evidence,
            decided_at=throttle.decided_at,
            valid_until=throttle.valid_until,
        )
        publish(tables, throttle, pause)
        runners = [a_runner(world, tables) for world in cluster.members]
        running = [asyncio.create_task(runner.run()) for runner in runners]
        stores = [world.router.store for world in cluster.members]
        try:
            await until(lambda: all(len([*store.restrictions]) == 2 for store in stores))
            for world in cluster.members:
                assert await (await world.phone()).tnew() == ntf.ERR(ErrorCode.QUOTA)
            requests.submit(cluster.first.directory, (pause.action_id,), undo=True)
            for other in cluster.members[1:]:
                requests.submit(other.directory, (pause.action_id,), undo=True)
            await until(lambda: all(len([*store.restrictions]) == 1 for store in stores))
            for world in cluster.members:
                await world.registered()
        finally:
            for task in running:
                task.cancel()
