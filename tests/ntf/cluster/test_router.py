"""Several processes of one router: any serves any client, one owns each subscription."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from heliograph.db.dialects import Transaction, open_dialect
from heliograph.db.errors import DatabaseError, DatabaseFenced, DatabaseOwned
from heliograph.ntf.cluster import load, roster, shard_store, subscribers, tables
from heliograph.ntf.cluster.member import ClusterMember
from heliograph.ntf.cluster.roster import Member, Roster
from heliograph.ntf.cluster.shard_store import MAX_RECLAIMS, ShardStore
from heliograph.ntf.cluster.subscribers import ShardSubscribers
from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.limits import NtfLimits
from heliograph.ntf.router import NtfRouter
from heliograph.ntf.store import receiving
from heliograph.ntf.store.receiving import NmsgOutcome
from heliograph.ntf.store.records import Incoming
from heliograph.runtime.limits import RateLimit
from heliograph.wire import ntf, smp
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from tests.ntf.cluster.support import CLUSTER, Cluster, MemberWorld, a_cluster
from tests.ntf.support import AUTH, OK, QUOTA, Recorder, a_device
from tests.waiting import eventually, until


def owners(cluster: Cluster) -> list[int]:
    dialect = open_dialect(cluster.url, read_only=True)
    try:
        return [owner for (owner,) in dialect.query("SELECT owner FROM shards", ())]
    finally:
        dialect.close()


def member_of(world: MemberWorld) -> ClusterMember:
    assert world.router.member is not None
    return world.router.member


def connected(world: MemberWorld) -> int:
    return sum(item.is_resubscribed for item in world.router.subscribers.values())


async def test_any_process_serves_any_client(tmp_path: Path) -> None:
    """What one changes, another answers at once."""
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.phone()
        await phone.tnew()
        here, there = phone.client, await other.connect()
        phone.client = there
        assert await phone.tchk() in (TokenStatus.REGISTERED, TokenStatus.CONFIRMED)
        phone.client = here
        assert await phone.tvfy(await phone.code()) == OK
        for client in (there, here):
            phone.client = client
            assert await phone.tchk() is TokenStatus.ACTIVE
        assert await phone.ask(ntf.TDEL(), phone.token_id) == OK
        phone.client = there
        assert await phone.ask(ntf.TCHK(), phone.token_id) == AUTH


async def test_a_queue_added_at_one_process_is_subscribed_by_its_owner(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        queues = await one.queues(3)
        await phone.subscribe(queues[0])
        phone.client = await other.connect()
        for queue in queues[1:]:
            await phone.subscribe(queue)
        assert [connected(world) for world in cluster.members] == [1, 0]
        await one.send(*queues)
        await phone.notified_of(*queues)


async def test_every_process_knows_the_operators_own_messaging_routers(tmp_path: Path) -> None:
    """Also one that does not subscribe there: its journal names them, too."""
    async with a_cluster(tmp_path, 2, replace(CLUSTER, own_domains=("127.0.0.1",))) as cluster:
        phone = await cluster.first.registered()
        for world, queue in zip(cluster.members, await cluster.first.queues(2), strict=True):
            phone.client = await world.connect()
            await phone.subscribe(queue)
            [created] = world.journal.of("subscription_created")
            assert (created["own_server"], created["smp_host"]) == (True, "127.0.0.1")


async def test_work_moves_without_a_gap_when_a_process_leaves(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        other = await cluster.add()
        assert owners(cluster) == [member_of(one).process_id]
        phone.client = await other.connect()
        closing = asyncio.create_task(cluster.leave(one))
        while not closing.done():
            await one.send(queue)
            await asyncio.sleep(0.05)
        await closing
        assert owners(cluster) == [member_of(other).process_id]
        assert connected(other) == 1
        await one.send_and_receive(queue)
        await phone.notified_of(queue)
        await other.until_none_pending()


async def test_a_member_that_was_removed_cannot_write(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        process = Process("late", one.fingerprint, "test")
        late = await ClusterMember.join(cluster.url, process, lease=CLUSTER.lease)
        await until(lambda: late.process_id in member_of(one).roster.members)
        await until(lambda: late.process_id not in member_of(one).roster.members)
        with pytest.raises(DatabaseFenced):
            await late.database.write(lambda tx: None)
        assert not late.may_send
        await late.run()
        assert late.fenced.is_set()
        await late.database.close()


async def test_claimed_pushes_are_taken_over(tmp_path: Path) -> None:
    """A push in flight is nobody else's, until its process is gone."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        process = Process("late", one.fingerprint, "test")
        late = await ClusterMember.join(cluster.url, process, lease=CLUSTER.lease)
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        claimed = "UPDATE pending_pushes SET owner = ? WHERE kind = 'message'"

        def hold(tx: Transaction) -> None:
            tx.execute(claimed, (late.process_id,))
            tx.execute("UPDATE tokens SET status = 'CONFIRMED'")

        # As if the other had stored it and were about to push it.
        await one.router.store.database.write(
            lambda tx: tx.execute("UPDATE tokens SET status = 'CONFIRMED'")
        )
        await one.send(queue)
        await eventually(one.pending_pushes)
        await late.renew()
        await late.database.write(hold)
        await late.database.write(lambda tx: tx.execute("UPDATE tokens SET status = 'ACTIVE'"))
        one.router.outbox.wake()
        assert await phone.is_quiet()
        await phone.notified_of(queue)  # once the lease has ended
        assert late.process_id not in member_of(one).roster.members
        await late.database.close()


async def test_two_processes_push_one_notification_once(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 3) as cluster:
        one = cluster.members[0]
        phone = await one.registered()
        queues = await one.queues(5)
        for queue in queues:
            await phone.subscribe(queue)
        for _ in range(10):
            await one.send(*queues)
        await one.until_none_pending()
        newest = [
            tuple(sorted(item.nonce for item in phone.open(push)))
            for push in one.apns.accepted(phone.device)
            if isinstance(push, ntf.push.MessagePush)
        ]
        assert len(newest) == len({*newest})


async def test_what_is_resent_to_another_process_is_a_repeat(tmp_path: Path) -> None:
    """Also if newer ones of the same queue were stored since."""
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        nonces = [bytes([number]) * 24 for number in range(3)]

        async def receive(world: MemberWorld, *some: bytes) -> list[NmsgOutcome]:
            incoming = [Incoming(queue.notifier_id, nonce, b"meta", 1.0) for nonce in some]
            stored: receiving.StoredBatch = await world.router.store.receive(1, incoming)
            return [item.outcome for item in stored.received]

        stored, repeated = NmsgOutcome.STORED, NmsgOutcome.REPEATED
        assert await receive(one, *nonces[:2]) == [stored, stored]
        assert await receive(other, nonces[0]) == [repeated]
        assert await receive(other, nonces[1], nonces[2]) == [repeated, stored]
        assert await receive(one, nonces[2]) == [repeated]
        assert await receive(one, nonces[0]) == [repeated]


async def test_numbers_grow_over_all_processes(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        taken: list[int] = []
        for _ in range(3):
            for world in cluster.members:
                take = partial(member_of(world).take, count=2)
                taken += await member_of(world).database.write(take)
        assert len(taken) == 12
        assert taken == sorted({*taken})


async def test_registrations_are_limited_over_all_processes(tmp_path: Path) -> None:
    limits = NtfLimits(new_tokens_per_minute=RateLimit(3))
    async with a_cluster(tmp_path, 2, replace(CLUSTER, limits=limits)) as cluster:
        answers = [await (await world.phone()).tnew() for world in cluster.members * 2]
        assert [answer == QUOTA for answer in answers] == [False, False, False, True]


async def test_a_clock_that_is_wrong_changes_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registrations are counted by the clock of the database, which all processes share."""
    right, limits = time.time_ns, NtfLimits(new_tokens_per_minute=RateLimit(3))
    async with a_cluster(tmp_path, 2, replace(CLUSTER, limits=limits)) as cluster:
        answers = []
        for world, ahead in zip(cluster.members * 2, (0, 61, 0, 61), strict=True):
            phone = await world.phone()
            monkeypatch.setattr(time, "time_ns", lambda ahead=ahead: right() + ahead * 10**9)
            answers.append(await phone.tnew())
        assert [answer == QUOTA for answer in answers] == [False, False, False, True]


async def test_a_large_router_is_split_and_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SPLIT_AT", 4)
    monkeypatch.setattr(tables.split_large, "__defaults__", (4,))
    async with a_cluster(tmp_path, 2) as cluster:
        one = cluster.members[0]
        phone = await one.registered()
        queues = await one.queues(12)
        for queue in queues:
            await phone.subscribe(queue)

        def is_shared() -> bool:
            return [connected(world) for world in cluster.members] == [4, 4]

        await until(is_shared)
        assert len(owners(cluster)) == tables.SHARDS

        async def is_settled() -> bool:
            sql = "SELECT 1 FROM shards WHERE previous IS NOT NULL"
            return not await one.read(lambda tx: tx.query(sql))

        await eventually(is_settled)
        for queue in queues:  # one push carries only the last few
            await one.send(queue)
            await phone.notified_of(queue)
        rows = await one.read(lambda tx: tx.query("SELECT DISTINCT status FROM subscriptions"))
        assert rows == [("ACTIVE",)]


async def test_shards_move_away_from_a_busy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner measures it, and gives others away without a gap."""
    monkeypatch.setattr(tables.split_large, "__defaults__", (4,))
    monkeypatch.setattr(subscribers, "MEASURE_SECONDS", 0.5)
    monkeypatch.setattr(load, "SHARD_WEIGHT", 1)
    async with a_cluster(tmp_path, 2) as cluster:
        one = cluster.members[0]
        phone = await one.registered()
        queues = await one.queues(12)
        for queue in queues:
            await phone.subscribe(queue)
        await until(lambda: sum(map(connected, cluster.members)) == tables.SHARDS)
        [busy, *_] = queues
        sql = "SELECT subscription_id FROM subscriptions WHERE notifier_id = ?"
        [[found]] = await one.read(lambda tx: tx.query(sql, (busy.notifier_id,)))
        key = 1, tables.shard_of(found, tables.SHARDS)

        async def is_alone() -> bool:
            await one.send(busy)
            shards = member_of(one).roster.shards
            return [shard.owner for shard in shards.values()].count(shards[key].owner) == 1

        await eventually(is_alone)
        for queue in queues:
            await one.send(queue)
            await phone.notified_of(queue)


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_shard_that_comes_back_is_subscribed_again(
    tmp_path: Path, is_noticed: bool
) -> None:
    """Its new owner subscribed a queue, which thus ended here, and left before it was ready."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        member = member_of(one)
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        process = Process("late", one.fingerprint, "test")
        late = await ClusterMember.join(cluster.url, process, lease=CLUSTER.lease)

        def move(tx: Transaction) -> None:
            before = tables.load(tx)
            leaving = {**before.members, member.process_id: Member(2**62, is_leaving=True)}
            after = roster.update(Roster(leaving, before.shards), late.process_id, 0)
            tables.store(tx, before, replace(before, shards=after.shards))

        [subscriber] = one.router.subscribers.values()
        changed = member.changed
        if not is_noticed:
            member.changed = lambda: None
        await late.database.write(move)
        await until(lambda: member.roster.left_by(member.process_id) != set())
        thief = await one.smp.connect()
        await queue.nsub(thief)
        await until(lambda: subscriber.subscribed == 0)
        await late.leave()
        await thief.close()
        member.changed = changed
        await until(lambda: member.roster.owned_by(member.process_id) != set())
        await one.send(queue)
        await phone.notified_of(queue)
        await late.database.close()


async def test_a_subscriber_from_before_a_shard_was_lost_writes_nothing(tmp_path: Path) -> None:
    """It has got END for what another had subscribed: that is no other router."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        member = member_of(one)
        phone = await one.registered()
        queue = await one.queue()
        subscription = await phone.subscribe(queue)
        [(key, shard)] = member.roster.shards.items()
        stores = [ShardStore(member, key, 1, shard.generation - age) for age in (1, 0)]
        ended = [
            await store.set_ended(key[0], [queue.notifier_id], SubscriptionState.END)
            for store in stores
        ]
        assert ended == [None, [subscription]]


async def moved(world: MemberWorld) -> None:
    """Take the only shard away from a process and give it back, as if it had been stopped."""
    member = member_of(world)
    [shard] = member.roster.shards.values()
    sql = "UPDATE shards SET generation = generation + 1"
    await member.database.write(lambda tx: tx.execute(sql, ()))
    await until(lambda: [*member.roster.shards.values()] != [shard])
    await until(lambda: connected(world) == 1)


async def test_a_queue_that_a_former_owner_took_is_reclaimed(tmp_path: Path) -> None:
    """It was stopped, perhaps, with NSUB on its way. If it is taken more often, END is final."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        subscription = await phone.subscribe(queue)
        await moved(one)
        thief = await one.smp.connect()
        ended = queue.notifier_id, smp.END()
        for count in range(1, MAX_RECLAIMS + 1):
            await queue.nsub(thief)
            await until(lambda: thief.pushes.count(ended) == count)  # noqa: B023
            await one.send(queue)
            await phone.notified_of(queue)
        await queue.nsub(thief)
        await phone.until_state(subscription, SubscriptionState.END)


@pytest.mark.parametrize("has_moved", [False, True])
async def test_a_queue_that_another_router_took_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_moved: bool
) -> None:
    """No process of this router had the shard, or none so lately that its NSUB could be late."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        subscription = await phone.subscribe(queue)
        if has_moved:
            monkeypatch.setattr(shard_store, "RECLAIM_SECONDS", 0.0)
            await moved(one)
        thief = await one.smp.connect()
        await queue.nsub(thief)
        await phone.until_state(subscription, SubscriptionState.END)
        assert (queue.notifier_id, smp.END()) not in thief.pushes


async def test_a_process_whose_lease_may_have_ended_subscribes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would take queues from their new owner when it continues after a stop."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        first, second = await one.queues(2)
        await phone.subscribe(first)
        [subscriber] = one.router.subscribers.values()
        counters = one.smp.router.observer.counters
        before = counters.notifier_subscribed
        with monkeypatch.context() as patch:
            patch.setattr(ClusterMember, "may_send", False)
            answer = await phone.snew(second)
            assert isinstance(answer, ntf.IDSUB)
            await until(lambda: subscriber.client is None)
            assert counters.notifier_subscribed == before
        await phone.until_state(answer.subscription_id, SubscriptionState.ACTIVE)


async def test_queues_that_a_new_owner_subscribed_are_no_useless_events(tmp_path: Path) -> None:
    """The former owner gets END for each: it must not take its messaging router for abusive."""
    async with a_cluster(tmp_path, 1, replace(CLUSTER, lease=60.0)) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queues = await one.queues(5)
        for queue in queues:
            await phone.subscribe(queue)
        member = member_of(one)
        await member.database.write_urgent(lambda tx: tx.execute("UPDATE shards SET owner = 0", ()))
        thief = await one.smp.connect()
        for queue in queues:
            await queue.nsub(thief)
        [subscriber] = one.router.subscribers.values()
        await until(lambda: subscriber.subscribed == 0)
        assert not one.router.stats.worthless_events


async def test_a_split_router_without_subscriptions_is_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or new subscriptions would belong to shards that do not exist."""
    monkeypatch.setattr(tables.split_large, "__defaults__", (4,))
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        for queue in await one.queues(12):
            await phone.subscribe(queue)
        await until(lambda: len(owners(cluster)) == tables.SHARDS)

        def delete(tx: Transaction) -> None:
            tx.execute("DELETE FROM subscriptions", ())
            tables.remove_unused(tx)

        await member_of(one).database.write(delete)
        await until(lambda: not owners(cluster))
        queues = await one.queues(12)
        for queue in queues:
            await phone.subscribe(queue)
            await one.send(queue)
            await phone.notified_of(queue)


async def test_a_subscriber_reads_no_queues_of_a_shard_that_has_moved(tmp_path: Path) -> None:
    """Or it would take them from the new owner."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        subscription = await phone.subscribe(await one.queue())
        member = member_of(one)
        [(key, shard)] = member.roster.shards.items()
        stores = [ShardStore(member, key, 1, shard.generation - age) for age in (1, 0)]
        pages = [await store.page(key[0], b"", 10, None) for store in stores]
        assert [[item.subscription_id for item in page] for page in pages] == [[], [subscription]]


async def test_a_process_that_lost_its_lease_leaves_messaging_routers(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        await (await one.registered()).subscribe(await one.queue())
        member = member_of(one)
        await member.database.write_urgent(
            lambda tx: tx.execute("DELETE FROM leases WHERE process_id = ?", (member.process_id,))
        )
        await until(member.fenced.is_set)
        await until(lambda: not one.smp.router.subscribers.notifiers)


async def test_periodic_wake_ups_are_sent_once(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        assert await phone.ask(ntf.TCRN(20), phone.token_id) == OK
        await one.make_wake_ups_due()
        await one.apns.push(phone.device)
        await one.until_none_pending()
        assert await phone.is_quiet(2.5)
        assert member_of(one).is_leader
        assert not member_of(other).is_leader


async def test_one_process_has_a_window_for_all(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        await until(lambda: len(member_of(cluster.first).roster.members) == 2)
        assert member_of(cluster.first).share_of(500) == 250
        assert member_of(cluster.first).share_of(1) == 1


async def test_others_are_refused(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        with pytest.raises(DatabaseError, match=r"other keys uses this store \(process process-0"):
            await ClusterMember.join(cluster.url, Process("other", b"g" * 32, "test"))
        with pytest.raises(DatabaseOwned):
            await NtfRouter.start(cluster.url, {})


async def test_tables_edited_by_hand_are_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners that do not exist, shards that are gone, dead processes without an end.

    One of these would be the leader.
    """
    monkeypatch.setattr(roster, "MAX_LEASE", 5.0)
    async with a_cluster(tmp_path, 1, replace(CLUSTER, lease=0.5)) as cluster:
        [one] = cluster.members
        member = member_of(one)
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)

        def edit(tx: Transaction) -> None:
            tx.execute(
                "INSERT INTO processes (process_id, name, fingerprint, version, schema, is_leaving)"
                " SELECT n, 'dead/1', ?, 'test', '', 0 FROM (VALUES (0), (99)) numbers (n)",
                (b"f" * 32,),
            )
            tx.execute("INSERT INTO leases VALUES (97, 0, 0), (99, ?, 0)", (2**62,))
            tx.execute("UPDATE shards SET owner = 77, previous = 78")

        await member.database.write(edit)
        await until(lambda: owners(cluster) == [member.process_id])
        await one.send(queue)
        await phone.notified_of(queue)
        await member.database.write(lambda tx: tx.execute("DELETE FROM shards"))
        await until(lambda: len(owners(cluster)) == 1 and owners(cluster) != [99])
        await until(lambda: member.roster.members.keys() == {member.process_id})
        await one.send(queue)
        await phone.notified_of(queue)


async def test_a_process_that_is_leaving_by_hand_only_stays(tmp_path: Path) -> None:
    """Nobody else may own its shards, and it would not take them."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)

        def edit(tx: Transaction) -> None:
            tx.execute("UPDATE processes SET is_leaving = 1")
            tx.execute("DELETE FROM shards")

        await member_of(one).database.write(edit)
        await until(lambda: owners(cluster) == [member_of(one).process_id])
        await one.send(queue)
        await phone.notified_of(queue)


@pytest.mark.parametrize("count", [0, 1000])
async def test_a_number_of_shards_that_cannot_be_is_repaired(tmp_path: Path, count: int) -> None:
    """Edited by hand: subscriptions would belong to no shard."""
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queue = await one.queue()
        await phone.subscribe(queue)
        database = member_of(one).database
        await database.write(lambda tx: tx.execute("UPDATE servers SET shards = ?", (count,)))

        async def is_whole() -> bool:
            found = await database.read(lambda tx: tx.query("SELECT shards FROM servers"))
            return found == [(1,)] and len(owners(cluster)) == connected(one) == 1

        await eventually(is_whole)
        await one.send(queue)
        await phone.notified_of(queue)


async def test_shards_deleted_or_added_by_hand_are_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables.split_large, "__defaults__", (4,))
    async with a_cluster(tmp_path, 1) as cluster:
        [one] = cluster.members
        phone = await one.registered()
        queues = await one.queues(12)
        for queue in queues:
            await phone.subscribe(queue)
        await until(lambda: len(owners(cluster)) == tables.SHARDS)
        database = member_of(one).database

        def edit(tx: Transaction) -> None:
            tx.execute("DELETE FROM shards WHERE shard >= 2")
            tx.execute("INSERT INTO shards (server_id, shard) SELECT server_id, 8 FROM servers")

        await database.write(edit)
        shards = [(number,) for number in range(tables.SHARDS)]

        async def are_repaired() -> bool:
            found = await database.read(
                lambda tx: tx.query("SELECT shard FROM shards WHERE owner IS NOT NULL ORDER BY 1")
            )
            return found == shards and len(one.router.subscribers) == tables.SHARDS

        await eventually(are_repaired)
        for queue in queues:
            await one.send(queue)
            await phone.notified_of(queue)


async def test_a_clock_that_is_wrong_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_cluster(tmp_path, 1) as cluster:
        member = member_of(cluster.first)

        def add(tx: Transaction) -> None:
            tx.execute(
                "INSERT INTO processes (process_id, name, fingerprint, version, schema, is_leaving)"
                " VALUES (99, 'slow/1', ?, 'test', '', 0)",
                (b"f" * 32,),
            )
            tx.execute("INSERT INTO leases VALUES (99, ?, -61000)", (tables.now(tx) + 60_000,))

        await member.database.write(add)
        await until(lambda: "clocks differ from the database's (slow/1 by -61 s)" in caplog.text)


async def test_a_subscription_deleted_elsewhere_ends_its_subscriber(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        phone = await one.registered()
        subscription = await phone.subscribe(await one.queue())
        phone.client = await other.connect()
        assert await phone.ask(ntf.SDEL(), subscription) == OK
        await until(lambda: not any(len(world.router.subscribers) for world in cluster.members))
        assert isinstance(one.router.subscribers, ShardSubscribers)


async def test_the_outcome_of_a_push_is_stored_by_its_process(tmp_path: Path) -> None:
    """Notifications that others store while a push is in flight are pushed after it."""
    recorder = Recorder()
    async with a_cluster(tmp_path, 2) as cluster:
        one, other = cluster.members
        for world in cluster.members:
            for lane in world.router.outbox.lanes.values():
                lane.provider = recorder
        phone = await one.phone(a_device())
        await phone.tnew()
        await until(lambda: len(recorder.deliveries) == 1)
        await one.router.store.database.write(
            lambda tx: tx.execute("UPDATE tokens SET status = 'ACTIVE'")
        )
        queue = await one.queue()
        await phone.subscribe(queue)
        recorder.gate.clear()
        for count, world in enumerate((one, other), 1):
            incoming = [Incoming(queue.notifier_id, bytes([count]) * 24, b"m", 1.0)]
            stored = await world.router.store.receive(1, incoming)
            world.router.outbox.offer(stored.pushes)
            assert len(stored.pushes) == (count == 1)
        recorder.gate.set()
        await one.until_none_pending()
        assert len(recorder.deliveries) == 3
