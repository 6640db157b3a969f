"""A TCP relay that can stall (accept bytes and pass nothing on) and cut its connections."""

import asyncio
import contextlib
from pathlib import Path


class Relay:
    def __init__(self, port: int) -> None:
        """Relay to `port` on the loopback interface."""
        self.port = 0
        self.passed = 0
        """Bytes, in both directions."""
        self._target = port
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def close(self) -> None:
        self._server.close()
        await self.cut()

    def stall(self) -> None:
        """Keep accepting bytes, which TCP acknowledges, and pass none of them on."""
        self._flowing.clear()

    async def cut(self) -> None:
        """Reset all connections, losing what was not passed on."""
        tasks = tuple(self._connections)
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        pipes = (
            asyncio.create_task(self._pipe(reader, other_writer)),
            asyncio.create_task(self._pipe(other_reader, writer)),
        )
        self._connections[pipes[0]], self._connections[pipes[1]] = writer, other_writer
        await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for pipe in pipes:
            pipe.cancel()
            self._connections.pop(pipe, None)
        for end in (writer, other_writer):
            end.transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 * 1024):
                await self._flowing.wait()
                writer.write(data)
                self.passed += len(data)
                await writer.drain()


class SocketRelay(Relay):
    """As `Relay`, between two sockets of the file system."""

    def __init__(self, source: Path, target: Path) -> None:
        super().__init__(0)
        self._source = source
        self._path = target

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self._source)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._path)


class GateRelay(Relay):
    """As `Relay`, from a port of the loopback interface to a socket of the file system."""

    def __init__(self, target: Path) -> None:
        super().__init__(0)
        self._path = target

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self._path)
