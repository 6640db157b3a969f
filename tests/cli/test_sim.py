import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.cli import main as cli
from heliograph.crypto.p256 import P256Key
from heliograph.push.apns import ApnsConfig, ApnsProvider
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Accepted
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from tests.push.support import CHECK, closing, delivery

READY = re.compile(r"ready (https://127\.0\.0\.1:\d+) control (http://127\.0\.0\.1:\d+) ca (/.+)\n")


def start(*arguments: str) -> "subprocess.Popen[str]":
    code = "import sys; from heliograph.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, "sim", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop(process: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("kind", "number", "files"),
    [
        ("apns", signal.SIGTERM, {"apns.p8", "apns.jsonl"}),
        ("fcm", signal.SIGINT, {"service-account.json", "fcm.jsonl"}),
        ("webpush", signal.SIGTERM, {"webpush.jsonl"}),
    ],
)
def test_start_and_stop(tmp_path: Path, kind: str, number: int, files: set[str]) -> None:
    process = start(kind, "--dir", str(tmp_path / "new"))
    assert process.stdout is not None
    match = READY.fullmatch(process.stdout.readline())
    code, errors = stop(process, number)
    assert match is not None
    assert Path(match[3]).read_bytes().startswith(b"-----BEGIN CERTIFICATE")
    assert files <= {path.name for path in (tmp_path / "new").iterdir()}
    assert (code, errors) == (0, "")


async def test_a_push(tmp_path: Path) -> None:
    key = P256Key.generate()
    (tmp_path / "key.p8").write_bytes(key.to_pem())
    process = start(
        *("apns", "--dir", str(tmp_path), "--key-file", str(tmp_path / "key.p8")),
        *("--topic", "topic", "--key-id", "key", "--team-id", "team", "--no-record"),
    )
    assert process.stdout is not None
    match = READY.fullmatch(process.stdout.readline())
    assert match is not None
    http = HttpSettings(ca=(tmp_path / "ca.crt").read_bytes())
    config = ApnsConfig(key.to_pem(), "key", "team", "topic", match[1], http=http)
    device = APNSDeviceToken(PushProvider.APNS_PROD, b"00ff")
    async with closing(ApnsProvider(config)) as provider:
        assert isinstance(await provider.send(delivery(device, CHECK)), Accepted)
    assert stop(process) == (0, "")
    assert not (tmp_path / "apns.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--key-file", "/nonexistent"],
        ["--key-file", __file__],
        ["--port", "1", "--host", "192.0.2.1"],
    ],
)
def test_failures_say_why(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sim", "apns", "--dir", str(tmp_path), *arguments]) == 1
    assert capsys.readouterr().err.startswith("heliograph sim: ")
