"""A real Chromium without a window, driven through its debugging protocol."""

import asyncio
import base64
import contextlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TIMEOUT = 40.0
ARTEFACTS = Path(os.environ.get("HELIOGRAPH_ARTEFACTS", "build/artefacts"))
"""Where screenshots go."""


class Tab:
    """One tab. `complaints` has what the browser's console logged, and what was refused."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._session: str | None = None
        self._reader = asyncio.ensure_future(self._read())

    async def open(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(TIMEOUT):
            return await answer

    async def evaluate(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Until an expression is true."""
        async with asyncio.timeout(TIMEOUT):
            while not (found := await self.evaluate(script)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return found

    async def key(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            shown = {"text": text} if text and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **shown
            )

    async def screenshot(self) -> bytes:
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    async def save(self, name: str) -> None:
        """Save a screenshot of the whole page in `ARTEFACTS`."""
        picture = await self.screenshot()

        def write() -> None:
            ARTEFACTS.mkdir(parents=True, exist_ok=True)
            (ARTEFACTS / f"{name}.png").write_bytes(picture)

        await asyncio.to_thread(write)

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def _read(self) -> None:
        async for message in self._socket:
            reported = message.json()
            if "id" in reported:
                answer = self._answers.pop(reported["id"])
                if "error" in reported:
                    answer.set_exception(RuntimeError(reported["error"]["message"]))
                else:
                    answer.set_result(reported["result"])
            elif reported["method"] == "Log.entryAdded":
                self.complaints.append(reported["params"]["entry"]["text"])
            elif reported["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(reported["params"]["exceptionDetails"]))


@contextlib.asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",  # a screenshot of the whole page has none
            "--disable-dev-shm-usage",
            "--remote-debugging-port=0",
            f"--user-data-dir={directory}",
            "about:blank",
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            url = await _debugger(process)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(url, max_msg_size=0) as socket,
            ):
                made = Tab(socket)
                try:
                    await made.open()
                    yield made
                finally:
                    await made.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _debugger(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT):
        while line := (await process.stderr.readline()).decode(errors="replace"):
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                return found[1]
    raise RuntimeError("Chromium ended")


async def no_axe_findings(page: Tab) -> None:
    """No finding of axe-core."""
    source = resources.files("axe_core_python") / "axe.min.js"
    await page.evaluate(f"{source.read_text()}; true")
    await page.evaluate("axe.run().then((found) => { window.axeFound = found.violations; }); true")
    await page.until("window.axeFound !== undefined")
    found = await page.evaluate(
        "axeFound.map((item) => `${item.id}: ${item.nodes.map((node) => node.html).join(' ')}`)"
    )
    assert found == []
