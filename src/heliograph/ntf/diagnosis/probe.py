"""Check a running router as a client does, and time each step.

Without a `ProbePath` a token of the provider that delivers nothing (AN) is registered: no device is
woken, and the router does not count it. With one, a message goes all the way: through a messaging
router and the notification router to a device that opens the push. Whatever happens, token and
queue are deleted at the end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import (
    MessagePush,
    NMsgMeta,
    PNMessageData,
    Push,
    VerificationPush,
    decode_nmsg_meta,
    decode_pn_messages,
)
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    DeviceToken,
    PushProvider,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.smp.fields import MsgFlags, SubscriptionMode
from heliograph.wire.table import Command

__all__ = ["ProbePath", "PushReceiver", "Report", "probe"]

NULL_DEVICE = APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")
POLL_INTERVAL = 0.02

Report = Callable[[str, float, str | None], None]
"""Called for each step with its name, its seconds, and the problem if it failed."""

T = TypeVar("T")


class PushReceiver(Protocol):
    """A device, real or simulated."""

    @property
    def device(self) -> DeviceToken: ...

    async def receive(self) -> Push:
        """Wait for the next push to the device."""


@dataclass(frozen=True, slots=True)
class ProbePath:
    """The messaging router and the device between which a message is to go."""

    smp: ServerAddress
    receiver: PushReceiver


class ProbeFailed(Exception):
    """A router gave an unexpected answer."""


async def probe(
    address: ServerAddress, report: Report, within: float = 20.0, path: ProbePath | None = None
) -> bool:
    """Return whether every step succeeded; each may take `within` seconds."""
    steps = _Steps(address, report, within)
    try:
        await steps.run(path)
    except _StepFailed:
        return False
    return True


class _StepFailed(Exception):
    """A step failed and was reported."""


class _ProbeQueue:
    """A queue of the probe, which is its recipient, sender and notifier at once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys = generate_key_pair(Algorithm.X25519)
        self._notifier = generate_key_pair(Algorithm.X25519)
        self._notifier_secret = b""
        self._rcv_id = b""
        self._snd_id = b""
        self.notifier_id = b""

    @property
    def notifier_key(self) -> bytes:
        return self._notifier.private

    async def create(self, password: str | None) -> None:
        command = smp.NEW(
            self._keys.public,
            generate_key_pair(Algorithm.X25519).public,
            None if password is None else password.encode(),
            SubscriptionMode.CREATE_ONLY,
        )
        ids = await self._client.request(command, key=self._keys.private)
        self._rcv_id, self._snd_id = ids.rcv_id, ids.snd_id

    async def add_notifier(self) -> None:
        keys = generate_key_pair(Algorithm.X25519)
        answer = await self._request(smp.NKEY(self._notifier.public, keys.public))
        self.notifier_id = answer.notifier_id
        self._notifier_secret = dh(answer.dh_key, keys.private)

    async def send(self) -> None:
        await self._client.request(smp.SEND(MsgFlags(True), b"probe"), self._snd_id)

    async def message_id(self) -> bytes:
        message = await self._request(smp.GET())
        if not isinstance(message, smp.MSG):
            raise ProbeFailed("the message is not in the queue")
        return message.msg_id

    async def delete(self) -> None:
        await self._request(smp.DEL())

    def decrypt(self, item: PNMessageData) -> NMsgMeta:
        return decode_nmsg_meta(open_box_padded(self._notifier_secret, item.nonce, item.meta))

    async def _request(self, command: Command[T]) -> T:
        return await self._client.request(command, self._rcv_id, self._keys.private)


class _Steps:
    def __init__(self, address: ServerAddress, report: Report, within: float) -> None:
        self._address = address
        self._report = report
        self._within = within
        self._keys: KeyPair = generate_key_pair(Algorithm.X25519)
        self._token_id = b""
        self._secret = b""

    async def run(self, path: ProbePath | None) -> None:
        async with AsyncExitStack() as stack:
            client = await self._connect(stack, "connect", self._address)
            await self._step("ping", client.request(ntf.PING()), "the router is silent")
            device = NULL_DEVICE if path is None else path.receiver.device
            await self._step("register a token", self._register(client, device))
            stack.push_async_callback(self._delete_token, client)
            if path is None:
                await self._step(
                    "verification is pushed",
                    self._confirmed(client),
                    "the push was not sent: see the router's log",
                )
            else:
                await self._verify(client, path.receiver)
                await self._send_message(stack, client, path)

    async def _verify(self, client: Client, receiver: PushReceiver) -> None:
        push = await self._step(
            "verification is pushed",
            _receive(receiver, VerificationPush),
            "no push came: see [push] in the configuration, the router's log, and whether its"
            " provider is the one that pushes to this device",
        )
        await self._step("open the verification", self._verify_with(client, push))

    async def _send_message(self, stack: AsyncExitStack, client: Client, path: ProbePath) -> None:
        messaging = await self._connect(stack, "connect for messages", path.smp)
        queue = _ProbeQueue(messaging)
        await self._step("create a queue", queue.create(path.smp.password))
        stack.push_async_callback(self._delete_queue, queue)
        await self._step("add a notifier", queue.add_notifier())
        server = path.smp.without_password()
        command = ntf.SNEW(
            self._token_id, SMPQueueNtf(server, queue.notifier_id), queue.notifier_key
        )
        added = await self._step("subscribe", client.request(command, key=self._keys.private))
        await self._step(
            "subscription is active",
            self._subscribed(client, added.subscription_id),
            "the notification router does not reach the messaging router: see its log, and"
            " [network] in its configuration",
        )
        await self._step("send a message", queue.send())
        push = await self._step(
            "notification is pushed",
            _receive(path.receiver, MessagePush),
            "no push came: trace the token with `heliograph ntf trace`, and see the logs of both"
            " routers",
        )
        await self._step("open the notification", self._open(queue, push))

    async def _step(self, name: str, action: Awaitable[T], silence: str = "no answer came") -> T:
        """Run one step; `silence` says what it means if nothing happened in time."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._within):
                result = await action
        except TimeoutError as exc:
            problem = f"within {self._within:g} s {silence}"
            self._report(name, time.monotonic() - started, problem)
            raise _StepFailed from exc
        except (ClientError, CryptoError, ProbeFailed, WireError, OSError) as exc:
            self._report(name, time.monotonic() - started, str(exc) or type(exc).__name__)
            raise _StepFailed from exc
        self._report(name, time.monotonic() - started, None)
        return result

    async def _connect(self, stack: AsyncExitStack, name: str, address: ServerAddress) -> Client:
        config = ClientConfig(connect_timeout=self._within, request_timeout=self._within)

        async def connect() -> Client:
            return await Client.connect(address, config)

        client = await self._step(name, connect())
        stack.push_async_callback(client.close)
        return client

    async def _register(self, client: Client, device: DeviceToken) -> None:
        dh_keys = generate_key_pair(Algorithm.X25519)
        command = ntf.TNEW(device, self._keys.public, dh_keys.public)
        answer = await client.request(command, key=self._keys.private)
        self._token_id = answer.token_id
        self._secret = dh(answer.dh_key, dh_keys.private)

    async def _status(self, client: Client) -> TokenStatus:
        return (await client.request(ntf.TCHK(), self._token_id, self._keys.private)).status

    async def _confirmed(self, client: Client) -> None:
        """Wait until the null provider, which accepts everything, has confirmed the token."""
        while (status := await self._status(client)) is not TokenStatus.CONFIRMED:
            if status is not TokenStatus.REGISTERED:
                raise ProbeFailed(f"the token is {status.value}")
            await asyncio.sleep(POLL_INTERVAL)

    async def _verify_with(self, client: Client, push: VerificationPush) -> None:
        code = open_box_padded(self._secret, push.nonce, push.box)
        await client.request(ntf.TVFY(code), self._token_id, self._keys.private)
        status = await self._status(client)
        if status is not TokenStatus.ACTIVE:
            raise ProbeFailed(f"the token is {status.value}, not ACTIVE")

    async def _subscribed(self, client: Client, subscription_id: bytes) -> None:
        waiting = (SubscriptionState.NEW, SubscriptionState.PENDING, SubscriptionState.INACTIVE)
        while True:
            answer = await client.request(ntf.SCHK(), subscription_id, self._keys.private)
            status = answer.status
            if status.state is SubscriptionState.ACTIVE:
                return
            if status.state not in waiting:
                text = status.error.decode("utf-8", "replace")
                raise ProbeFailed(f"the subscription is {status.state.value} {text}".rstrip())
            await asyncio.sleep(POLL_INTERVAL)

    async def _open(self, queue: _ProbeQueue, push: MessagePush) -> None:
        """Open both boxes of a push, and compare it with the message that waits in the queue."""
        items = decode_pn_messages(open_box_padded(self._secret, push.nonce, push.box))
        found = [item for item in items if item.queue.notifier_id == queue.notifier_id]
        if not found:
            raise ProbeFailed("the push is about another queue")
        if queue.decrypt(found[-1]).msg_id != await queue.message_id():
            raise ProbeFailed("the push is about another message")

    async def _delete_queue(self, queue: _ProbeQueue) -> None:
        await self._step("delete the queue", queue.delete())

    async def _delete_token(self, client: Client) -> None:
        delete = client.request(ntf.TDEL(), self._token_id, self._keys.private)
        await self._step("delete the token", delete)
        await self._step("the token is gone", self._gone(client))

    async def _gone(self, client: Client) -> None:
        try:
            await self._status(client)
        except RequestRefused as exc:
            if exc.error is ErrorCode.AUTH:
                return
            raise
        raise ProbeFailed("a deleted token is still there")


_Push = TypeVar("_Push", VerificationPush, MessagePush)


async def _receive(receiver: PushReceiver, kind: type[_Push]) -> _Push:
    while not isinstance(push := await receiver.receive(), kind):
        pass  # a periodic wake-up, or a repeated verification
    return push
