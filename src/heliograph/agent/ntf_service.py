"""Notifications of an agent: its token, and the subscriptions of its connections.

`start` goes on with whatever is stored, and workers go on until `stop`. Without `start` the token
can be used too, and what is asked for connections is stored for a later `start`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable

from heliograph.agent import ntf_store
from heliograph.agent.clients import Clients
from heliograph.agent.errors import BadNotification, Prohibited, RouterError
from heliograph.agent.ntf_context import Clock, NtfContext, NtfSettings
from heliograph.agent.ntf_records import (
    Command,
    CommandKind,
    NotificationsMode,
    NtfSubscription,
    NtfToken,
    TokenInfo,
)
from heliograph.agent.store import Store
from heliograph.agent.supervisor import NtfSubSupervisor
from heliograph.agent.token_driver import CronUnset, TokenDriver
from heliograph.agent.token_machine import Ask, Code, Do, Input, SetMode, Simple
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.tokens import DeviceToken, TokenStatus

logger = logging.getLogger(__name__)

TokenHandler = Callable[[TokenInfo | None], None]


class Notifications:
    """`on_token` hears of every change of the token, whoever made it."""

    def __init__(
        self,
        store: Store,
        clients: Clients,
        settings: NtfSettings | None = None,
        *,
        clock: Clock = time.time,
        on_token: TokenHandler | None = None,
    ) -> None:
        self._context = NtfContext(store, clients, settings or NtfSettings(), clock)
        self._supervisor = NtfSubSupervisor(self._context, self._suspect)
        self._driver = TokenDriver(
            self._context, self._act, self._supervisor.delete_tokens_at, self._changed
        )
        self._on_token = on_token
        self._tending = asyncio.Event()
        self._doubted = False
        self._doubted_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._supervisor.start()
        self._task = asyncio.create_task(self._tend(), name="ntf token")
        token = await self._driver.load()
        if token is None or token.mode is not NotificationsMode.INSTANT:
            await self._supervisor.delete_all()
        else:
            await self._supervisor.create_all()
        if token is not None:
            self._tending.set()

    async def stop(self) -> None:
        """What is under way is left as it is stored."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._supervisor.stop()

    # The token.

    async def register_token(
        self, device: DeviceToken, mode: NotificationsMode, ntf_address: ServerAddress
    ) -> TokenStatus:
        """Register, register again, replace, verify or check it: whatever is to be done next.

        To be called whenever the app starts or is told another device token. Raises `RouterError`;
        if that is temporary it is tried again without being asked.
        """
        if mode is NotificationsMode.OFF:
            return await self.set_mode(mode) or TokenStatus.NEW
        return _status(await self._run(Ask(device, mode, ntf_address)))

    async def verify_token(self, nonce: bytes, box: bytes) -> TokenStatus:
        """With what a verification push carried."""
        token = await self._driver.load_settled()
        if token is None or token.dh_secret is None:
            raise Prohibited("no token waits for a code: register one first")
        try:
            code = open_box_padded(token.dh_secret, nonce, box)
        except CryptoError:
            raise BadNotification(
                "the code cannot be opened: it is not for this registration, wait for the next"
            ) from None
        return _status(await self._run(Code(code)))

    async def check_token(self) -> TokenStatus:
        return _status(await self._run(Simple.CHECK_ASKED))

    async def delete_token(self) -> None:
        """At once here, and at the router as soon as it can be reached."""
        await self._run(Simple.DELETE_ASKED)

    async def set_mode(self, mode: NotificationsMode) -> TokenStatus | None:
        """Another mode for the same device. `OFF` deletes the token; others register it again."""
        if mode is NotificationsMode.OFF:
            await self._run(SetMode(mode))
            return None
        event: Input = SetMode(mode)
        if await self._driver.load() is None:
            vault = self._context.store.vault
            last = await self._context.store.read(lambda tx: ntf_store.load_last_device(tx, vault))
            if last is None:
                raise Prohibited("no device token is known: register one first")
            event = Ask(last[0], mode, last[1])
        return _status(await self._run(event))

    async def token_info(self) -> TokenInfo | None:
        return _info(await self._driver.load())

    # Connections.

    async def create(self, conn_ids: Iterable[str]) -> None:
        """Notifications are on for them, or they have another queue; later if they cannot be."""
        await self._supervisor.submit(Command(CommandKind.CREATE, tuple(conn_ids)))

    async def delete(self, conn_ids: Iterable[str]) -> None:
        """Notifications are off for them."""
        await self._supervisor.submit(Command(CommandKind.DELETE, tuple(conn_ids)))

    async def forget(self, conn_ids: Iterable[str]) -> None:
        """They and their queues are being deleted."""
        await self._supervisor.submit(Command(CommandKind.FORGET, tuple(conn_ids)))

    async def refresh(self) -> None:
        """Look at every connection again, as after a router has moved."""
        await self._supervisor.create_all()

    async def settled(self) -> None:
        """Wait until what was asked for connections is stored."""
        await self._supervisor.settled()

    async def subscriptions(self) -> list[NtfSubscription]:
        """For status displays."""
        return await self._context.store.read(ntf_store.all_subscriptions)

    async def look_again(self) -> None:
        """Another process may have stored something to be done."""
        await self._supervisor.look_again()

    def network_changed(self) -> None:
        """Try at once what would be tried after an interval."""
        self._tending.set()
        self._supervisor.hurry()

    # Within.

    async def _run(self, event: Input) -> NtfToken | None:
        try:
            return await self._driver.run(event)
        except CronUnset as exc:
            self._tending.set()
            return exc.token
        except RouterError as exc:
            if exc.temporary:
                self._tending.set()
            raise

    async def _act(self, do: Do) -> None:
        match do:
            case Do.CREATE_SUBSCRIPTIONS:
                await self._supervisor.create_all()
                self._supervisor.wake_all()
            case Do.DELETE_SUBSCRIPTIONS:
                await self._supervisor.delete_all()

    def _changed(self, token: NtfToken | None) -> None:
        if self._on_token is not None:
            self._on_token(_info(token))

    def _suspect(self) -> None:
        self._doubted = True
        self._tending.set()

    async def _tend(self) -> None:
        """Finish what the token's stored action says, however often that takes."""
        failures = 0
        while True:
            await self._tending.wait()
            self._tending.clear()
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
                logger.exception("tending the token failed")
                self._again_in(self._context.settings.retry.last)

    def _again_in(self, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay, self._tending.set)

    async def _resume(self) -> None:
        if await self._driver.load() is None:
            return
        if not self._doubted:
            await self._driver.run(Simple.RESUME)
            return
        now = asyncio.get_running_loop().time()
        wait = self._doubted_at + self._context.settings.suspect_after - now
        if wait > 0:
            self._again_in(wait)
            return
        await self._driver.run(Simple.RESUME, doubt=True)
        self._doubted, self._doubted_at = False, now


def _status(token: NtfToken | None) -> TokenStatus:
    return TokenStatus.NEW if token is None else token.status


def _info(token: NtfToken | None) -> TokenInfo | None:
    if token is None:
        return None
    return TokenInfo(token.device, token.status, token.mode, token.ntf_address, token.token_id)
