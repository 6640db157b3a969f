"""The phone: CPU from a push to its notification, with the core open and with a new process' core.

Four processes: this one is the phone (and its contact, who is done when measuring begins); the
others are a messaging router, a notification router and an APNs simulator. The CPU is of this
process with all its threads: both layers of decryption, the stores, GET and ACK over TLS.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench import ntf as bench_ntf, smp as bench_smp
from bench.harness import server_process
from heliograph.device.chats.body import Text
from heliograph.phone.phone import Phone
from heliograph.phone.push import DeliveredPush
from heliograph.wire.addresses import Scheme
from heliograph.wire.ntf.push import MessagePush, decode_push
from heliograph.wire.ntf.tokens import APNSDeviceToken, DeviceToken, NotificationsMode, PushProvider

PUSHES = 40
LIMIT = 100.0
"""Milliseconds of CPU for one push."""


class RecordSource:
    """What the simulator wrote to its record: it is another process."""

    def __init__(self, record: Path, token: str) -> None:
        self.device: DeviceToken = APNSDeviceToken(PushProvider.APNS_TEST, token.encode())
        self._record = record
        self._token = token
        self._taken = 0

    async def pushes(self) -> AsyncIterator[DeliveredPush]:
        while True:
            mine = [e for e in bench_ntf._pushes(self._record) if e["token"] == self._token]
            for entry in mine[self._taken :]:
                self._taken += 1
                yield DeliveredPush("", decode_push(entry["body"].encode()))
            await asyncio.sleep(0.01)

    async def message(self) -> MessagePush:
        async for delivered in self.pushes():
            if isinstance(delivered.push, MessagePush):
                return delivered.push
        raise EOFError

    async def handled(self, push_id: str) -> None: ...

    async def close(self) -> None:
        """Do nothing: the record is only read."""


async def run() -> None:
    print("\nThe phone: CPU from a push to its notification")
    async with contextlib.AsyncExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        apns = await stack.enter_async_context(server_process(bench_ntf.serve_apns, str(path)))
        smp = await stack.enter_async_context(
            server_process(bench_smp.serve, f"sqlite:///{path / 'smp.db'}", 0.0)
        )
        ntf = await stack.enter_async_context(
            server_process(
                bench_ntf.serve_ntf, f"sqlite:///{path / 'ntf.db'}", apns.facts, str(path)
            )
        )
        routers = [str(bench_ntf.address_of(Scheme.SMP, smp))]
        notifier = str(bench_ntf.address_of(Scheme.NTF, ntf))
        record = path / "apns.jsonl"
        for number, passphrase in enumerate((None, "correct horse battery staple")):
            alice = await Phone.create(
                path / f"alice{number}", "alice", routers, [notifier], passphrase=passphrase
            )
            bob = await Phone.create(path / f"bob{number}", "bob", routers, [notifier])
            source = RecordSource(record, await alice.token())
            await _connect(alice, bob, source)
            keys = ", keys encrypted" if passphrase else ""
            await _measure(f"core open{keys}", alice, bob, source, cold=False)
            await _measure(f"core to open{keys}", alice, bob, source, cold=True)
            await alice.close()
            await bob.close()


async def _connect(alice: Phone, bob: Phone, source: RecordSource) -> None:
    async with alice.app() as app:
        await app.register_and_verify(source, NotificationsMode.INSTANT)
        link = await app.invite("bob")
    async with bob.app() as app:
        await app.accept(link, "alice")
    extension = alice.extension()
    await extension.receive(await source.message())
    await extension.close()


async def _measure(
    name: str, alice: Phone, bob: Phone, source: RecordSource, *, cold: bool
) -> None:
    extension = alice.extension()
    samples = []
    for number in range(PUSHES):
        async with bob.app() as app:
            await app.send("alice", Text(f"number {number}"))
        push = await source.message()
        if cold:
            await extension.close()
            extension = alice.extension()
        before = time.process_time()
        content = await extension.receive(push)
        samples.append((time.process_time() - before) * 1000)
        assert content.body == f"number {number}", content
    await extension.close()
    median, worst = statistics.median(samples), max(samples)
    verdict = "under" if worst < LIMIT else "OVER"
    print(f"  {name:34} median {median:6.1f} ms  worst {worst:6.1f} ms  ({verdict} {LIMIT:.0f} ms)")
