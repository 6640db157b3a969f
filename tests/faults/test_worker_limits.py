"""Limits of a router of two real processes hold for both together."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from heliograph.transport.client import Client
from heliograph.transport.errors import ConnectFailed, Disconnected
from heliograph.wire.addresses import decode_address
from heliograph.wire.ntf.push import APNS_DOCUMENTED_SIZE
from tests.db.postgres import shared_postgres
from tests.faults.processes import LEASE, SimulatorProcess, init
from tests.faults.support import accepted, register, requests
from tests.faults.test_workers import CONFIG, Workers
from tests.waiting import until

CLIENTS = 16
CONNECTIONS = 4
PAUSE = 10.0
SHARED_AFTER = 3.0
"""Seconds in which all processes have learned of a pause, on a busy machine."""


@pytest.fixture
async def workers(tmp_path: Path, apns: SimulatorProcess) -> AsyncIterator[Workers]:
    directory = tmp_path / "ntf"
    await init("ntf", directory)
    running = Workers(directory, shared_postgres().new_url(), 2, **apns.options_of_ntf)
    running.environment["HELIOGRAPH_NTF_PUSH_APNS_PADDED_LENGTH"] = str(APNS_DOCUMENTED_SIZE)
    running.environment["HELIOGRAPH_NTF_CLIENTS_MAX_CONNECTIONS"] = str(2 * CLIENTS)
    try:
        yield running
    finally:
        await running.kill_all()


async def test_a_provider_that_limits_our_account_is_left_alone_by_all(
    workers: Workers, apns: SimulatorProcess
) -> None:
    """One process gets the answer 429; the other, which has pushes of its own, waits, too."""
    rule = {"status": 429, "reason": "TooManyProviderTokenUpdates", "retry_after": PAUSE}
    async with aiohttp.ClientSession() as http:
        script = {"rules": [{**rule, "times": 1}]}
        async with http.put(f"{apns.control}/script", json=script) as response:
            assert response.status < 300, await response.text()
    await workers.start()
    address = decode_address(workers.ready)
    clients = [await Client.connect(address, CONFIG) for _ in range(CLIENTS)]
    await register(clients[0])
    await until(lambda: len(requests(apns)) >= 1)
    refused_at = next(item["time"] for item in requests(apns) if item["status"] == 429)
    await asyncio.sleep(SHARED_AFTER)
    await asyncio.gather(*map(register, clients))
    created = await workers.metrics("simplex_ntf_tokens_created")
    assert min(created) > 0, created
    await until(lambda: len(accepted(apns)) == CLIENTS + 1, 60)
    times = sorted(item["time"] - refused_at for item in requests(apns))
    assert times[0] == 0.0
    assert times[1] >= PAUSE - 0.1, times
    by_connection = Counter(item["connection"] for item in accepted(apns))
    assert len(by_connection) == 2, by_connection  # [push.apns] connections, one for each process
    for client in clients:
        await client.close()


async def test_connections_of_clients_are_limited_over_all(workers: Workers) -> None:
    workers.environment["HELIOGRAPH_NTF_CLIENTS_MAX_CONNECTIONS"] = str(CONNECTIONS)
    await workers.start()
    await workers.until_members(2)
    await asyncio.sleep(2 * LEASE)  # both have learned of each other
    address = decode_address(workers.ready)

    async def connect() -> Client | None:
        try:
            return await Client.connect(address, CONFIG)
        except (ConnectFailed, Disconnected):
            return None

    clients: list[Client] = []
    for _ in range(CLIENTS):
        client = await connect()
        clients += [] if client is None else [client]
    assert len(clients) == CONNECTIONS
    assert await workers.metrics("heliograph_ntf_clients") == [CONNECTIONS / 2] * 2
    for client in clients:
        await client.close()
