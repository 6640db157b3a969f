"""A phone of the demonstration: `heliograph device` in processes of its own."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

from heliograph.runtime.errors import StartError

PATIENCE = 120.0
_COMMAND = (sys.executable, "-m", "heliograph")


async def heliograph(*arguments: str | Path, patience: float = PATIENCE) -> str:
    """What a command printed. Raises `StartError` with its words if it failed."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, *map(str, arguments), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(patience):
            output, errors = await process.communicate()
    except TimeoutError:
        raise StartError(f"`heliograph {arguments[0]} {arguments[1]}` took too long") from None
    finally:
        await end(process)
    if process.returncode != 0:
        words = errors.decode(errors="replace").strip() or output.decode(errors="replace")
        raise StartError(f"`heliograph {arguments[0]} {arguments[1]}` failed: {words}")
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
        self.shown: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def do(self, command: str, *arguments: str | Path) -> str:
        return await heliograph("device", command, "--dir", self.directory, *arguments)

    async def watch(self, journal: Path) -> None:
        """From now on `shown` has what the phone shows."""
        self._process = await asyncio.create_subprocess_exec(
            *_COMMAND, "device", "watch", "--dir", str(self.directory), "--json",
            "--journal", str(journal), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL,
        )  # fmt: skip
        self._reader = asyncio.ensure_future(self._read(self._process))

    async def until(self, body: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Until a notification with this text is on the screen."""
        try:
            async with asyncio.timeout(patience), self._changed:
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
        if self._reader is not None:
            await self._reader

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None  # noqa: S101
        while line := await process.stdout.readline():
            async with self._changed:
                self.shown.append(json.loads(line))
                self._changed.notify_all()
