"""Tokens without an owner, in a router on real sockets: slowed, verified, removed and restored."""

from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import Action, ActionKind
from heliograph.ntf.actions.runner import ActionRunner
from heliograph.wire import ntf
from heliograph.wire.ntf.push import MessagePush, VerificationPush
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from tests.ntf.actions.support import a_runner, decided, publish
from tests.ntf.support import AUTH, OK, NtfWorld, Phone
from tests.smp.support import Queue

SLOW, VERIFY, REMOVE = ActionKind.SLOW_TOKEN, ActionKind.VERIFY_TOKEN, ActionKind.REMOVE_TOKEN
DAY = 86_400_000


class DeadToken:
    """A phone that has not been heard of for weeks, and a runner of actions about it."""

    def __init__(self, world: NtfWorld, phone: Phone, queue: Queue, tables: Path) -> None:
        self.world, self.phone, self.queue, self.tables = world, phone, queue, tables
        self.runner: ActionRunner = a_runner(world, tables, automatic=frozenset())
        self.since = 0

    async def age(self, days: int) -> None:
        """Let time pass for the token."""

        def age(tx: Any) -> None:
            tx.execute("UPDATE tokens SET seen_at = seen_at - ?", (days * DAY,))
            for column in ("slowed_at", "asked_at", "verified_at"):
                tx.execute(f"UPDATE slowed_tokens SET {column} = {column} - ?", (days * DAY,))

        await self.world.router.store.database.write(age)
        self.world.router.store.forget_tokens([self.phone.token_id])
        token_id = self.phone.token_id
        sql = "SELECT seen_at FROM tokens WHERE token_id = ?"
        rows = await self.world.read(lambda tx: tx.query(sql, (token_id,)))
        [[seen_at]] = rows or [[0]]
        self.since = seen_at * 1000

    def action(self, kind: ActionKind) -> Action:
        made = decided(kind, self.phone.token_id, evidence={"unseen_since": self.since})
        publish(self.tables, made)
        return made

    async def apply(self, kind: ActionKind) -> str:
        made = self.action(kind)
        [result] = (await self.runner.apply([made.action_id])).values()
        return result

    async def stages(self) -> int:
        [[count]] = await self.world.read(lambda tx: tx.query("SELECT COUNT(*) FROM slowed_tokens"))
        return int(count)

    def journaled(self, kind: str) -> list[Any]:
        return [event for event in self.world.events if event.kind == kind]


@pytest.fixture
async def dead(world: NtfWorld, tmp_path: Path) -> DeadToken:
    phone = await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    found = DeadToken(world, phone, queue, tmp_path / "tables")
    await found.age(22)
    return found


async def test_a_token_that_never_answers_is_removed_in_stages_and_restored_by_undo(
    dead: DeadToken,
) -> None:
    world, phone = dead.world, dead.phone
    # No stage is skipped.
    assert await dead.apply(VERIFY) == "disagreed"
    assert await dead.apply(REMOVE) == "disagreed"
    assert await dead.apply(SLOW) == "applied"
    await dead.age(2)
    world.apns.skip(phone.device)
    assert await dead.apply(VERIFY) == "applied"
    assert isinstance(await world.apns.push(phone.device), VerificationPush)
    assert await dead.apply(REMOVE) == "disagreed"
    await dead.age(4)
    remove = dead.action(REMOVE)
    assert await dead.runner.apply([remove.action_id]) == {remove.action_id: "applied"}
    assert await phone.ask(ntf.TCHK(), phone.token_id) == AUTH
    [deleted] = dead.journaled("token_deleted")
    assert deleted["reason"] == "dead"
    assert [event["action_kind"] for event in dead.journaled("action_applied")] == [
        "slow_token",
        "verify_token",
        "remove_token",
    ]
    # Its owner comes back and complains: everything is as it was, and pushes arrive.
    assert await dead.runner.undo(remove.action_id) == "undone"
    assert await phone.tchk() is TokenStatus.ACTIVE
    await phone.until_state(phone.subscriptions[0], SubscriptionState.ACTIVE)
    world.apns.skip(phone.device)
    await world.send(dead.queue)
    await phone.notified_of(dead.queue)


@pytest.mark.parametrize("stage", [SLOW, VERIFY])
@pytest.mark.parametrize("command", ["TCHK", "TVFY", "TCRN", "SCHK", "SNEW", "TNEW"])
async def test_any_command_of_its_owner_restores_a_token(
    small_world: NtfWorld, tmp_path: Path, stage: ActionKind, command: str
) -> None:
    phone = await small_world.phone()
    await phone.tnew()
    code = await phone.code()
    assert await phone.tvfy(code) == OK
    queue = await small_world.queue()
    subscription_id = await phone.subscribe(queue)
    dead = DeadToken(small_world, phone, queue, tmp_path / "tables")
    await dead.age(22)
    assert await dead.apply(SLOW) == "applied"
    if stage is VERIFY:
        await dead.age(2)
        assert await dead.apply(VERIFY) == "applied"
    match command:
        case "TCHK":
            assert await phone.tchk() is TokenStatus.ACTIVE
        case "TVFY":
            assert await phone.tvfy(code) == OK
        case "TCRN":
            assert await phone.ask(ntf.TCRN(20), phone.token_id) == OK
        case "SCHK":
            assert (await phone.schk(subscription_id)).state is SubscriptionState.ACTIVE
        case "SNEW":
            assert isinstance(await phone.snew(await small_world.queue()), ntf.IDSUB)
        case "TNEW":
            assert isinstance(await phone.tnew(), ntf.IDTKN)
    assert await dead.stages() == 0
    # The router knows that its owner was seen, whatever the pipeline decides.
    for kind in (SLOW, VERIFY, REMOVE):
        dead.since += 1
        assert await dead.apply(kind) == "disagreed"
    if command != "TNEW":
        [seen] = dead.journaled("owner_seen")
        assert seen["reason"] == "restored"


async def test_a_command_of_somebody_else_restores_nothing(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone, other = await small_world.registered(), await small_world.registered()
    dead = DeadToken(small_world, phone, await small_world.queue(), tmp_path / "tables")
    await dead.age(22)
    assert await dead.apply(SLOW) == "applied"
    assert await phone.ask(ntf.TCHK(), phone.token_id, other.keys.private) == AUTH
    assert await dead.stages() == 1


async def test_an_owner_is_recorded_at_most_once_a_day(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone = await small_world.registered()
    dead = DeadToken(small_world, phone, await small_world.queue(), tmp_path / "tables")
    for days, count in ((0, 0), (2, 1), (0, 1), (2, 2)):
        if days:
            await dead.age(days)
        for _ in range(3):
            await phone.tchk()
        assert len(dead.journaled("owner_seen")) == count


async def test_a_slowed_token_gets_what_waited_once_its_owner_is_seen(
    small_world: NtfWorld, tmp_path: Path
) -> None:
    phone = await small_world.registered()
    queue = await small_world.queue()
    await phone.subscribe(queue)
    dead = DeadToken(small_world, phone, queue, tmp_path / "tables")
    await dead.age(22)
    assert await dead.apply(SLOW) == "applied"
    small_world.apns.skip(phone.device)
    await small_world.send(queue)
    assert isinstance(await small_world.apns.push(phone.device), MessagePush)
    await small_world.send(queue)
    assert await phone.is_quiet(1.0)
    assert await phone.tchk() is TokenStatus.ACTIVE
    assert isinstance(await small_world.apns.push(phone.device), MessagePush)


async def test_stages_are_undone(dead: DeadToken) -> None:
    slow = dead.action(SLOW)
    assert await dead.runner.apply([slow.action_id]) == {slow.action_id: "applied"}
    await dead.age(2)
    verify = dead.action(VERIFY)
    assert await dead.runner.apply([verify.action_id]) == {verify.action_id: "applied"}
    assert await dead.runner.undo(verify.action_id) == "undone"
    await dead.age(10)
    assert await dead.apply(REMOVE) == "disagreed"
    assert await dead.runner.undo(slow.action_id) == "undone"
    assert await dead.stages() == 0
