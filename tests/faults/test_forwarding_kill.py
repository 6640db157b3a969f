"""Private routing while proxy and destination are killed in turn: nothing accepted is lost."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from heliograph.transport.errors import ClientError
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.smp.fields import MsgFlags
from tests.faults.test_smp_kill import Process
from tests.smp.sender import ProxiedSender
from tests.smp.support import Queue, create

ROUNDS = 4
PER_ROUND = 12


def new_process(directory: Path) -> Process:
    directory.mkdir()
    return Process(f"sqlite:///{directory}/smp.db", directory, 0.02)


async def send(proxy: Process, address: ServerAddress, queue: Queue, bodies: list[bytes]) -> None:
    """Send each message; raises once a router is gone."""
    peer = await proxy.connect()
    try:
        sender = await ProxiedSender.open(peer, address)
        while bodies:
            command = smp.SEND(MsgFlags(False), bodies[0])
            answer = await sender.ask(command, queue.snd_id)
            if answer != smp.OK():
                raise ConnectionError(answer)
            bodies.pop(0)
    finally:
        await peer.close()


@pytest.mark.slow
async def test_killed_in_turn(tmp_path: Path) -> None:
    proxy, destination = new_process(tmp_path / "proxy"), new_process(tmp_path / "destination")
    processes = (proxy, destination)
    for process in processes:
        await process.start()
    try:
        owner = await destination.connect()
        queue = await create(owner, subscribe=False)
        await owner.close()
        attempts: Counter[bytes] = Counter()
        accepted: list[bytes] = []
        for number in range(ROUNDS):
            bodies = [b"%d.%d" % (number, i) for i in range(PER_ROUND)]
            victim: Process | None = processes[number % 2]
            while bodies:
                before = list(bodies)
                sending = asyncio.create_task(send(proxy, destination.address, queue, bodies))
                if victim is not None:
                    await asyncio.sleep(0.1)
                    await victim.kill()
                try:
                    await sending
                except (ClientError, ConnectionError, AssertionError, OSError):
                    attempts[bodies[0]] += 1
                accepted += before[: len(before) - len(bodies)]
                if victim is not None:
                    await victim.start()
                    victim = None
        reader = await destination.connect()
        received: Counter[bytes | None] = Counter(await queue.receive_all(reader))
        await reader.close()
    finally:
        for process in processes:
            await process.kill()
    assert len(accepted) == ROUNDS * PER_ROUND
    for body in accepted:
        # Repeated only if an answer was lost, and the sender could not know.
        assert 1 <= received[body] <= 1 + attempts[body], body
