"""What the runbook promises of a full disk, on one that is really full."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heliograph.crypto.keys import generate_key_pair
from heliograph.transport.client import Client
from heliograph.transport.errors import RequestRefused
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import decode_address
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from heliograph.wire.table import PING, PONG
from tests.smp.support import Peer, Queue, create

TIMEOUT = 40
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from heliograph.cli.main import main; sys.exit(main())",
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one of our own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a small disk")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], check=False)
    if made.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@contextmanager
def running(kind: str, directory: Path, disk: Path) -> Iterator[str]:
    """A router whose store is on the disk; gives its address."""
    environment = {name: value for name, value in os.environ.items() if "HELIOGRAPH" not in name}
    environment[f"HELIOGRAPH_{kind.upper()}_STORE_URL"] = f"sqlite:///{disk}/{kind}.db"
    initial = [*COMMAND, kind, "init", "--dir", str(directory), "--port", "0"]
    subprocess.run(initial, check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(
        [*COMMAND, kind, "start", "--dir", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            line = process.stdout.readline()
            assert line.startswith("ready ")
            yield line.removeprefix("ready ").strip()
            assert process.poll() is None, "it ended"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT)


def fill(disk: Path) -> Path:
    """Until there is no room for another byte."""
    file = disk / "filler"
    with file.open("wb", buffering=0) as filler:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError:
                continue
    return file


def diagnosis(directory: Path, store: str) -> str:
    environment = {**os.environ, f"HELIOGRAPH_{directory.name.upper()}_STORE_URL": store}
    done = subprocess.run(
        [*COMMAND, "doctor", "--dir", str(directory)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env=environment,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_messaging_router(disk: Path, tmp_path: Path) -> None:
    with running("smp", tmp_path / "smp", disk) as address:
        peer = Peer()
        peer.client = await Client.connect(decode_address(address), on_push=peer.received)
        queue = await create(peer, subscribe=False)
        assert await queue.send(peer, b"before") == smp.OK()
        filler = fill(disk)
        answers = [await queue.send(peer, b"x" * 10_000) for _ in range(3)]
        assert all(isinstance(answer, smp.ERR) for answer in answers)
        assert await peer.client.request(PING()) == PONG()
        reported = await asyncio.to_thread(diagnosis, tmp_path / "smp", f"sqlite:///{disk}/smp.db")
        assert "PROBLEM  disk: the store has 0 MB of free space" in reported
        filler.unlink()
        await until_accepted(queue, peer, b"after")
        assert await queue.receive_all(peer) == [b"before", b"after"]
        await peer.close()


async def until_accepted(queue: Queue, peer: Peer, body: bytes) -> None:
    """It recovers by itself, in a moment."""
    async with asyncio.timeout(TIMEOUT):
        while await queue.send(peer, body) != smp.OK():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_notification_router(disk: Path, tmp_path: Path) -> None:
    with running("ntf", tmp_path / "ntf", disk) as address:
        client = await Client.connect(decode_address(address))
        await register(client)
        filler = fill(disk)
        refusals = set()
        for _ in range(3):
            with pytest.raises(RequestRefused) as refused:
                await register(client)
            refusals.add(refused.value.error)
        assert refusals == {ErrorCode.INTERNAL}
        assert await client.request(PING()) == PONG()
        filler.unlink()
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    await register(client)
                    break
                except RequestRefused:
                    await asyncio.sleep(0.1)
        await client.close()


async def register(client: Client) -> None:
    keys = generate_key_pair(Algorithm.X25519)
    device = APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")
    await client.request(ntf.TNEW(device, keys.public, keys.public), b"", keys.private)


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.skipif(os.geteuid() == 0, reason="the tests above have run")
def test_as_root_of_a_namespace() -> None:
    """For a user who may have one."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace can be had here")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA"]
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "pytest", *options, __file__],
        capture_output=True,
        text=True,
        timeout=340,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout
