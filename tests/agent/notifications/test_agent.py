"""Notifications through the agent that applications use."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.agent.agent import Agent
from heliograph.agent.events import TokenChanged
from heliograph.agent.notifications.records import SubAction
from heliograph.wire.ntf.push import MessagePush, VerificationPush
from heliograph.wire.ntf.tokens import NotificationsMode, TokenStatus
from tests.agent.fast import settings
from tests.agent.notifications.settings import SETTINGS
from tests.agent.notifications.support import TIMEOUT, AgentWorld, agent_world
from tests.ntf.support import a_device
from tests.waiting import eventually

INSTANT = NotificationsMode.INSTANT


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AgentWorld]:
    async with agent_world(tmp_path) as running:
        yield running


async def until_checking(agent: Agent, *conn_ids: str) -> None:
    async def is_so() -> bool:
        subs = await agent.notifications.subscriptions()
        return {sub.conn_id for sub in subs if sub.action is SubAction.NTF_CHECK} == {*conn_ids}

    await eventually(is_so, TIMEOUT)


async def test_an_agent_is_notified(world: AgentWorld) -> None:
    router, events, device = await world.smp(), list[Any](), a_device()
    fast = settings(ntf=SETTINGS)
    async with (
        Agent.open(world.directory / "alice", settings=fast, on_event=events.append) as alice,
        Agent.open(world.directory / "bob", settings=fast) as bob,
    ):
        at_alice, invitation = await alice.create_connection(router.address)
        at_bob = await bob.join_connection(invitation)
        await alice.register_token(device, INSTANT, world.ntf.address)
        push = await world.ntf.apns.push(device)
        assert isinstance(push, VerificationPush)
        assert await alice.verify_token(push.nonce, push.box) is TokenStatus.ACTIVE
        await until_checking(alice, at_alice)
        tokens = [event.token for event in events if isinstance(event, TokenChanged)]
        assert [token and token.status for token in tokens] == [
            TokenStatus.NEW,
            TokenStatus.REGISTERED,
            TokenStatus.CONFIRMED,
            TokenStatus.ACTIVE,
        ]

        await bob.send(at_bob, b"hello")
        push = await world.ntf.apns.push(device)
        assert isinstance(push, MessagePush)
        [info] = await alice.get_notification_connections(push.nonce, push.box)
        assert info.conn_id == at_alice

        await alice.enable_notifications(at_alice, False)
        await until_checking(alice)
        await alice.enable_notifications(at_alice, True)
        await until_checking(alice, at_alice)
        await world.move(router)
        await alice.move_router(router.address)
        await until_checking(alice, at_alice)
        await alice.delete_connection(at_alice)
        await until_checking(alice)
        await alice.delete_token()
        assert await alice.token_info() is None
        assert TokenChanged(None) in events
