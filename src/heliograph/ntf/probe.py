"""Asks a running router to do its work for a token that nobody has, and times each step.

The token is of the provider that delivers nothing (AN), so no device is woken, and the router does
not count it. Whatever happens, it is deleted at the end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from heliograph.crypto.keys import KeyPair, generate_key_pair
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import ntf
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.tokens import APNSDeviceToken, PushProvider, TokenStatus

__all__ = ["Report", "probe"]

DEVICE = APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")
POLL_INTERVAL = 0.02

Report = Callable[[str, float, str | None], None]
"""Told of each step: its name, its seconds, and what went wrong if it failed."""

T = TypeVar("T")


class ProbeFailed(Exception):
    """The router answered something that it should not."""


async def probe(address: ServerAddress, report: Report, patience: float = 20.0) -> bool:
    """Whether every step was well. `patience` is how many seconds each may take."""
    steps = _Steps(address, report, patience)
    try:
        await steps.run()
    except _StepFailed:
        return False
    return True


class _StepFailed(Exception):
    """It was reported."""


class _Steps:
    def __init__(self, address: ServerAddress, report: Report, patience: float) -> None:
        self._address = address
        self._report = report
        self._patience = patience
        self._keys: KeyPair = generate_key_pair(Algorithm.X25519)
        self._token_id = b""

    async def run(self) -> None:
        client = await self._step("connect", self._connect)
        try:
            await self._step("ping", lambda: self._expect(client, ntf.PING(), ntf.PONG))
            await self._step("register a token", lambda: self._register(client))
            try:
                await self._step("verification is pushed", lambda: self._confirmed(client))
            finally:
                await self._step("delete the token", lambda: self._delete(client))
            await self._step("the token is gone", lambda: self._gone(client))
        finally:
            await client.close()

    async def _step(self, name: str, action: Callable[[], Awaitable[T]]) -> T:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._patience):
                result = await action()
        except (ClientError, ProbeFailed, TimeoutError) as exc:
            text = str(exc) or type(exc).__name__
            self._report(name, time.monotonic() - started, text)
            raise _StepFailed from exc
        self._report(name, time.monotonic() - started, None)
        return result

    async def _connect(self) -> Client:
        config = ClientConfig(connect_timeout=self._patience, request_timeout=self._patience)
        return await Client.connect(self._address, config)

    async def _register(self, client: Client) -> None:
        dh_keys = generate_key_pair(Algorithm.X25519)
        command = ntf.TNEW(DEVICE, self._keys.public, dh_keys.public)
        answer = await self._expect(client, command, ntf.IDTKN)
        self._token_id = answer.token_id

    async def _confirmed(self, client: Client) -> None:
        """The status changes once the provider, which takes everything, was asked."""
        while True:
            answer = await self._expect(client, ntf.TCHK(), ntf.TKN)
            if answer.status is TokenStatus.CONFIRMED:
                return
            if answer.status is not TokenStatus.REGISTERED:
                raise ProbeFailed(f"the token is {answer.status.value}")
            await asyncio.sleep(POLL_INTERVAL)

    async def _delete(self, client: Client) -> None:
        await self._expect(client, ntf.TDEL(), ntf.OK)

    async def _gone(self, client: Client) -> None:
        try:
            await client.request(ntf.TCHK(), self._token_id, self._keys.private)
        except RequestRefused as exc:
            if exc.error is ErrorCode.AUTH:
                return
            raise
        raise ProbeFailed("a deleted token is still there")

    async def _expect(self, client: Client, command: Any, kind: type) -> Any:
        key = None if isinstance(command, ntf.PING) else self._keys.private
        answer = await client.request(command, self._token_id, key)
        if not isinstance(answer, kind):
            raise ProbeFailed(f"the answer is {type(answer).__name__}")
        return answer
