"""A phone of the demonstration: `heliograph device` in its own processes."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from heliograph.documents import JsonObject
from heliograph.runtime.errors import StartError
from heliograph.tasks import TaskScope

TIMEOUT = 120.0
_COMMAND = (sys.executable, "-m", "heliograph")


async def heliograph(*arguments: str | Path, within: float = TIMEOUT) -> str:
    """Return what a command printed. Raises `StartError` with its output if it failed."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, *map(str, arguments), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(within):
            output, errors = await process.communicate()
    except TimeoutError:
        raise StartError(f"`heliograph {arguments[0]} {arguments[1]}` took too long") from None
    finally:
        await end(process)
    if process.returncode != 0:
        text = errors.decode(errors="replace").strip() or output.decode(errors="replace")
        raise StartError(f"`heliograph {arguments[0]} {arguments[1]}` failed: {text}")
    return output.decode()


async def end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class DemoPhone:
    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.shown: list[JsonObject] = []
        self._changed = asyncio.Condition()
        self._process: Process | None = None
        self._tasks = TaskScope()

    async def do(self, command: str, *arguments: str | Path) -> str:
        return await heliograph("device", command, "--dir", self.directory, *arguments)

    async def watch(self, journal: Path) -> None:
        """Start to collect in `shown` what the phone shows."""
        self._process = await asyncio.create_subprocess_exec(
            *_COMMAND, "device", "watch", "--dir", str(self.directory), "--json",
            "--journal", str(journal), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL,
        )  # fmt: skip
        self._tasks.spawn(self._read(self._process), name=f"screen of {self.name}")

    async def until(self, body: str, within: float = TIMEOUT) -> JsonObject:
        """Wait until the phone shows a notification with this text."""
        try:
            async with asyncio.timeout(within), self._changed:
                while True:
                    for content in self.shown:
                        if content["body"] == body:
                            return content
                    await self._changed.wait()
        except TimeoutError:
            raise StartError(f"{self.name}'s phone did not show {body!r} in time") from None

    async def close(self) -> None:
        if self._process is not None:
            await end(self._process)
        await self._tasks.wait()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101
        while line := await process.stdout.readline():
            async with self._changed:
                self.shown.append(json.loads(line))
                self._changed.notify_all()
