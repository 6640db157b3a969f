"""`heliograph demo`: watch a message become a push on this machine."""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.transport import loop
from heliograph.transport.client import Client
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import SMPQueueNtf
from heliograph.wire.fields import (
    MsgFlags,
    NewNtfCreds,
    QueueMode,
    QueueReqData,
    SubscriptionMode,
)
from heliograph.wire.keys import Algorithm
from heliograph.wire.messages import RcvMessage, decode_rcv_message
from heliograph.wire.push import (
    MessagePush,
    VerificationPush,
    decode_nmsg_meta,
    decode_pn_messages,
    decode_push,
)
from heliograph.wire.tokens import APNSDeviceToken, PushProvider

TOKEN = "c0ffee01"  # noqa: S105 - a device that exists only here
PATIENCE = 20.0


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="watch a message become a push on this machine",
        description="Start both routers and an APNs simulator on free loopback ports, and send one"
        " message from a sender to a phone.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from heliograph.sim import world
    except ModuleNotFoundError as exc:
        print(f"heliograph demo: {exc.name} is missing: install heliograph[sim]")
        return 1
    with tempfile.TemporaryDirectory(prefix="heliograph-demo-") as directory:
        loop.run(_demo(world.world, Path(directory)))
    return 0


async def _demo(make_world: Any, directory: Path) -> None:
    async with make_world(directory) as world:
        print("1. Two routers and a push provider, each with its own certificate and store")
        print(f"   messaging router     {world.smp_address}")
        print(f"   notification router  {world.ntf_address}")
        print(f"   APNs simulator       {world.apns.url}")
        await _Phone(world).live()


class _Phone:
    """What a phone does; and at step 4 its contact."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._keys = generate_key_pair(Algorithm.X25519)
        self._dh = generate_key_pair(Algorithm.X25519)
        self._notifier = generate_key_pair(Algorithm.X25519)
        self._pushes = 0

    async def live(self) -> None:
        router = await Client.connect(self._world.ntf_address)
        messaging = await Client.connect(self._world.smp_address)
        token_id, secret = await self._register(router)
        queue = await self._subscribe(router, messaging, token_id)
        started = time.perf_counter()
        sender = await Client.connect(self._world.smp_address)
        body = b"Signal received. Meet at noon."
        await sender.request(smp.SEND(MsgFlags(notification=True), body), queue.snd_id)
        print("\n4. A contact sends a message")
        await self._wake(messaging, queue, secret, started)
        for client in (router, messaging, sender):
            await client.close()

    async def _register(self, router: Client) -> tuple[bytes, bytes]:
        device = APNSDeviceToken(PushProvider.APNS_TEST, TOKEN.encode())
        command = ntf.TNEW(device, self._keys.public, self._dh.public)
        answer = await router.request(command, b"", self._keys.private)
        secret = dh(answer.dh_key, self._dh.private)
        print("\n2. The phone registers its device token, and proves that it has it")
        push = await self._next_push(VerificationPush)
        code = open_box_padded(secret, push.nonce, push.box)
        print(f"   a silent push brought a code of {len(code)} bytes, encrypted for this phone")
        await router.request(ntf.TVFY(code), answer.token_id, self._keys.private)
        checked = await router.request(ntf.TCHK(), answer.token_id, self._keys.private)
        print(f"   the token is {checked.status.value}")
        return answer.token_id, secret

    async def _subscribe(self, router: Client, messaging: Client, token_id: bytes) -> smp.IDS:
        command = smp.NEW(
            self._keys.public,
            self._dh.public,
            mode=SubscriptionMode.CREATE_ONLY,
            queue_data=QueueReqData(QueueMode.MESSAGING),
            ntf_creds=NewNtfCreds(self._notifier.public, self._dh.public),
        )
        queue: smp.IDS = await messaging.request(command, b"", self._keys.private)
        if queue.ntf_creds is None:
            raise RuntimeError("the messaging router gave no notifier credentials")
        source = SMPQueueNtf(self._world.smp_address, queue.ntf_creds.notifier_id)
        snew = ntf.SNEW(token_id, source, self._notifier.private)
        sub = await router.request(snew, b"", self._keys.private)
        print("\n3. It makes a queue, and has the notification router subscribe to it")
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await router.request(ntf.SCHK(), sub.subscription_id, self._keys.private)
                if answer.status.state.value == "ACTIVE":
                    break
                await asyncio.sleep(0.02)
        print("   the subscription is ACTIVE")
        return queue

    async def _wake(self, messaging: Client, queue: smp.IDS, secret: bytes, started: float) -> None:
        push = await self._next_push(MessagePush)
        print(f"   a push arrived after {(time.perf_counter() - started) * 1000:.0f} ms;"
              f" its provider saw {len(push.box)} encrypted bytes")  # fmt: skip
        [notice] = decode_pn_messages(open_box_padded(secret, push.nonce, push.box))
        print("   the outer layer, from the notification router, says which queue")
        if queue.ntf_creds is None:
            raise RuntimeError("the queue has no notifier credentials")
        inner = dh(queue.ntf_creds.dh_key, self._dh.private)
        meta = decode_nmsg_meta(open_box_padded(inner, notice.nonce, notice.meta))
        print("   the inner layer, from the messaging router, says which message")
        fetched = await messaging.request(smp.GET(), queue.rcv_id, self._keys.private)
        plain = open_box_padded(dh(queue.dh_key, self._dh.private), fetched.msg_id, fetched.body)
        message = decode_rcv_message(plain)
        found = fetched.msg_id == meta.msg_id
        print(f"   the phone fetched it{' (the very one)' if found else ''} and shows:")
        text = message.body.decode() if isinstance(message, RcvMessage) else "(queue full)"
        edge = f"      +{'-' * 44}+"
        print(f"\n{edge}\n      | {'SimpleX':42} |\n      | {text:42} |\n{edge}")
        await messaging.request(smp.ACK(fetched.msg_id), queue.rcv_id, self._keys.private)

    async def _next_push(self, kind: type[Any]) -> Any:
        """As the provider delivers it to this device."""
        found = await self._world.apns.record.wait_for(TOKEN, self._pushes, PATIENCE)
        if not found:
            raise TimeoutError("no push arrived")
        entry = found[0]
        self._pushes = entry.seq
        push = decode_push(entry.body.encode())
        if not isinstance(push, kind):
            raise TypeError(f"a {kind.__name__} was expected")
        return push
