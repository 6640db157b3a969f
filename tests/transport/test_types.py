"""The type checker knows the response of each command: `mypy` runs on a few lines."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.protocols import NTF, SMP
from heliograph.wire import ntf, smp
from heliograph.wire.requests import decode_requests

async def ask(client: Client) -> None:
    reveal_type(await client.request(ntf.TCHK()))
    reveal_type(await client.request(smp.GET()))
    reveal_type(await client.request_many([ClientRequest(smp.NSUB())]))
    reveal_type(NTF.commands.decode(b"PING", 3))
    await client.request("PING")
    await client.request(ntf.PONG())
    SMP.responses.encode(ntf.TCHK(), 19)
"""

EXPECTED = [
    'Revealed type is "heliograph.wire.ntf.commands.TKN"',
    'Revealed type is "heliograph.wire.smp.queues.MSG | heliograph.wire.table.OK"',
    (
        'Revealed type is "list[heliograph.wire.smp.subscriptions.SOK | heliograph.wire.table.OK'
        ' | heliograph.transport.errors.ClientError]"'
    ),
    'Revealed type is "heliograph.wire.ntf.commands.TNEW | ',
    'Argument 1 to "request" of "Client" has incompatible type "str"',
    'Argument 1 to "request" of "Client" has incompatible type "PONG"',
    'Argument 1 to "encode" of "Table" has incompatible type "TCHK"',
]


@pytest.mark.slow
def test_requests_have_the_type_of_their_command(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--no-pretty"]
    checked = subprocess.run(
        [*command, "--config-file=", str(program)],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    lines = [line for line in checked.stdout.splitlines() if line.startswith("program.py:")]
    assert len(lines) == len(EXPECTED), checked.stdout + checked.stderr
    for line, expected in zip(lines, EXPECTED, strict=True):
        assert expected in line
