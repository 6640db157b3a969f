"""Hand-over of notifications from the messaging router to the notification router.

Each round sends one message with a notification to every queue, causes one fault at a random
moment, and stays silent afterwards, so that no later notification covers a lost one. Every SEND
answered OK must lead to a push about that message.

HELIOGRAPH_HAND_OVER_ROUNDS: rounds of each kind on each store (2, nightly 100).
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.wire.addresses import ServerAddress
from tests.faults.relay import Relay
from tests.faults.test_ntf_faults import Theatre

ROUNDS = int(os.environ.get("HELIOGRAPH_HAND_OVER_ROUNDS", "2"))


class HandOver(Theatre):
    """Routers with a relay between them, and one fault a round."""

    tokens, queues = 10, 6
    relay: Relay

    async def _start_processes(self) -> None:
        await super()._start_processes()
        self.relay = Relay(self.smp_address.effective_port)
        await self.relay.start()

    @property
    def subscribed_address(self) -> ServerAddress:
        return replace(self.smp_address, port=str(self.relay.port))

    async def close(self) -> None:
        await super().close()
        await self.relay.close()

    async def round(self, number: int, kind: str) -> None:
        lines = [line for device in self.devices for line in device.lines.values()]
        await asyncio.gather(self.cause_later(kind), *(self.send_some(line, 1) for line in lines))
        await self.settle(number)

    async def cause_later(self, kind: str) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.25))
        match kind:
            case "stall":
                self.ntf.pause()
                await asyncio.sleep(self.random.uniform(1.2, 2.2))
                self.ntf.resume()
            case "stall and kill":
                self.ntf.pause()
                await asyncio.sleep(1.6)
                await self.ntf.restart()
            case "relay":
                self.relay.stall()
                await asyncio.sleep(1.5)
                await self.relay.cut()
            case "relay and kill":
                self.relay.stall()
                await asyncio.sleep(1.5)
                await self.smp.restart()
                await self.relay.cut()
            case "stall smp":
                self.smp.pause()
                await asyncio.sleep(1.6)
                self.smp.resume()


KINDS = ["stall", "stall and kill", "relay", "relay and kill", "stall smp"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_nothing_is_lost_between_the_routers(tmp_path: Path, store: str) -> None:
    world = HandOver(tmp_path, store)
    try:
        await world.start()
        for kind in KINDS:
            for number in range(1, ROUNDS + 1):
                await world.round(number, kind)
            print(f"{kind}: {ROUNDS} rounds, {world.sent} sent", flush=True)  # noqa: T201
    finally:
        await world.close()
