import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.cli.main import main
from tests.faults.processes import HELIOGRAPH
from tests.ntf.support import NtfWorld, a_device, a_world

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[NtfWorld]:
    async with a_world(f"sqlite:///{tmp_path}/ntf.db", tmp_path) as world:
        yield world


async def start(world: NtfWorld, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*HELIOGRAPH, "ntf", "probe", "--address", str(world.address)),
        *("--smp", str(world.smp.address), *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_the_whole_path_with_the_simulator(world: NtfWorld) -> None:
    process = await start(world, "--apns", world.apns.simulator.control_url)
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert out.count(b" ms  ok\n") == 16


async def test_the_whole_path_with_the_pushes_of_a_device(world: NtfWorld) -> None:
    device = a_device()
    process = await start(world, "--token", f"apns_test {device.token.decode()}")
    assert process.stdin is not None
    assert process.stdout is not None
    after = 0
    for _ in range(2):
        [entry, *_] = await world.apns.simulator.record.wait_for(device.token.decode(), after, 60)
        after = entry.seq
        process.stdin.write(entry.body.encode() + b"\n")
    out = await process.stdout.read()
    assert await process.wait() == 0, out.decode()
    assert out.count(b" ms  ok\n") == 16


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--smp", "smp://x"], "--smp needs --apns or --token"),
        (["--apns", "http://127.0.0.1:1"], "they need --smp"),
        (["--address", "smp://x"], "--address: "),
    ],
)
def test_options_that_do_not_suit(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ntf", "probe", *options]) == 1
    assert problem in capsys.readouterr().err


def test_wrong_values(world_address: str, capsys: pytest.CaptureFixture[str]) -> None:
    token = ("--token", "apns_test 00")
    smp = world_address.replace("ntf://", "smp://")
    for options, problem in (
        (("--smp", "smp://x", *token), "--smp: "),
        (("--smp", world_address, *token), "--smp: must begin with smp://"),
        (("--smp", smp, "--token", "nothing"), "--token: "),
        (("--smp", smp, "--apns", "nothing"), "--apns is the control URL"),
    ):
        assert main(["ntf", "probe", "--address", world_address, *options]) == 1
        assert problem in capsys.readouterr().err


@pytest.fixture
def world_address() -> str:
    return f"ntf://{'A' * 43}=@127.0.0.1:9"
