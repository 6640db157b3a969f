import asyncio

from heliograph.transport.connection import BlockConnection
from heliograph.transport.errors import RequestRefused, RequestTimeout
from heliograph.transport.keepalive import KeepAlive
from heliograph.transport.protocols import NTF
from heliograph.wire.errors import ErrorCode
from tests.waiting import until


async def no_answer() -> None:
    raise RequestTimeout("no answer")


async def test_received_block_resets_missed_pings() -> None:
    connection = BlockConnection(NTF, 1.0)
    keep_alive = KeepAlive(connection, no_answer, 0.01, 1_000_000)
    keep_alive.start()
    for _ in range(3):
        await until(lambda: keep_alive.missed >= 2)
        while keep_alive.missed:
            connection.received_at = asyncio.get_running_loop().time()
            await asyncio.sleep(0.001)
    keep_alive.stop()


async def test_error_is_an_answer() -> None:
    pings = 0

    async def ping() -> None:
        nonlocal pings
        pings += 1
        raise RequestTimeout("no answer") if pings == 1 else RequestRefused(ErrorCode.INTERNAL)

    keep_alive = KeepAlive(BlockConnection(NTF, 1.0), ping, 0.001, 2)
    keep_alive.start()
    await until(lambda: pings >= 4)
    assert keep_alive.missed == 0
    keep_alive.stop()
