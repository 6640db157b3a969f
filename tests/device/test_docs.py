"""docs/device.md says what the machines do, and its example runs."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.device.edges import edges

PAGE = (Path(__file__).parents[2] / "docs" / "device.md").read_text()
EDGES = edges()


def diagram(heading: str) -> str:
    found = re.search(rf"### {re.escape(heading)}\n.*?```mermaid\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, heading
    return found[1]


@pytest.mark.parametrize("heading", EDGES)
def test_a_diagram_has_every_change_and_no_other(heading: str) -> None:
    drawn = set(re.findall(r"(\w+) --> (\w+):", diagram(heading)))
    assert drawn == EDGES[heading]


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_what_the_example_prints() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", found[1]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().splitlines()[-1] == "Bob | Meet at noon. | 1"
