"""Hand-over of notifications from the messaging router to the notification router.

Each round sends one message with a notification to every queue, causes one fault at a random
moment, and stays silent afterwards, so that no later notification covers a lost one. Every SEND
answered OK must lead to a push about that message.

HELIOGRAPH_HAND_OVER_ROUNDS: rounds of each kind on each store (1). HELIOGRAPH_HAND_OVER_WORLDS:
pairs of routers that share them (1); a round mostly waits, so several cost little more than one.
HELIOGRAPH_FAULT_SEED repeats a run.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.transport.errors import ClientError
from heliograph.wire.addresses import ServerAddress
from tests.faults.processes import STORES, Process
from tests.faults.relay import Relay
from tests.faults.test_ntf_faults import SEED, FaultWorld, Line

ROUNDS = int(os.environ.get("HELIOGRAPH_HAND_OVER_ROUNDS", "1"))
WORLDS = int(os.environ.get("HELIOGRAPH_HAND_OVER_WORLDS", "1"))


class HandOver(FaultWorld):
    """Routers with a relay between them, and one fault a round."""

    tokens, queues = 4, 6
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
        sending = (self.send_each(list(device.lines.values())) for device in self.devices)
        await asyncio.gather(self.cause_later(kind), *sending)
        await self.settle(number)

    async def send_each(self, lines: list[Line]) -> None:
        """Send one message to each queue, over one connection as long as it lasts."""
        while lines:
            with contextlib.suppress(ClientError):
                async with self.peer() as peer:
                    while lines:
                        if await self._send_one(lines[-1], peer):
                            lines.pop()

    async def cause_later(self, kind: str) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.25))
        how, _, who = kind.partition(" ")
        processes = {"ntf": [self.ntf], "smp": [self.smp], "both": [self.ntf, self.smp]}.get(
            who, []
        )
        if how == "relay":
            self.relay.stall()
            await asyncio.sleep(1.5)
            await restart(processes)
            await self.relay.cut()
            return
        for process in processes:
            process.pause()
        await asyncio.sleep(self.random.uniform(1.2, 2.2))
        if how == "stall":
            for process in processes:
                process.resume()
        else:
            await restart(processes)

    async def check(self, number: int) -> None:
        async def is_covered() -> bool:
            return not self.uncovered()

        assert await self.eventually(is_covered), f"round {number}: lost {len(self.uncovered())}"


async def restart(processes: Iterable[Process]) -> None:
    await asyncio.gather(*(process.restart() for process in processes))


KINDS = [
    *(f"stall {who}" for who in ("ntf", "smp", "both")),
    *(f"kill {who}" for who in ("ntf", "smp", "both")),
    *("relay", "relay ntf", "relay smp", "relay both"),
]
"""`kill` is a stall and then `kill -9`; `relay` stalls, then kills its second word, and cuts."""


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", STORES)
async def test_nothing_is_lost_between_the_routers(tmp_path: Path, store: str) -> None:
    done: Counter[str] = Counter()
    rest = {kind: iter(range(1, ROUNDS + 1)) for kind in KINDS}

    async def play(number: int) -> int:
        place = tmp_path / str(number)
        place.mkdir()
        world = HandOver(place, store)
        world.random = random.Random(SEED + number)
        try:
            await world.start()
            for kind, numbers in rest.items():
                for turn in numbers:  # what another world has taken is not played again
                    await world.round(turn, kind)
                    done[kind] += 1
        finally:
            await world.close()
        return world.sent

    try:
        sent = await asyncio.gather(*(play(number) for number in range(WORLDS)))
    finally:
        print(f"seed {SEED}, {store}: {dict(done)}")  # noqa: T201
    assert done == dict.fromkeys(KINDS, ROUNDS)
    print(f"{sum(sent)} sent, none lost")  # noqa: T201
