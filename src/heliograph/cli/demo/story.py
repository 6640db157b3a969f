"""The demonstration, step by step."""

import asyncio
import json
import os
import shutil
import signal
import textwrap
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from heliograph.actions.snapshots import list_snapshots
from heliograph.cli.demo.loss import count_ended, take_over_subscriptions
from heliograph.cli.demo.phone import DemoPhone, heliograph
from heliograph.cli.device.screen import box
from heliograph.documents import JsonObject
from heliograph.pipeline.source import is_ingested, list_segments
from heliograph.pipeline.tables.offsets import read_offsets
from heliograph.runtime.authority import CA_FILE, KEY_FILE
from heliograph.runtime.errors import StartError
from heliograph.system.install import create
from heliograph.system.layout import Layout
from heliograph.system.parts import SystemPart, parts
from heliograph.system.state import PartState
from heliograph.system.supervisor import Supervisor

BURST = 6
TIMEOUT = 120.0
PIPELINE_TIMEOUT = 240.0
SNAPSHOTS = 3.0
"""Seconds between snapshots of subscriptions."""
SETTLING_SECONDS = 2.0
"""Seconds until the last events are in the journal."""
SHORT_RUN = (
    "--conf",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
"""Java's optimizing compiler costs more than it saves in so short a run."""
MEANINGS = {
    "shown": "shown on a phone",
    "accepted": "accepted by a push provider",
    "coalesced": "replaced by a newer one of the same chat, in the same push",
}


class Story:
    def __init__(self, directory: Path, *, with_pipeline: bool) -> None:
        self._directory = directory
        self._layout = Layout(directory / "home")
        self._with_pipeline = with_pipeline
        self._step = 0
        config = create(
            self._layout.root,
            pipeline=with_pipeline,
            any_port=True,
            stream=True,
            snapshot_seconds=SNAPSHOTS,
        )
        self._simulators = config.simulators
        self._supervisor = Supervisor(self._layout, map(_quickly, parts(self._layout, config)))
        self._alice = DemoPhone("Alice", self._layout.root / "alice")
        self._bob = DemoPhone("Bob", self._layout.root / "bob")

    async def run(self, *, keep: bool) -> int:
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._supervisor.stop)
            for phone in (self._alice, self._bob):
                stack.push_async_callback(phone.close)
            await self._start()
            await self._register()
            await self._connect()
            await self._message()
            await self._kill()
            if self._with_pipeline:
                await self._account()
                await self._repair()
            print(f"\nThe demo took {time.monotonic() - started:.0f} s.", flush=True)
            if keep:
                page = self._supervisor.status.parts["page"].address
                print(f"It keeps running: see {page}. Ctrl-C stops it.", flush=True)
                await asyncio.Event().wait()
        return 0

    async def _start(self) -> None:
        self._say("Routers, push providers, page and pipeline start, each in its own process")
        await self._supervisor.start()
        for name, part in self._supervisor.status.parts.items():
            address = part.address.split(" control ")[0] or "starting, in the background"
            print(f"   {name:<9} process {part.pid}  {address}", flush=True)

    async def _register(self) -> None:
        self._say("Two phones register and prove that they own their device tokens")
        addresses = self._supervisor.status.parts
        smp, ntf = addresses["smp"].address, addresses["ntf"].address
        routers = ("--smp", smp, "--ntf", ntf)
        await asyncio.gather(
            *(phone.do("init", "--name", phone.name, *routers) for phone in self._both)
        )
        # Bob's phone is its own Web Push service, with a certificate that the router trusts.
        for name in (CA_FILE, KEY_FILE):
            shutil.copy(self._layout.sim / name, self._bob.directory / name)
        control = f"http://127.0.0.1:{self._simulators.apns_control_port}"
        ways = (self._alice, ("--apns", control)), (self._bob, ("--webpush", "127.0.0.1"))
        outputs = await asyncio.gather(*(phone.do("register", *way) for phone, way in ways))
        for (phone, way), output in zip(ways, outputs, strict=True):
            command = " ".join(("register", "--dir", phone.directory.name, *way))
            print(f"   $ heliograph device {command}\n   {output.strip()}", flush=True)

    async def _connect(self) -> None:
        self._say("Alice creates a link, and Bob joins it")
        link = (await self._alice.do("connect", "--name", "Bob")).strip()
        print(f"   $ heliograph device connect --dir bob '{link[:48]}...'", flush=True)
        await asyncio.gather(*(phone.watch(self._layout.journal) for phone in self._both))
        await self._bob.do("connect", link, "--name", "Alice")

    async def _message(self) -> None:
        self._say("A message becomes a push, and the push a notification")
        for sender, phone, way, text in (
            (self._bob, self._alice, "APNs", "Signal received. Meet at noon?"),
            (self._alice, self._bob, "Web Push", "At noon, by the old tower."),
        ):
            print(
                f"   $ heliograph device send --dir {sender.directory.name} {phone.name} '{text}'"
            )
            await sender.do("send", phone.name, text)
            content = await phone.until(text)
            print(f"   By {way}, on {phone.name}'s phone:")
            self._draw(content)
        print("   Provider and notification router saw only encrypted bytes. The phone opened two")
        print("   layers, one of each router, and fetched the message itself.", flush=True)

    async def _kill(self) -> None:
        status = self._supervisor.status.parts["ntf"]
        before = status.pid
        self._say(f"Bob sends {BURST} messages while the notification router is killed")
        for number in range(1, BURST + 1):
            await self._bob.do("send", "Alice", f"Message {number} of {BURST}")
            if number == BURST // 2 and before is not None:
                os.kill(before, signal.SIGKILL)
                print(f"   $ kill -9 {before}", flush=True)
        last = f"Message {BURST} of {BURST}"
        content = await self._alice.until(last)
        await self._until(lambda: status.state is PartState.RUNNING, "the notification router")
        print(f"   It runs again as process {status.pid} and sent the pending pushes:")
        self._draw(content)

    async def _account(self) -> None:
        self._say("The pipeline, on Spark, accounts for every notification")
        await self._taken()
        report, tables = self._directory / "report", str(self._layout.tables)
        command = ("pipeline", "report", "--dir", tables, "--out", str(report), *SHORT_RUN)
        print("   $ heliograph pipeline report", flush=True)
        output = await heliograph(*command, within=PIPELINE_TIMEOUT)
        outcomes = json.loads((report / "report.json").read_text())["outcomes"]
        for outcome, count in outcomes.items():
            print(f"   {count:>3} {MEANINGS.get(outcome, outcome)}")
        if sum(outcomes.values()) < BURST:
            raise StartError(f"only {sum(outcomes.values())} notifications are known: see {report}")
        if outcomes.get("unaccounted"):
            raise StartError(f"{outcomes['unaccounted']} notifications are unaccounted for")
        print("     0 unaccounted for", flush=True)
        print(f"   Report: {output.splitlines()[-1]}", flush=True)

    async def _repair(self) -> None:
        self._say("Subscriptions are lost, found by the pipeline, and repaired by the router")
        ntf, tables = self._layout.ntf, str(self._layout.tables)
        lost = await take_over_subscriptions(ntf)
        await self._until(lambda: count_ended(ntf) == lost, "the messaging router")
        print(f"   A router from an old backup took over {lost} subscriptions, and is gone:")
        print("   nobody would get a push any more.", flush=True)
        since = time.time()
        await self._until(lambda: self._has_snapshots(since), "snapshots of both routers")
        snapshots = ("--snapshots", str(self._layout.snapshots))
        for command in (
            ("pipeline", "decide", "--write", "--dir", tables, *snapshots, *SHORT_RUN),
            ("ntf", "actions", "apply", "--kind", "resubscribe", "--dir", str(ntf)),
        ):
            print(f"   $ heliograph {' '.join(command[: command.index('--dir')])}", flush=True)
            output = await heliograph(*command, within=PIPELINE_TIMEOUT)
            print(textwrap.indent(output.rstrip(), "   "), flush=True)
        text = "Can you hear me again?"
        await self._bob.do("send", "Alice", text)
        self._draw(await self._alice.until(text))

    def _has_snapshots(self, since: float) -> bool:
        found = [header for header, _ in list_snapshots(self._layout.snapshots)]
        parts = {header.part for header in found if header.began_at > since * 1e6}
        return parts == {"smp", "ntf"}

    async def _taken(self) -> None:
        """Wait until the pipeline has everything that is in the journals now."""
        await asyncio.sleep(SETTLING_SECONDS)
        journal, tables = str(self._layout.journal), self._layout.tables
        deadline = time.monotonic() + PIPELINE_TIMEOUT
        waiting = list_segments(journal, None)
        while waiting:
            offsets = read_offsets(tables)
            waiting = [item for item in waiting if not is_ingested(item, offsets)]
            if time.monotonic() > deadline:
                late, log = PIPELINE_TIMEOUT, self._layout.log("pipeline")
                raise StartError(f"the pipeline did not get there in {late:.0f} s: see {log}")
            await asyncio.sleep(0.1)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                raise StartError(f"{what} did not come back in {TIMEOUT:.0f} s")
            await asyncio.sleep(0.05)

    def _draw(self, content: JsonObject) -> None:
        drawn = box(content["title"], content["body"], content["badge"])
        print(textwrap.indent(drawn, "      "), flush=True)

    @property
    def _both(self) -> tuple[DemoPhone, DemoPhone]:
        return self._alice, self._bob

    def _say(self, text: str) -> None:
        self._step += 1
        print(f"\n{self._step}. {text}", flush=True)


def _quickly(part: SystemPart) -> SystemPart:
    return replace(part, command=(*part.command, *SHORT_RUN)) if part.name == "pipeline" else part
