"""Every example in Python is run."""

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.sim.pong import PongRouter
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.loop import run
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.primitives import b64encode

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"agent.md": "tests/agent/test_example.py"}
"""Pages whose examples another test runs, with the test."""

PLACEHOLDER = "ntf://<fingerprint>@ntf.example.com"


def examples() -> list[tuple[str, str]]:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, code in enumerate(
            re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        ):
            if page.name not in ELSEWHERE:
                found.append((f"{page.name}-{number + 1}", code))
    return found


EXAMPLES = examples()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
    for test in ELSEWHERE.values():
        assert (ROOT / test).exists()


@pytest.mark.parametrize("code", [code for _, code in EXAMPLES], ids=[name for name, _ in EXAMPLES])
def test_example(code: str) -> None:
    """One that needs a router gets one."""
    if PLACEHOLDER in code:
        assert run(_with_a_router(code)) == "PONG()\n"
    else:
        _run(code)


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _with_a_router(code: str) -> str:
    now = time.time()
    authority = create_authority("NTF server CA", now)
    identity = ServerIdentity.of(issue_leaf(authority, "localhost", now), now)
    listener = Listener(NTF, identity, PongRouter())
    port = await listener.start("127.0.0.1", 0)
    address = f"ntf://{b64encode(identity.fingerprint)}@127.0.0.1:{port}"
    try:
        return await asyncio.to_thread(_run, code.replace(PLACEHOLDER, address))
    finally:
        await listener.close()
