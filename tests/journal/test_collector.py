"""A collector on loopback, real TLS, and a journal that is shipped to it."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.cli.main import main
from heliograph.journal import collector, connections, shipping
from heliograph.journal.collector import Collector, Tokens
from heliograph.journal.events import DeviceShown
from heliograph.journal.heads import encode_head, head_name
from heliograph.journal.readers import (
    ACKNOWLEDGED,
    Acknowledged,
    encode_acknowledged,
    read_acknowledged,
)
from heliograph.journal.shipping import HttpTarget, SegmentRefused, Shipper, open_target
from heliograph.journal.storage.reader import read_events
from heliograph.journal.storage.writer import JournalWriter
from heliograph.runtime.errors import StartError
from tests.journal.support import IDENTITY, files, heads, numbers
from tests.journal.test_shipping import journal

TOKEN = "t" * 32
PHONES = "p" * 32


@asynccontextmanager
async def collecting(directory: Path, limit: int = 1 << 30) -> AsyncIterator[str]:
    os.makedirs(directory, exist_ok=True)
    started = Collector(directory, Tokens(TOKEN, PHONES), limit)
    port = await started.start("127.0.0.1", 0, None)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await started.close()


async def test_a_journal_is_collected_once(tmp_path: Path) -> None:
    source, target = journal(tmp_path / "journal", 1, 2), tmp_path / "there"
    async with collecting(target) as url:

        def ship() -> int:
            return Shipper(source, HttpTarget(url, TOKEN)).ship()

        assert await asyncio.to_thread(ship) == 1
        assert await asyncio.to_thread(ship) == 0
        journal(source, 3)
        assert await asyncio.to_thread(ship) == 1
    assert numbers(target) == [1, 2, 3]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(target, ".parquet"))


def columns(segment: Path) -> list[Any]:
    group = pq.read_metadata(segment).row_group(0)
    return [group.column(number) for number in range(group.num_columns)]


async def test_what_is_no_segment_is_refused(tmp_path: Path) -> None:
    [path] = files(journal(tmp_path / "journal", 1), ".parquet")
    data = path.read_bytes()
    name = f"{IDENTITY.router}/{path.name}"
    target = tmp_path / "there"
    async with collecting(target) as url, aiohttp.ClientSession() as session:

        async def put(name: str, data: bytes, token: str = TOKEN) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.put(
                f"{url}/v1/segments/{name}", data=data, headers=headers
            ) as answer:
                return answer.status

        assert await put(name, data, "wrong") == 401
        assert await put(name, data, "") == 401
        assert await put(name, data[:-10]) == 400
        for column in columns(path):  # the last byte of its last page
            first = column.dictionary_page_offset or column.data_page_offset
            last = first + column.total_compressed_size - 1
            damaged = data[:last] + bytes([data[last] ^ 0xFF]) + data[last + 1 :]
            assert await put(name, damaged) == 400, column.path_in_schema
        assert await put(f"{IDENTITY.router}/manifest.json", data) == 400
        assert await put("..%2f..%2fetc/1-00000001.parquet", data) in (400, 404)
        assert not list(target.rglob("*.*"))
        assert await put(name, data) == 201
        assert await put(name, data) == 200
        [other] = files(journal(tmp_path / "other", 2, 3, 4), ".parquet")
        assert await put(name, other.read_bytes()) == 400  # of another run
        assert await put(f"fedcba9876543210/{path.name}", data) == 400  # of another router
        assert await put(name, data, PHONES) == 403
        table = pq.read_table(path)
        same = table.set_column(
            table.column_names.index("count"), "count", pa.array([9], pa.int64())
        )
        pq.write_table(same, tmp_path / "same")
        assert await put(name, (tmp_path / "same").read_bytes()) == 409
        pq.write_table(table.slice(0, 0), tmp_path / "empty")
        assert await put(name, (tmp_path / "empty").read_bytes()) == 400
    assert numbers(target) == [1]


async def test_heads_are_collected_after_the_segments_they_count(tmp_path: Path) -> None:
    source, target = journal(tmp_path / "journal", 1, 2), tmp_path / "there"
    [head] = heads(source)
    name, data = head_name(head.router, head.boot), encode_head(head)
    async with collecting(target) as url, aiohttp.ClientSession() as session:

        async def put(name: str, data: bytes, token: str = TOKEN) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.put(f"{url}/v1/heads/{name}", data=data, headers=headers) as answer:
                return answer.status

        assert await put(name, data, "wrong") == 401
        assert await put(name, data, PHONES) == 403
        assert await put(name, b"{}") == 400
        assert await put(name, data + b" " * 5000) == 400
        assert await put(name.replace("-", "-1"), data) == 400
        assert await put("..%2fetc-1.json", data) in (400, 404)
        assert not list(target.rglob("*.*"))
        shipper = Shipper(source, HttpTarget(url, TOKEN))
        assert await asyncio.to_thread(shipper.ship) == 1
        assert heads(target) == [head]
        older = replace(head, seq=1, ended=False)
        assert await put(name, encode_head(older)) == 409
        assert heads(target) == [head]
        again = replace(head, at=head.at + 1)
        assert await put(name, encode_head(again)) == 201
        forged = replace(head, part="device", seq=9)
        assert await put(name, encode_head(forged), PHONES) == 409
        assert heads(target) == [again]
        # A phone that came first does not keep a router from its own run.
        other = head_name(head.router, head.boot + 1)
        assert await put(other, encode_head(replace(forged, boot=head.boot + 1)), PHONES) == 201
        own = replace(head, boot=head.boot + 1)
        assert await put(other, encode_head(own)) == 201
        assert heads(target) == [again, own]
        assert await asyncio.to_thread(shipper.ship) == 0
        assert await asyncio.to_thread(Shipper(source, HttpTarget(url, TOKEN)).ship) == 0
    assert heads(target) == [head, own]


async def test_the_number_of_heads_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "MAX_HEADS", 1)
    async with collecting(tmp_path / "there") as url:
        first = Shipper(journal(tmp_path / "journal", 1), HttpTarget(url, TOKEN))
        await asyncio.to_thread(first.ship)
        journal(tmp_path / "journal", 2)
        with pytest.raises(StartError, match="507: there are 1 heads already"):
            await asyncio.to_thread(first.ship)


async def test_phones_send_what_phones_write(tmp_path: Path) -> None:
    phone = JournalWriter(tmp_path / "phone", IDENTITY, "device")
    phone.record(DeviceShown(notification=bytes(24)))
    phone.close()
    async with collecting(tmp_path / "there") as url:
        shipper = Shipper(tmp_path / "phone", HttpTarget(url, PHONES))
        assert await asyncio.to_thread(shipper.ship) == 1
        [path] = files(tmp_path / "phone", ".parquet")
        made = pq.read_table(path)
        kind = pa.array(["push_accepted"] * len(made))
        pq.write_table(made.set_column(made.column_names.index("kind"), "kind", kind), path)
        name = f"{IDENTITY.router}/{path.stem[:-1]}9.parquet"
        with pytest.raises(OSError, match="403: the token of phones allows only"):
            await asyncio.to_thread(HttpTarget(url, PHONES).put, name, path.read_bytes())
        assert await asyncio.to_thread(HttpTarget(url, TOKEN).put, name, path.read_bytes())
    event = next(read_events(tmp_path / "there"))
    assert (event["part"], event["kind"]) == ("device", "device_shown")


async def test_routers_do_not_wait_for_slow_phones(tmp_path: Path) -> None:
    source = journal(tmp_path / "journal", 1)
    async with collecting(tmp_path / "there") as url, AsyncExitStack() as stack:
        for _ in range(collector.MAX_CONCURRENT):
            _, slow = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            stack.callback(slow.close)
            slow.write(
                f"PUT /v1/segments/{IDENTITY.router}/1-00000001.parquet HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {PHONES}\r\nContent-Length: 1000\r\n\r\n".encode()
            )
        async with asyncio.timeout(collector.RECEIVE_SECONDS / 2):
            assert await asyncio.to_thread(Shipper(source, HttpTarget(url, TOKEN)).ship) == 1


async def wait_cut(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            await reader.read()


async def test_strangers_are_bounded_and_routers_are_served_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that send nothing would take all descriptors, and last for ever."""
    monkeypatch.setattr(connections, "MAX_STRANGERS", 5)
    source = journal(tmp_path / "journal", 1)
    async with collecting(tmp_path / "there") as url, AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            stack.callback(writer.close)
            readers.append(reader)
        for reader in readers[:3]:
            await wait_cut(reader)
        assert await asyncio.to_thread(Shipper(source, HttpTarget(url, TOKEN)).ship) == 1
        assert not any(reader.at_eof() for reader in readers[4:])


@pytest.mark.parametrize("is_shown", [False, True])
async def test_who_shows_no_token_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 1.0)
    token = PHONES if is_shown else "wrong"
    async with collecting(tmp_path / "there") as url, AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        stack.callback(writer.close)
        ask = f"GET /v1/acknowledged/{IDENTITY.router} HTTP/1.1\r\nHost: x\r\n"
        ask += f"Authorization: Bearer {token}\r\n\r\n"
        writer.write(ask.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404" if is_shown else b"HTTP/1.1 401")
        await asyncio.sleep(1.5)
        if is_shown:
            writer.write(ask.encode())
            async with asyncio.timeout(10):
                await reader.readuntil(b"HTTP/1.1 404")
        else:
            await wait_cut(reader)


async def test_who_does_not_finish_the_handshake_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.5)
    started = Collector(tmp_path, Tokens(TOKEN), 1 << 20)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    port = await started.start("127.0.0.1", 0, tls)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await wait_cut(reader)
    finally:
        writer.close()
        await started.close()


@pytest.mark.parametrize("column", ["reason", "notifications"])
async def test_a_small_segment_does_not_unpack_to_gigabytes(tmp_path: Path, column: str) -> None:
    """Its dictionary has one long text, which each of many events repeats."""
    [path] = files(journal(tmp_path / "journal", 1), ".parquet")
    table = pq.read_table(path)
    count = 10_000
    text = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), ["a" * 10**6])
    ends = pa.arange(0, count + 1).cast(pa.int32())
    values = text if column == "reason" else pa.ListArray.from_arrays(ends, text)
    many = pa.concat_tables([table.slice(0, 1)] * count).combine_chunks()
    many = many.set_column(many.column_names.index(column), column, values)
    pq.write_table(many, tmp_path / "many", compression="zstd", store_schema=False)
    data = (tmp_path / "many").read_bytes()
    assert len(data) < 1 << 20
    async with collecting(tmp_path / "there") as url:
        with pytest.raises(SegmentRefused, match="400: a text of a segment has at most 4096 bytes"):
            await asyncio.to_thread(
                HttpTarget(url, TOKEN).put, f"{IDENTITY.router}/{path.name}", data
            )


async def test_what_is_acknowledged_comes_back(tmp_path: Path) -> None:
    """The shipper tells the router, and sends it no more; the collector makes room with it."""
    source, target = journal(tmp_path / "journal", 1), tmp_path / "there"
    [path] = files(source, ".parquet")
    size = path.stat().st_size
    boot, number = map(int, path.stem.split("-"))
    async with collecting(target, limit=size * 3 // 2) as url:

        def ship() -> int:
            return Shipper(source, HttpTarget(url, TOKEN)).ship()

        assert await asyncio.to_thread(ship) == 1
        assert not files(source, ".json")
        acknowledged = encode_acknowledged(Acknowledged({boot: [(number, number)]}))
        (target / IDENTITY.router / ACKNOWLEDGED).write_bytes(acknowledged)
        assert await asyncio.to_thread(ship) == 0
        assert read_acknowledged(source / IDENTITY.router).has(boot, number)
        journal(source, 2)
        with pytest.raises(StartError, match="507: there is no room for it until"):
            await asyncio.to_thread(ship)  # the newest stays, though it was acknowledged
        path.unlink()
        [second] = files(source, ".parquet")
        (target / IDENTITY.router / f"{boot}-99999999.parquet").touch()
        assert await asyncio.to_thread(ship) == 1
        assert not (target / IDENTITY.router / path.name).exists()
        assert (target / IDENTITY.router / second.name).exists()


async def test_an_endless_answer_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shipping, "MAX_ANSWER", 5)
    source, target = journal(tmp_path / "journal", 1), tmp_path / "there"
    async with collecting(target) as url:
        shipper = Shipper(source, HttpTarget(url, TOKEN))
        await asyncio.to_thread(shipper.ship)
        acknowledged = encode_acknowledged(Acknowledged({1000: [(1, 1)]}))
        (target / IDENTITY.router / ACKNOWLEDGED).write_bytes(acknowledged)
        assert await asyncio.to_thread(shipper.ship) == 0
    assert f"acknowledgements of {IDENTITY.router} cannot be copied" in caplog.text
    assert not files(source, ".json")


async def test_there_is_a_limit(tmp_path: Path) -> None:
    source = journal(tmp_path / "journal", 1)
    async with collecting(tmp_path / "there", limit=100) as url:
        shipper = Shipper(source, HttpTarget(url, TOKEN))
        with pytest.raises(StartError, match="507: there is no room for it"):
            await asyncio.to_thread(shipper.ship)


def test_a_collector_asks_for_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartError, match="--token-file"):
        open_target("https://collector.example.org", None)
    (tmp_path / "token").write_text("short")
    words = ["journal", "collect", str(tmp_path / "there"), "--token-file", str(tmp_path / "token")]
    assert main(words) == 1
    assert "16 characters or more" in capsys.readouterr().err
    (tmp_path / "token").write_text(TOKEN)
    assert main([*words, "--listen", "0.0.0.0:0"]) == 1
    assert "--certificate and --key are needed" in capsys.readouterr().err
    assert main([*words, "--listen", "nowhere"]) == 1
    assert "name HOST:PORT" in capsys.readouterr().err


def test_the_command_with_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = journal(tmp_path / "journal", 1)
    certificate, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    make += ["-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make += ["-keyout", str(key), "-out", str(certificate), "-days", "2"]
    subprocess.run(make, check=True, capture_output=True)
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "heliograph", "journal", "collect", str(tmp_path / "there")]
    command += ["--listen", "localhost:0", "--token-file", str(token)]
    command += ["--certificate", str(certificate), "--key", str(key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().removeprefix("ready ").strip()
        assert url.startswith("https://localhost:")
        words = ["journal", "ship", str(source), "--to", url, "--token-file", str(token)]
        assert main(words) == 1  # nobody vouches for the certificate
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
        assert main([*words, "--authority", str(certificate)]) == 0
        (source / IDENTITY.router / "2-00000001.parquet").write_bytes(b"no segment")
        assert main([*words, "--authority", str(certificate)]) == 1
        assert "1 segments were refused, and are not at " in capsys.readouterr().err
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(20)
        process.stdout.close()
    assert process.returncode == 0
    assert numbers(tmp_path / "there") == [1]
