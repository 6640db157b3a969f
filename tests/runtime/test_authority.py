import asyncio
import ssl
from pathlib import Path

from heliograph.runtime.authority import Authority


async def _names_accepted(context: ssl.SSLContext, ca: Path, *names: str) -> list[str]:
    """Connect once for each name with a client that trusts only `ca`, and is strict."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    accepted = []
    async with server:
        for name in names:
            try:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=client, server_hostname=name
                )
            except ssl.SSLCertVerificationError:
                continue
            accepted.append(name)
            writer.close()
    return accepted


async def test_strict_clients_accept_its_servers_under_their_names(tmp_path: Path) -> None:
    context = Authority(tmp_path).server_context("push.example", "127.0.0.1")
    names = ("push.example", "127.0.0.1", "other.example")
    accepted = await _names_accepted(context, tmp_path / "ca.crt", *names)
    assert accepted == ["push.example", "127.0.0.1"]


async def test_it_is_kept_between_starts(tmp_path: Path) -> None:
    first = Authority(tmp_path).file.read_bytes()
    again = Authority(tmp_path)
    assert again.file.read_bytes() == first
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600
    accepted = await _names_accepted(again.server_context("a.example"), again.file, "a.example")
    assert accepted == ["a.example"]
