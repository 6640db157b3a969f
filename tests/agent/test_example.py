"""The example of the documentation, run as it stands."""

import asyncio
import re
import sys
from pathlib import Path

from tests.agent.support import Router

DOCUMENT = Path(__file__).parents[2] / "docs" / "agent.md"
MAX_LINES = 10


def example() -> str:
    [code] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return str(code)


async def test_it_says_hello(tmp_path: Path, router: Router) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        "-c",
        example(),
        str(router.address),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert (out, errors, process.returncode) == (b"hello\n", b"", 0)


def test_it_is_short() -> None:
    """Ten lines, not counting imports and empty ones."""
    lines = [line for line in example().splitlines() if line.strip()]
    code = [line for line in lines if not line.startswith(("import", "from"))]
    assert len(code) <= MAX_LINES
