"""What joins a phone's machines with a real agent: the ports of `heliograph.device.ports`."""

import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.errors import AgentError, PassphraseError
from heliograph.agent.records import Message, NotificationInfo
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError, DatabaseNewer
from heliograph.device import chats
from heliograph.device.body import Hello, encode_body
from heliograph.device.chat import ChatId, ExpectedMessage, NotifiedConnection
from heliograph.device.content import Problem
from heliograph.device.entity import Got
from heliograph.device.manager import Loaded
from heliograph.device.ports import CoreUnavailable, Seal
from heliograph.device.states import AppState, CoreState, NotificationsMode, PreviewMode
from heliograph.device.store import BADGE, DeviceStore
from heliograph.journal.events import NO_JOURNAL, Journal

APP_STATE = "app state"
CORE_STATE = "core state"
PREVIEW = "preview"
MODE = "mode"
CALL_LIFETIME = 60
"""Seconds in which a call may be answered."""


class AgentCore:
    """An agent that is opened and closed as the database is handed over."""

    def __init__(
        self,
        directory: Path,
        store: DeviceStore,
        *,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
    ) -> None:
        self._directory = directory
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
                self._directory,
                passphrase=self._passphrase,
                settings=self._settings,
                journal=self._journal,
            )
        except PassphraseError as exc:
            raise CoreUnavailable(Problem.WRONG_PASSPHRASE) from exc
        except (AgentError, DatabaseError, OSError) as exc:
            newer = isinstance(exc.__cause__ or exc, DatabaseNewer)
            raise CoreUnavailable(Problem.NEWER_VERSION if newer else Problem.DAMAGED) from exc
        await seal_texts(self._store, self._agent)

    async def close(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.close()

    # For the extension.

    async def look(self, nonce: bytes, box: bytes) -> Sequence[NotifiedConnection]:
        infos = await self.agent.get_notification_connections(nonce, box)
        seal = self.agent.store.vault

        def read(tx: Transaction) -> list[NotifiedConnection]:
            found = (_notified(tx, seal, info) for info in infos)
            return [item for item in found if item is not None]

        return await self._store.read(read)

    async def fetch(self, conn_id: str, expected: ExpectedMessage) -> Got | None:
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

    async def messages(self) -> AsyncIterator[Got]:
        agent = self.agent
        await agent.subscribe()
        async for message in agent.messages():
            got = await self._handle(message)
            yield got
            await set_shown(self._store, message.conn_id, message.broker_ts)

    async def accept_contact(self, chat_id: str) -> None:
        row = await self._store.write(lambda tx: chats.accept_request(tx, chat_id))
        if row is not None:
            await self.agent.send(row.conn_id, encode_body(Hello(await self._name(), answer=True)))

    async def _name(self) -> str:
        return (await self._store.read(chats.users))[0].name

    async def _handle(self, message: Message) -> Got:
        """Stored, answered, acknowledged: in this order, so that none is lost with the process."""
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


def _stored(tx: Transaction, seal: Seal, conn_id: str, expected: ExpectedMessage) -> Got | None:
    if not chats.is_stored(tx, conn_id, expected.msg_id):
        return None
    event = chats.unshown(tx, seal, conn_id, expected.msg_id)
    return Got(expected.msg_id, expected.timestamp, event)


async def seal_texts(store: DeviceStore, agent: Agent) -> None:
    """Texts that were stored before they were sealed, with the key of the agent's store."""
    seal = agent.store.vault
    if await store.read(chats.has_unsealed):
        await store.write(lambda tx: chats.seal_texts(tx, seal))


async def set_shown(store: DeviceStore, conn_id: str, up_to: int) -> None:
    await store.write(lambda tx: chats.set_shown(tx, conn_id, up_to))


class SharedSettings:
    """Settings that app and extension see, in the phone's store.

    A process that was killed cannot say so: its state counts only while it lives.
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

    async def badge(self) -> int:
        return int(await self._store.get(BADGE) or 0)

    async def change_badge(self, by: int) -> int:
        return await self._store.change_badge(by) if by else await self.badge()

    async def count_unread(self) -> int:
        return await self._store.write(chats.count_unread)

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
