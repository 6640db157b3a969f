"""Implements the ports of `heliograph.device.ports` with a real agent."""

import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.errors import AgentError, PassphraseError
from heliograph.agent.records import NotificationInfo, ReceivedMessage
from heliograph.agent.routing.modes import ProxyFallback, ProxyMode, RoutingSettings
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError, DatabaseNewer
from heliograph.device.chats import store as chats, users
from heliograph.device.chats.body import CallAnswer, Greeting, encode_body
from heliograph.device.chats.content import DatabaseProblem
from heliograph.device.chats.model import (
    ChatId,
    ExpectedMessage,
    FetchedMessage,
    Loaded,
    NotifiedConnection,
    UserId,
)
from heliograph.device.chats.store import Seal
from heliograph.device.ports import CoreUnavailable
from heliograph.device.states import AppState, CoreState, PreviewMode
from heliograph.device.store import BADGE, DeviceStore
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.tokens import NotificationsMode

APP_STATE = "app state"
CORE_STATE = "core state"
PREVIEW = "preview"
MODE = "mode"
SMP = "smp"
"""The phone's messaging routers, one per line."""
PROXY_MODE, PROXY_FALLBACK = "proxy mode", "proxy fallback"
CALL_LIFETIME = 60
"""Seconds in which a call may be answered."""


class AgentCore:
    """An agent that is opened and closed as the database is handed over."""

    def __init__(
        self,
        place: Path | str,
        store: DeviceStore,
        *,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
    ) -> None:
        self._place = place
        self._store = store
        self._passphrase = passphrase
        self._settings = settings or AgentSettings()
        self._journal = journal
        self._agent: Agent | None = None

    @property
    def agent(self) -> Agent:
        if self._agent is None:
            raise RuntimeError("the core is not open")
        return self._agent

    async def open(self) -> None:
        if self._agent is not None:
            return
        try:
            self._agent = await Agent.open(
                self._place,
                passphrase=self._passphrase,
                settings=await routed(self._store, self._settings),
                journal=self._journal,
            )
        except PassphraseError as exc:
            raise CoreUnavailable(DatabaseProblem.WRONG_PASSPHRASE) from exc
        except (AgentError, DatabaseError, OSError) as exc:
            newer = isinstance(exc.__cause__ or exc, DatabaseNewer)
            raise CoreUnavailable(
                DatabaseProblem.NEWER_VERSION if newer else DatabaseProblem.DAMAGED
            ) from exc

    async def close(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.close()

    # For the extension.

    async def read_push(self, nonce: bytes, box: bytes) -> Sequence[NotifiedConnection]:
        infos = await self.agent.get_notification_connections(nonce, box)
        seal = self.agent.store.vault

        def read(tx: Transaction) -> list[NotifiedConnection]:
            found = (_notified(tx, seal, info) for info in infos)
            return [item for item in found if item is not None]

        return await self._store.read(read)

    async def fetch(self, conn_id: str, expected: ExpectedMessage) -> FetchedMessage | None:
        seal = self.agent.store.vault
        stored = await self._store.read(lambda tx: _stored(tx, seal, conn_id, expected))
        if stored is not None:
            return stored
        message = await self.agent.get_message(conn_id)
        return None if message is None else await self._handle(message)

    # For the app.

    async def loaded(self) -> Loaded:
        since = int(time.time()) - CALL_LIFETIME
        return await self._store.read(lambda tx: chats.waiting(tx, since))

    async def messages(self) -> AsyncIterator[FetchedMessage]:
        agent = self.agent
        await agent.subscribe()
        async for message in agent.messages():
            got = await self._handle(message)
            yield got
            await set_shown(self._store, message.conn_id, message.broker_ts)

    async def accept_contact(self, chat_id: str) -> None:
        """Greet the requester as the profile that the request was made to."""
        row = await self._store.write(lambda tx: chats.accept_request(tx, chat_id))
        if row is not None:
            user_id = row.user_id
            user = await self._store.read(lambda tx: users.get_user(tx, user_id))
            greeting = Greeting(user.name, answer=True)
            await self.agent.send(row.conn_id, encode_body(greeting))

    async def answer_call(self, chat_id: ChatId, accept: bool) -> None:
        since = int(time.time()) - CALL_LIFETIME
        row = await self._store.write(lambda tx: chats.answer_call(tx, chat_id, since))
        if row is not None:
            await self.agent.send(row.conn_id, encode_body(CallAnswer(accept)))

    async def _handle(self, message: ReceivedMessage) -> FetchedMessage:
        """Store, answer and acknowledge a message, in this order, so that a kill loses none."""
        seal = self.agent.store.vault
        processed = await self._store.write(
            lambda tx: chats.process(
                tx, seal, message.conn_id, message.broker_id, message.broker_ts, message.body
            )
        )
        for reply in processed.replies:
            await self.agent.send(message.conn_id, encode_body(reply))
        await self.agent.ack(message.conn_id, message.message_id)
        return processed.got


def _notified(tx: Transaction, seal: Seal, info: NotificationInfo) -> NotifiedConnection | None:
    known = chats.entity_of(tx, info.conn_id)
    if known is None:
        return None
    user, entity = known
    if info.msg_id is None or info.msg_ts is None:
        return NotifiedConnection(info.conn_id, user, entity, None, info.nonce)
    expected = ExpectedMessage(info.msg_id, info.msg_ts)
    stored = _stored(tx, seal, info.conn_id, expected)
    is_old = stored is not None and stored.event is None
    return NotifiedConnection(info.conn_id, user, entity, expected, info.nonce, is_old)


def _stored(
    tx: Transaction, seal: Seal, conn_id: str, expected: ExpectedMessage
) -> FetchedMessage | None:
    if not chats.is_stored(tx, conn_id, expected.msg_id):
        return None
    event = chats.unshown(tx, seal, conn_id, expected.msg_id)
    return FetchedMessage(expected.msg_id, expected.timestamp, event)


async def set_shown(store: DeviceStore, conn_id: str, up_to: int) -> None:
    await store.write(lambda tx: chats.set_shown(tx, conn_id, up_to))


async def routed(store: DeviceStore, settings: AgentSettings) -> AgentSettings:
    """Return settings with the phone's own routers and its choice of private routing.

    The defaults are those of the iOS and terminal apps: a proxy for routers that are not the
    phone's own, and no direct connection in its place unless our address is hidden.
    """
    servers = tuple(map(decode_address, filter(None, (await store.get(SMP) or "").split("\n"))))
    mode = ProxyMode(await store.get(PROXY_MODE) or ProxyMode.UNKNOWN.value)
    fallback = await store.get(PROXY_FALLBACK) or ProxyFallback.ALLOW_PROTECTED.value
    return replace(settings, proxy=RoutingSettings(mode, ProxyFallback(fallback), servers))


class SharedSettings:
    """Settings that app and extension share, in the phone's store.

    A killed process cannot update its state, so a state counts only while its process lives.
    """

    def __init__(self, store: DeviceStore) -> None:
        self._store = store

    async def app_state(self) -> AppState:
        value, alive = await self._state(APP_STATE)
        state = AppState(value) if value else AppState.SUSPENDED
        return state if alive or state is AppState.STOPPED else AppState.SUSPENDED

    async def set_app_state(self, state: AppState) -> None:
        await self._store.set(APP_STATE, f"{state.value}/{os.getpid()}")

    async def core_state(self) -> CoreState:
        value, alive = await self._state(CORE_STATE)
        return CoreState(value) if value and alive else CoreState.CREATED

    async def set_core_state(self, state: CoreState) -> None:
        await self._store.set(CORE_STATE, f"{state.value}/{os.getpid()}")

    async def preview(self) -> PreviewMode:
        return PreviewMode(await self._store.get(PREVIEW) or PreviewMode.MESSAGE.value)

    async def set_preview(self, mode: PreviewMode) -> None:
        await self._store.set(PREVIEW, mode.value)

    async def mode(self) -> NotificationsMode:
        return NotificationsMode(await self._store.get(MODE) or NotificationsMode.OFF.value)

    async def set_mode(self, mode: NotificationsMode) -> None:
        await self._store.set(MODE, mode.value)

    async def active_user(self) -> UserId | None:
        user = await self._store.read(users.active_user)
        return None if user is None else user.user_id

    async def set_active_user(self, user: UserId) -> None:
        await self._store.write(lambda tx: users.set_active_user(tx, user))

    async def badge(self) -> int:
        return int(await self._store.get(BADGE) or 0)

    async def change_badge(self, by: int) -> int:
        return await self._store.change_badge(by) if by else await self.badge()

    async def count_unread(self) -> int:
        return await self._store.write(users.count_unread)

    async def read_chat(self, chat_id: ChatId) -> int:
        return await self._store.write(lambda tx: chats.read_chat(tx, chat_id))

    async def set_shown(self, conn_id: str, up_to: int) -> None:
        await set_shown(self._store, conn_id, up_to)

    async def _state(self, name: str) -> tuple[str, bool]:
        value, _, pid = (await self._store.get(name) or "").partition("/")
        return value, bool(pid) and _lives(int(pid))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
