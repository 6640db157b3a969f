"""A simulated phone: a real agent, the device's machines, and pushes from a provider.

    phone = await Phone.create(directory, "Alice", [smp_address], ntf_address)
    async with phone.app() as app:
        await app.register(source, NotificationsMode.INSTANT)
    async for notification in phone.watch(source): ...

Its directory is its memory: settings and chats in `device.db`, the agent's store in `agent.db`.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heliograph.agent import ntf_records
from heliograph.agent.agent import Agent, AgentSettings
from heliograph.agent.errors import BadNotification, Prohibited
from heliograph.agent.invitation import Invitation
from heliograph.db.dialects import Transaction
from heliograph.device import chats
from heliograph.device.app_service import AppService
from heliograph.device.body import Body, Hello, encode_body
from heliograph.device.chat import Contact, User
from heliograph.device.chats import ContactRow, Stage
from heliograph.device.content import Category, Content
from heliograph.device.extension_service import ExtensionService
from heliograph.device.manager import Presentation
from heliograph.device.states import AppState, CoreState, NotificationsMode, PreviewMode
from heliograph.device.store import FILE, DeviceStore
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.sim.phone_core import AgentCore, SharedSettings
from heliograph.sim.phone_push import Delivered, PushSource
from heliograph.wire.push import CheckMessagesPush, MessagePush, VerificationPush
from heliograph.wire.tokens import DeviceToken, TokenStatus

logger = logging.getLogger(__name__)

PATIENCE = 30.0
POLL = 0.05
RETRY, LAST_RETRY = 0.5, 30.0
TOKEN_SIZE = 32
SMP, NTF, TOKEN, SOURCE = "smp", "ntf", "token", "source"


class PhoneError(Exception):
    """Something that a phone was asked to do, and cannot; it says what to do instead."""


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
        _make(directory)
        store = await DeviceStore.open(directory)
        phone = cls(directory, store, passphrase, settings, journal)
        await store.write(lambda tx: chats.add_user(tx, name))
        await store.set(SMP, "\n".join(smp))
        await store.set(NTF, ntf)
        await store.set(TOKEN, secrets.token_hex(TOKEN_SIZE))
        async with phone.app():
            return phone

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
    async def app(self) -> "AsyncIterator[AppSession]":
        """What a user does in the app. The extension may have the store open at the same time."""
        agent = await Agent.open(
            self.directory,
            passphrase=self._passphrase,
            settings=self._settings,
            journal=self.journal,
        )
        try:
            yield AppSession(self, agent)
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

    def foreground(self, screen: "Screen", state: AppState = AppState.SUSPENDED) -> AppService:
        """A process of the app."""
        return AppService(self.core(workers=True), self.shared, screen, state=state)

    async def status(self) -> PhoneStatus:
        async with self.app() as app:
            info = await app.agent.token_info()
            subscriptions = await app.agent.notifications.subscriptions()

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
        )


class AppSession:
    """The app, opened by its user for a while."""

    def __init__(self, phone: Phone, agent: Agent) -> None:
        self.phone = phone
        self.agent = agent

    # The token.

    async def register(self, device: DeviceToken, mode: NotificationsMode) -> TokenStatus:
        ntf = await self.phone.store.get(NTF) or ""
        await self.phone.shared.set_mode(mode)
        return await self.agent.register_token(device, _mode(mode), ntf)

    async def register_and_verify(
        self, source: PushSource, mode: NotificationsMode, patience: float = PATIENCE
    ) -> TokenStatus:
        """Until the token is active: the code comes by a push."""
        status = await self.register(source.device, mode)
        if status is not TokenStatus.ACTIVE:
            status = await self.verify_from(source, patience)
        return status

    async def verify_from(self, source: PushSource, patience: float = PATIENCE) -> TokenStatus:
        async with asyncio.timeout(patience):
            async for delivered in source.pushes():
                if isinstance(delivered.push, VerificationPush):
                    status = await self.verify(delivered.push)
                    if status is not None:
                        return status
        raise PhoneError("the provider has no more pushes")

    async def verify(self, push: VerificationPush) -> TokenStatus | None:
        """None if the code was for another registration."""
        try:
            return await self.agent.verify_token(push.nonce, push.box)
        except (BadNotification, Prohibited):
            return None

    async def set_mode(self, mode: NotificationsMode) -> TokenStatus | None:
        status = await self.agent.set_mode(_mode(mode))
        await self.phone.shared.set_mode(mode)
        return status

    # Contacts.

    async def invite(
        self, name: str | None = None, *, ask: bool = False, smp: str | None = None
    ) -> str:
        """A link for one contact; with `ask`, whoever joins must be accepted."""
        address = smp or (await self._routers())[0]
        conn_id, invitation = await self.agent.create_connection(address)
        stage = Stage.ASKING if ask else Stage.INVITED
        await self._add_contact(conn_id, name, stage)
        await self.until_subscribed(conn_id)
        return str(invitation)

    async def accept(
        self, link: str, name: str | None = None, *, smp: str | None = None
    ) -> Contact:
        """Join a link, and say who we are."""
        address = smp or (await self._routers())[0]
        conn_id = await self.agent.join_connection(Invitation.parse(link), address)
        contact = await self._add_contact(conn_id, name, Stage.JOINED)
        own = (await self.phone.store.read(chats.users))[0].name
        await self.agent.send(conn_id, encode_body(Hello(own)))
        await self.until_subscribed(conn_id)
        await self.until_sent(conn_id)
        return contact

    async def send(self, contact: str, body: Body, *, notification: bool = True) -> bool:
        """Whether a router took it; if not, it leaves as soon as it can."""
        row = await self.find(contact)
        await self.agent.send(row.conn_id, encode_body(body), notification=notification)
        return await self.until_sent(row.conn_id)

    async def find(self, name: str) -> ContactRow:
        rows = await self.phone.store.read(chats.contacts)
        found = [row for row in rows if row.contact.name == name]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(row.contact.name for row in rows)) or "none"
        if not found:
            raise PhoneError(f"there is no contact {name!r}; there are: {known}")
        raise PhoneError(f"{len(found)} contacts are called {name!r}: rename one")

    async def until_subscribed(self, conn_id: str, patience: float = PATIENCE) -> bool:
        """Until the notification router was told of a connection, if it is to be."""
        info = await self.agent.token_info()
        if info is None or info.status is not TokenStatus.ACTIVE:
            return False
        if info.mode is not ntf_records.NotificationsMode.INSTANT:
            return False

        await self.agent.notifications.settled()

        async def is_so() -> bool:
            found = await self.agent.notifications.subscriptions()
            created = ntf_records.Stage.CREATED
            return any(item.conn_id == conn_id and item.stage is created for item in found)

        return await _until(is_so, patience)

    async def until_sent(self, conn_id: str, patience: float = 10.0) -> bool:
        """Until routers have all that we sent; at once if nobody has joined yet."""

        async def is_so() -> bool:
            info = await self.agent.connection(conn_id)
            return info.to_send == 0 or (not info.is_ready and await self._invited(conn_id))

        await _until(is_so, patience)
        return (await self.agent.connection(conn_id)).to_send == 0

    async def _invited(self, conn_id: str) -> bool:
        row = await self.phone.store.read(lambda tx: chats.find_contact(tx, conn_id))
        return row is not None and row.stage in (Stage.INVITED, Stage.ASKING)

    async def _routers(self) -> list[str]:
        return (await self.phone.store.get(SMP) or "").split("\n")

    async def _add_contact(self, conn_id: str, name: str | None, stage: Stage) -> Contact:
        def add(tx: Transaction) -> Contact:
            user = chats.users(tx)[0]
            return chats.add_contact(tx, user.user_id, conn_id, name, stage)

        return await self.phone.store.write(add)


class Screen:
    """The platform of a simulated phone: what would be on its screen goes to a function."""

    def __init__(self, show: Callable[[Content], None] | None = None) -> None:
        self.shown: list[Content] = []
        self.badge = 0
        self.due_at: float | None = None
        self.completed: list[bool] = []
        self.tasks: set[int] = set()
        self._show = show
        self._numbers = 0

    def show(self, content: Content, how: Presentation) -> None:
        self.shown.append(content)
        if self._show is not None:
            self._show(content)

    def set_badge(self, count: int) -> None:
        self.badge = count

    def submit(self, earliest: float) -> None:
        self.due_at = earliest

    def cancel(self) -> None:
        self.due_at = None

    def complete(self, success: bool) -> None:
        self.completed.append(success)

    def begin_task(self) -> int:
        self._numbers += 1
        self.tasks.add(self._numbers)
        return self._numbers

    def end_task(self, task: int) -> None:
        self.tasks.discard(task)


class Watch:
    """A phone in somebody's pocket: pushes arrive, and what they say is shown.

    Message pushes go to the extension, as many at once as arrive; silent ones to the app. A push
    counts as seen once it is shown, so that nothing is missed if the process is killed.
    """

    def __init__(self, phone: Phone, screen: Screen, app: AppService) -> None:
        self._phone = phone
        self._screen = screen
        self._app = app
        self._extension = phone.extension()
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, source: PushSource) -> None:
        """Until it is cancelled."""
        try:
            self._spawn(self._refresh_when_due())
            async for delivered in source.pushes():
                is_new = delivered.digest not in self._under_way
                if is_new and not await self._phone.store.has_seen_push(delivered.digest):
                    self._under_way.add(delivered.digest)
                    self._spawn(self._handle(delivered))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._extension.close()

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, delivered: Delivered) -> None:
        """Until it is done: a router that is down comes back."""
        delay = RETRY
        while True:
            try:
                await self._process(delivered)
            except Exception as exc:
                logger.warning("a push could not be handled yet: %s", type(exc).__name__)
            else:
                self._under_way.discard(delivered.digest)
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, LAST_RETRY)

    async def _process(self, delivered: Delivered) -> None:
        match delivered.push:
            case MessagePush() as push:
                content = await self._extension.receive(push)
                badge = content.badge
                if badge is not None:
                    self._screen.set_badge(badge)
                running = (await self._phone.shared.app_state()).is_running
                if content.is_shown and not (
                    running and content.category is Category.CHECK_MESSAGE
                ):
                    self._screen.show(content, Presentation.BANNER)
            case VerificationPush() as verification:
                async with self._phone.app() as app:
                    await app.verify(verification)
            case CheckMessagesPush():
                await self._app.wake()
        await self._phone.store.see_push(delivered.digest, int(time.time()))

    async def _refresh_when_due(self) -> None:
        """What the platform's scheduler does."""
        while True:
            due_at = self._screen.due_at
            if due_at is not None and time.monotonic() >= due_at:
                self._screen.due_at = None
                await self._app.wake()
            await asyncio.sleep(1.0)


def _make(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _mode(mode: NotificationsMode) -> ntf_records.NotificationsMode:
    return ntf_records.NotificationsMode(mode.value)


async def _until(condition: Callable[[], Awaitable[bool]], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not await condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL)
    return True
