"""A phone: a real agent, the device's machines, and pushes from a provider.

    async with Phone.create(directory, "Alice", [smp_address], [ntf_address]) as phone:
        async with phone.app() as app:
            await app.register_and_verify(source, NotificationsMode.INSTANT)
        content = await phone.extension().receive(push)

Its directory is its memory: settings and chats in `device.db`, the agent's store in `agent.db`, or
at a PostgreSQL server.
"""

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heliograph.agent import pending
from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.notifications import records as ntf_records
from heliograph.agent.store import FILE as AGENT_FILE, AgentStore
from heliograph.device.app.service import AppService
from heliograph.device.chats import store as chats, users
from heliograph.device.chats.body import Greeting, encode_body
from heliograph.device.chats.model import User
from heliograph.device.chats.store import ContactRow
from heliograph.device.extension.service import ExtensionService
from heliograph.device.ports import Platform
from heliograph.device.states import AppState, CoreState, PreviewMode
from heliograph.device.store import FILE, DeviceStore
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.opening import Closing, opening
from heliograph.phone.app import NTF, AppSession
from heliograph.phone.core import SMP, AgentCore, SharedSettings, routed
from heliograph.phone.errors import PhoneError, SendRefused
from heliograph.phone.profiles import Profiles
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus

__all__ = ["SOURCE", "AppSession", "Phone", "PhoneError", "PhoneStatus", "SendRefused"]

TOKEN_SIZE = 32
TOKEN, SOURCE = "token", "source"
STORE = "store"
"""The URL of the agent's store, if it is not in the phone's directory."""


@dataclass(frozen=True, slots=True)
class PhoneStatus:
    """`users` are the profiles that are not hidden; `name` and `contacts` those of one."""

    name: str | None
    token: TokenStatus | None
    mode: NotificationsMode
    preview: PreviewMode
    app: AppState
    core: CoreState
    badge: int
    users: Sequence[User]
    contacts: Sequence[ContactRow]
    subscribed: int
    """Number of connections that are subscribed for pushes."""
    smp: Sequence[str]
    ntf: Sequence[str]
    device: DeviceToken | None = field(default=None, repr=False)
    token_id: bytes | None = field(default=None, repr=False)
    """The token's ID at the notification router."""
    refused: frozenset[str] = frozenset()
    """Connections whose router no longer accepts our messages."""
    registered_at: str | None = None
    """The address of the notification router that has the token."""


class Phone(Closing):
    """A phone. Use `create`, or `open` for an existing one."""

    def __init__(
        self,
        directory: Path,
        store: DeviceStore,
        place: Path | str,
        passphrase: str | None,
        settings: AgentSettings | None,
        journal: Journal,
    ) -> None:
        self.directory = directory
        self.store = store
        self.place = place
        """Where the agent's store is: the directory, or a URL."""
        self.shared = SharedSettings(store)
        self._passphrase = passphrase
        self._settings = settings or AgentSettings()
        self.journal = journal

    @classmethod
    @opening
    async def create(
        cls,
        directory: Path,
        name: str,
        smp: Sequence[str],
        ntf: Sequence[str],
        *,
        url: str | None = None,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
    ) -> "Phone":
        """Create a phone; with `url`, its agent's store is at a PostgreSQL server."""
        if (directory / FILE).exists():
            raise PhoneError(f"{directory} has a phone already: choose another directory")
        encode_body(Greeting(name))  # raises BodyError for a name that contacts could not decode
        before = _create_directory(directory)
        place, cost = url or directory, (settings or AgentSettings()).cost
        try:
            store = await DeviceStore.open(directory)
            try:
                await store.write(lambda tx: users.add_user(tx, name))
                await store.set(SMP, "\n".join(smp))
                await store.set(NTF, "\n".join(ntf))
                await store.set(TOKEN, secrets.token_hex(TOKEN_SIZE))
                if url is not None:
                    await store.set(STORE, url)
                # With the passphrase from the start. Nothing may fail after it.
                agent = await AgentStore.open(
                    place, passphrase, cost=cost, must_be_new=url is not None
                )
                await agent.close()
            except BaseException:
                await store.close()
                raise
        except BaseException:
            _remove_incomplete(directory, before)
            raise
        return cls(directory, store, place, passphrase, settings, journal)

    @classmethod
    @opening
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
        store = await DeviceStore.open(directory)
        place = await store.get(STORE) or directory
        return cls(directory, store, place, passphrase, settings, journal)

    async def close(self) -> None:
        await self.store.close()

    async def token(self) -> str:
        """Return the device token of the simulated APNs."""
        return await self.store.get(TOKEN) or ""

    async def renew_token(self) -> str:
        """Replace the device token, as after a restore on another device."""
        token = secrets.token_hex(TOKEN_SIZE)
        await self.store.set(TOKEN, token)
        return token

    @property
    def profiles(self) -> Profiles:
        return Profiles(self.store, self._settings.cost)

    @contextlib.asynccontextmanager
    async def app(
        self, user: str | None = None, password: str | None = None
    ) -> AsyncIterator[AppSession]:
        """Open the app as a profile: the active one unless `user` names another.

        The extension may have the store open at the same time.
        """
        profile = await self.profiles.active()
        if user is not None:
            profile = await self.profiles.find(user, password)
        async with Agent.open(
            self.place,
            passphrase=self._passphrase,
            settings=await routed(self.store, self._settings),
            journal=self.journal,
        ) as agent:
            yield AppSession(self.store, agent, profile)

    def core(self, *, workers: bool = False) -> AgentCore:
        return AgentCore(
            self.place,
            self.store,
            passphrase=self._passphrase,
            settings=replace(self._settings, workers=workers),
            journal=self.journal,
        )

    def extension(self) -> ExtensionService:
        """Create an extension process."""
        return ExtensionService(self.core(), self.shared, journal=self.journal)

    def foreground(self, screen: Platform, state: AppState = AppState.SUSPENDED) -> AppService:
        """Create an app process."""
        return AppService(self.core(workers=True), self.shared, screen, state=state)

    async def register(self, device: DeviceToken) -> None:
        """Register the device token again, as an app does at each launch.

        Raises `RouterError`; what failed temporarily is retried by `catch_up`.
        """
        mode = await self.shared.mode()
        if mode is NotificationsMode.OFF or await self.shared.app_state() is AppState.STOPPED:
            return
        async with self.app() as app:
            await app.register(device, mode)
            await app.wait_idle()

    async def catch_up(self) -> bool:
        """Perform pending work as far as routers answer, and return whether none is left."""
        settings = self._settings
        async with AgentStore.open(self.place, self._passphrase, cost=settings.cost) as store:
            if not await pending.has_work(store, settings.ntf, time.time()):
                return True
        async with self.app() as app:
            return await app.wait_idle()

    async def status(self, user: str | None = None, password: str | None = None) -> PhoneStatus:
        """Return the state of the phone, with the contacts of one profile."""
        async with self.app(user, password) as app:
            profile = app.profile
            info = await app.agent.token_info()
            subscriptions = await app.agent.notifications.subscriptions()
            refused = await app.refused()

        contacts: list[ContactRow] = []
        if profile is not None:
            user_id = profile.user_id
            contacts = await self.store.read(lambda tx: chats.contacts(tx, user_id))
        created = ntf_records.SubscriptionStage.CREATED
        return PhoneStatus(
            None if profile is None else profile.name,
            None if info is None else info.status,
            await self.shared.mode(),
            await self.shared.preview(),
            await self.shared.app_state(),
            await self.shared.core_state(),
            await self.shared.badge(),
            await self.profiles.list(),
            contacts,
            sum(item.stage is created for item in subscriptions),
            (await self.store.get(SMP) or "").split("\n"),
            (await self.store.get(NTF) or "").split("\n"),
            None if info is None else info.device,
            None if info is None else info.token_id,
            refused,
            None if info is None else str(info.ntf_address),
        )


def _create_directory(directory: Path) -> frozenset[Path] | None:
    """Create the directory, and return its previous contents; None if it is new."""
    before = frozenset(directory.iterdir()) if directory.is_dir() else None
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return before


def _remove_incomplete(directory: Path, before: frozenset[Path] | None) -> None:
    """Remove what a failed `create` wrote, so that no incomplete phone is left."""
    for file in directory.iterdir():
        if file not in (before or ()) and file.name.startswith((FILE, AGENT_FILE)):
            file.unlink()
    if before is None:
        directory.rmdir()
