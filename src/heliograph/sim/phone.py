"""A simulated phone: a real agent, the device's machines, and pushes from a provider.

    phone = await Phone.create(directory, "Alice", [smp_address], ntf_address)
    async with phone.app() as app:
        await app.register_and_verify(source, NotificationsMode.INSTANT)
    content = await phone.extension().receive(push)

Its directory is its memory: settings and chats in `device.db`, the agent's store in `agent.db`.
"""

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heliograph.agent import ntf_records, pending
from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.store import FILE as AGENT_FILE
from heliograph.agent.store import Store
from heliograph.db.dialects import Transaction
from heliograph.device import chats
from heliograph.device.app_service import AppService
from heliograph.device.body import Hello, encode_body
from heliograph.device.chat import User
from heliograph.device.chats import ContactRow
from heliograph.device.extension_service import ExtensionService
from heliograph.device.ports import Platform
from heliograph.device.states import AppState, CoreState, NotificationsMode, PreviewMode
from heliograph.device.store import FILE, DeviceStore
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.sim.phone_app import NTF, SMP, AppSession, PhoneError, SendRefused
from heliograph.sim.phone_core import AgentCore, SharedSettings, seal_texts
from heliograph.wire.tokens import DeviceToken, TokenStatus

__all__ = ["SOURCE", "AppSession", "Phone", "PhoneError", "PhoneStatus", "SendRefused"]

TOKEN_SIZE = 32
TOKEN, SOURCE = "token", "source"


@dataclass(frozen=True, slots=True)
class PhoneStatus:
    name: str
    token: TokenStatus | None
    mode: NotificationsMode
    preview: PreviewMode
    app: AppState
    core: CoreState
    badge: int
    users: Sequence[User]
    contacts: Sequence[ContactRow]
    subscribed: int
    """Connections whose messages cause pushes."""
    smp: Sequence[str]
    ntf: str
    device: DeviceToken | None = field(default=None, repr=False)
    token_id: bytes | None = field(default=None, repr=False)
    """What the notification router calls the token."""
    refused: frozenset[str] = frozenset()
    """Connections whose router lets us send no more."""


class Phone:
    """Make one by `create`, or `open` one that was made before."""

    def __init__(
        self,
        directory: Path,
        store: DeviceStore,
        passphrase: str | None,
        settings: AgentSettings | None,
        journal: Journal,
    ) -> None:
        self.directory = directory
        self.store = store
        self.shared = SharedSettings(store)
        self._passphrase = passphrase
        self._settings = settings or AgentSettings()
        self.journal = journal

    @classmethod
    async def create(
        cls,
        directory: Path,
        name: str,
        smp: Sequence[str],
        ntf: str,
        *,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
    ) -> "Phone":
        if (directory / FILE).exists():
            raise PhoneError(f"{directory} has a phone already: choose another directory")
        encode_body(Hello(name))  # raises if nobody could read it
        before = _make(directory)
        try:
            await _make_agent(directory, passphrase, settings or AgentSettings())
            store = await DeviceStore.open(directory)
            try:
                await store.write(lambda tx: chats.add_user(tx, name))
                await store.set(SMP, "\n".join(smp))
                await store.set(NTF, ntf)
                await store.set(TOKEN, secrets.token_hex(TOKEN_SIZE))
            except BaseException:
                await store.close()
                raise
        except BaseException:
            _unmake(directory, before)
            raise
        return cls(directory, store, passphrase, settings, journal)

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
    ) -> "Phone":
        if not (directory / FILE).exists():
            raise PhoneError(f"{directory} has no phone: make one with `heliograph device init`")
        return cls(directory, await DeviceStore.open(directory), passphrase, settings, journal)

    async def close(self) -> None:
        await self.store.close()

    async def token(self) -> str:
        """The device token of the simulated APNs."""
        return await self.store.get(TOKEN) or ""

    async def renew_token(self) -> str:
        """As after the app was restored on another device."""
        token = secrets.token_hex(TOKEN_SIZE)
        await self.store.set(TOKEN, token)
        return token

    @contextlib.asynccontextmanager
    async def app(self) -> AsyncIterator[AppSession]:
        """What a user does in the app. The extension may have the store open at the same time."""
        agent = await Agent.open(
            self.directory,
            passphrase=self._passphrase,
            settings=self._settings,
            journal=self.journal,
        )
        try:
            await seal_texts(self.store, agent)
            yield AppSession(self.store, agent)
        finally:
            await agent.close()

    def core(self, *, workers: bool = False) -> AgentCore:
        return AgentCore(
            self.directory,
            self.store,
            passphrase=self._passphrase,
            settings=replace(self._settings, workers=workers),
            journal=self.journal,
        )

    def extension(self) -> ExtensionService:
        """A process of the extension."""
        return ExtensionService(self.core(), self.shared, journal=self.journal)

    def foreground(self, screen: Platform, state: AppState = AppState.SUSPENDED) -> AppService:
        """A process of the app."""
        return AppService(self.core(workers=True), self.shared, screen, state=state)

    async def catch_up(self) -> bool:
        """Do what was left to do, as far as routers answer; whether nothing is left."""
        settings = self._settings
        store = await Store.open(self.directory, self._passphrase, cost=settings.cost)
        try:
            if not await pending.has_work(store, settings.ntf, time.time()):
                return True
        finally:
            await store.close()
        async with self.app() as app:
            return await app.settle()

    async def status(self) -> PhoneStatus:
        async with self.app() as app:
            info = await app.agent.token_info()
            subscriptions = await app.agent.notifications.subscriptions()
            refused = await app.refused()

        def read(tx: Transaction) -> tuple[list[User], list[ContactRow]]:
            return chats.users(tx), chats.contacts(tx)

        users, contacts = await self.store.read(read)
        created = ntf_records.Stage.CREATED
        return PhoneStatus(
            users[0].name,
            None if info is None else info.status,
            await self.shared.mode(),
            await self.shared.preview(),
            await self.shared.app_state(),
            await self.shared.core_state(),
            await self.shared.badge(),
            users,
            contacts,
            sum(item.stage is created for item in subscriptions),
            (await self.store.get(SMP) or "").split("\n"),
            await self.store.get(NTF) or "",
            None if info is None else info.device,
            None if info is None else info.token_id,
            refused,
        )


def _make(directory: Path) -> frozenset[Path] | None:
    """What is in it; None if it is new."""
    before = frozenset(directory.iterdir()) if directory.is_dir() else None
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return before


async def _make_agent(directory: Path, passphrase: str | None, settings: AgentSettings) -> None:
    """Its store, with the passphrase from the start."""
    agent = await Agent.open(directory, passphrase=passphrase, settings=settings)
    await agent.close()


def _unmake(directory: Path, before: frozenset[Path] | None) -> None:
    """Half a phone would be taken for one: only what was there before is left."""
    for file in directory.iterdir():
        if file not in (before or ()) and file.name.startswith((FILE, AGENT_FILE)):
            file.unlink()
    if before is None:
        directory.rmdir()
