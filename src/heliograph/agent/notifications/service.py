"""Notifications of an agent: its token, and the subscriptions of its connections.

`start` resumes stored work, and workers run until `stop`. Without `start` the token can be used
too, and commands for connections are stored for a later `start`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable

from heliograph.agent.clients import ClientPool
from heliograph.agent.errors import BadNotification, Prohibited, RouterError
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import Clock, NotificationSettings, NtfContext
from heliograph.agent.notifications.records import (
    CommandKind,
    NtfSubscription,
    NtfToken,
    SupervisorCommand,
)
from heliograph.agent.notifications.supervisor import NtfSubSupervisor
from heliograph.agent.notifications.tokens.driver import CronUnset, TokenDriver
from heliograph.agent.notifications.tokens.machine import (
    Input,
    Register,
    SetMode,
    SubscriptionsAction,
    TokenEvent,
    VerificationCode,
)
from heliograph.agent.records import TokenInfo
from heliograph.agent.store import AgentStore
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.tasks import TaskScope
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus

logger = logging.getLogger(__name__)

TokenHandler = Callable[[TokenInfo | None], None]


class Notifications:
    """The notification service. `on_token` is called after every change of the token."""

    def __init__(
        self,
        store: AgentStore,
        clients: ClientPool,
        settings: NotificationSettings | None = None,
        *,
        clock: Clock = time.time,
        on_token: TokenHandler | None = None,
    ) -> None:
        self._context = NtfContext(store, clients, settings or NotificationSettings(), clock)
        self._supervisor = NtfSubSupervisor(self._context, self._suspect)
        self._driver = TokenDriver(
            self._context, self._act, self._supervisor.delete_tokens_at, self._changed
        )
        self._on_token = on_token
        self._token_work = asyncio.Event()
        self._doubted = False
        self._doubted_at = float("-inf")
        self._tasks = TaskScope()

    async def start(self) -> None:
        await self._supervisor.start()
        self._tasks.spawn(self._maintain_token(), name="ntf token")
        token = await self._driver.load()
        if token is None or token.mode is not NotificationsMode.INSTANT:
            await self._supervisor.delete_all()
        else:
            await self._supervisor.create_all()
        if token is not None:
            self._token_work.set()

    async def stop(self) -> None:
        """Stop the workers. Stored work resumes at the next start."""
        await self._tasks.close()
        await self._supervisor.stop()

    # The token.

    async def register_token(
        self, device: DeviceToken, mode: NotificationsMode, ntf_address: ServerAddress
    ) -> TokenStatus:
        """Perform the token's next step: register, replace, verify or check it.

        Call it whenever the app starts or gets another device token. Raises `RouterError`; a
        temporary failure is retried in the background.
        """
        if mode is NotificationsMode.OFF:
            return await self.set_mode(mode) or TokenStatus.NEW
        return _status(await self._run(Register(device, mode, ntf_address)))

    async def verify_token(self, nonce: bytes, box: bytes) -> TokenStatus:
        """Verify the token with the code of a verification push."""
        token = await self._driver.load_settled()
        if token is None or token.dh_secret is None:
            raise Prohibited("no token waits for a code: register one first")
        try:
            code = open_box_padded(token.dh_secret, nonce, box)
        except CryptoError:
            raise BadNotification(
                "the code cannot be decrypted: it is not for this registration, wait for the next"
            ) from None
        return _status(await self._run(VerificationCode(code)))

    async def check_token(self) -> TokenStatus:
        return _status(await self._run(TokenEvent.CHECK_ASKED))

    async def delete_token(self) -> None:
        """Delete the token here at once, and at the router as soon as it can be reached."""
        await self._run(TokenEvent.DELETE_ASKED)

    async def set_mode(self, mode: NotificationsMode) -> TokenStatus | None:
        """Change the mode of the device's token: `OFF` deletes it, others register it again."""
        if mode is NotificationsMode.OFF:
            await self._run(SetMode(mode))
            return None
        event: Input = SetMode(mode)
        if await self._driver.load() is None:
            vault = self._context.store.vault
            last = await self._context.store.read(lambda tx: ntf_store.load_last_device(tx, vault))
            if last is None:
                raise Prohibited("no device token is known: register one first")
            event = Register(last[0], mode, last[1])
        return _status(await self._run(event))

    async def token_info(self) -> TokenInfo | None:
        return _info(await self._driver.load())

    # Connections.

    async def create(self, conn_ids: Iterable[str]) -> None:
        """Create subscriptions, now or when a token is active; also after a queue was rotated."""
        await self._supervisor.submit(SupervisorCommand(CommandKind.CREATE, tuple(conn_ids)))

    async def delete(self, conn_ids: Iterable[str]) -> None:
        """Delete the subscriptions of connections with notifications off."""
        await self._supervisor.submit(SupervisorCommand(CommandKind.DELETE, tuple(conn_ids)))

    async def forget(self, conn_ids: Iterable[str]) -> None:
        """Delete the subscriptions of connections that are being deleted."""
        await self._supervisor.submit(SupervisorCommand(CommandKind.FORGET, tuple(conn_ids)))

    async def refresh(self) -> None:
        """Reconcile all subscriptions, for example after a router has moved."""
        await self._supervisor.create_all()

    async def commands_stored(self) -> None:
        """Wait until submitted commands are stored."""
        await self._supervisor.commands_stored()

    async def subscriptions(self) -> list[NtfSubscription]:
        """Return all subscriptions, for status displays."""
        return await self._context.store.read(ntf_store.all_subscriptions)

    async def wake_pending(self) -> None:
        """Wake the workers: another process may have stored work."""
        await self._supervisor.wake_pending()

    def network_changed(self) -> None:
        """Retry everything that is backing off, at once."""
        self._token_work.set()
        self._supervisor.retry_now()

    # Internal.

    async def _run(self, event: Input) -> NtfToken | None:
        try:
            return await self._driver.run(event)
        except CronUnset as exc:
            self._token_work.set()
            return exc.token
        except RouterError as exc:
            if exc.temporary:
                self._token_work.set()
            raise

    async def _act(self, do: SubscriptionsAction) -> None:
        match do:
            case SubscriptionsAction.CREATE:
                await self._supervisor.create_all()
                self._supervisor.wake_all()
            case SubscriptionsAction.DELETE:
                await self._supervisor.delete_all()

    def _changed(self, token: NtfToken | None) -> None:
        if self._on_token is not None:
            self._on_token(_info(token))

    def _suspect(self) -> None:
        self._doubted = True
        self._token_work.set()

    async def _maintain_token(self) -> None:
        """Perform the token's stored action, with retries, and check it periodically."""
        failures = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._context.settings.check_token_after):
                    await self._token_work.wait()
            self._token_work.clear()
            try:
                await self._resume()
                failures = 0
            except RouterError as exc:
                if not exc.temporary:
                    logger.warning("the token cannot be registered: %s", exc)
                    continue
                failures += 1
                jitter = random.random()  # noqa: S311
                delay = self._context.settings.retry.delay(failures, jitter)
                self._again_in(delay)
            except Exception:
                logger.exception("maintaining the token failed; it is retried later")
                self._again_in(self._context.settings.retry.last)

    def _again_in(self, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay, self._token_work.set)

    async def _resume(self) -> None:
        if await self._driver.load() is None:
            return
        if not self._doubted:
            await self._driver.run(TokenEvent.RESUME)
            return
        now = asyncio.get_running_loop().time()
        wait = self._doubted_at + self._context.settings.suspect_after - now
        if wait > 0:
            self._again_in(wait)
            return
        await self._driver.run(TokenEvent.RESUME, doubt=True)
        self._doubted, self._doubted_at = False, now


def _status(token: NtfToken | None) -> TokenStatus:
    return TokenStatus.NEW if token is None else token.status


def _info(token: NtfToken | None) -> TokenInfo | None:
    if token is None:
        return None
    return TokenInfo(token.device, token.status, token.mode, token.ntf_address, token.token_id)
