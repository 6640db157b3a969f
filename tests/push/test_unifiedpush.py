"""Web Push to a real UnifiedPush server: Prosody's, with an XMPP client as the distributor.

It needs Debian's packages prosody and prosody-modules, and is skipped without them.
"""

import asyncio
import contextlib
import os
import shutil
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, XMLPullParser

import pytest

from heliograph.crypto.certificates import certificates_to_pem, issue_web_leaf
from heliograph.crypto.p256 import P256Key
from heliograph.crypto.webpush import decrypt
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Accepted, DeviceTokenInvalid
from heliograph.push.webpush import WebPushConfig, WebPushProvider
from heliograph.runtime.authority import Authority
from heliograph.wire.ntf.push import decode_push
from heliograph.wire.ntf.tokens import InvalidReason, WPDeviceToken
from tests.ports import steady_port
from tests.push.support import closing, delivery
from tests.push.test_webpush import AUTH, DEVICE_KEY, MESSAGE, VAPID_KEY, VERIFICATION
from tests.waiting import eventually

PROSODY = shutil.which("prosody")
MODULE = Path("/usr/lib/prosody/modules/mod_unified_push/mod_unified_push.lua")

pytestmark = pytest.mark.skipif(
    PROSODY is None or not MODULE.exists(),
    reason="there is no Prosody with mod_unified_push on this machine",
)

XMLNS = "http://gultsch.de/xmpp/drafts/unified-push"
APPLICATION, INSTANCE = (b64encode(bytes([n]) * 32).decode() for n in (1, 2))
HASHED = "application", "instance"
CONFIG = """\
run_as_root = true
daemonize = false
data_path = "{directory}"
pidfile = "{directory}/prosody.pid"
log = {{ warn = "{directory}/prosody.log" }}
modules_enabled = {{ "saslauth", "disco", "unified_push" }}
modules_disabled = {{ "admin_socket", "s2s", "s2s_auth_certs", "offline" }}
authentication = "anonymous"
c2s_require_encryption = false
c2s_ports = {{ {xmpp} }}
c2s_interfaces = {{ "127.0.0.1" }}
c2s_direct_tls_ports = {{ }}
http_ports = {{ }}
https_ports = {{ {https} }}
https_interfaces = {{ "127.0.0.1" }}
https_certificate = "{directory}/server.crt"
https_key = "{directory}/server.key"
ssl = {{ certificate = "{directory}/server.crt", key = "{directory}/server.key" }}
http_external_url = "https://localhost:{https}/"
unified_push_backend = "jwt" -- an anonymous host stores nothing
unified_push_secret = "of this test"
VirtualHost "localhost"
"""


class Distributor:
    """What a distributor on the phone does: registers apps, and passes pushes on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser: XMLPullParser[Element] = XMLPullParser(["start", "end"])
        self._depth = 0

    async def log_in(self) -> None:
        await self._open_stream()
        auth = "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='ANONYMOUS'/>"
        assert (await self._ask(auth)).tag.endswith("success")
        await self._open_stream()
        bind = "<iq type='set' id='b'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/></iq>"
        assert (await self._ask(bind)).get("type") == "result"

    async def register(self) -> str:
        """Return the endpoint that the server made for an app."""
        wanted = f"<register xmlns='{XMLNS}' application='{APPLICATION}' instance='{INSTANCE}'/>"
        answer = await self._ask(f"<iq type='set' to='localhost' id='r'>{wanted}</iq>")
        return answer[0].attrib["endpoint"]

    async def receive(self) -> bytes:
        """Return the next push, and confirm it."""
        found = await self._next()
        assert [found[0].get(name) for name in HASHED] == [APPLICATION, INSTANCE]
        number = found.attrib["id"]
        self._writer.write(f"<iq type='result' to='localhost' id='{number}'/>".encode())
        return b64decode(found[0].text or "")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _open_stream(self) -> None:
        self._parser, self._depth = XMLPullParser(["start", "end"]), 0
        features = await self._ask(
            "<stream:stream to='localhost' version='1.0' xmlns='jabber:client'"
            " xmlns:stream='http://etherx.jabber.org/streams'>"
        )
        assert features.tag.endswith("features")

    async def _ask(self, text: str) -> Element:
        self._writer.write(text.encode())
        return await self._next()

    async def _next(self) -> Element:
        """Return the next stanza: an element directly inside the stream."""
        async with asyncio.timeout(30):
            while True:
                for found in self._parser.read_events():
                    event, element = cast(tuple[str, object], found)
                    self._depth += 1 if event == "start" else -1
                    if event == "end" and self._depth == 1:
                        assert isinstance(element, Element)
                        return element
                data = await self._reader.read(65536)
                assert data, "the server closed the connection"
                self._parser.feed(data)


def _write_files(directory: Path, xmpp: int, https: int) -> bytes:
    """Write the server's configuration and certificate, and return those to trust."""
    authority = Authority(directory / "ca")
    key = P256Key.generate()
    leaf = issue_web_leaf(
        authority._certificate, authority._key, ("localhost",), key, time.time() - 3600
    )
    (directory / "server.crt").write_bytes(certificates_to_pem([leaf]))
    (directory / "server.key").write_bytes(key.to_pem())
    text = CONFIG.format(directory=directory, xmpp=xmpp, https=https)
    (directory / "prosody.cfg.lua").write_text(text)
    return authority.file.read_bytes()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[int, bytes]]:
    assert PROSODY is not None
    xmpp, https = steady_port(), steady_port()
    trusted = _write_files(tmp_path, xmpp, https)
    process = await asyncio.create_subprocess_exec(
        PROSODY, "-F", "--config", str(tmp_path / "prosody.cfg.lua"),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    try:

        async def listens() -> bool:
            assert process.returncode is None, (tmp_path / "prosody.log").read_text()
            for port in (xmpp, https):
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    return False
                writer.close()
            return True

        await eventually(listens)
        yield xmpp, trusted
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def test_a_real_unifiedpush_server(server: tuple[int, bytes]) -> None:
    """Pushes arrive and can be opened; an unknown endpoint is reported as such."""
    port, trusted = server
    distributor = Distributor(*await asyncio.open_connection("127.0.0.1", port))
    await distributor.log_in()
    endpoint = urlsplit(await distributor.register())
    assert endpoint.hostname is not None
    device = WPDeviceToken(
        endpoint.hostname, str(endpoint.port), endpoint.path, AUTH, DEVICE_KEY.public
    )
    http = HttpSettings(connections=1, http2_only=False, ca=trusted)
    config = WebPushConfig(VAPID_KEY, "mailto:ops@example.com", allow_private=True, http=http)
    async with closing(WebPushProvider(config)) as provider:
        for push in (VERIFICATION, MESSAGE):
            sending = provider.send(delivery(device, push))
            outcome, body = await asyncio.gather(sending, distributor.receive())
            assert outcome == Accepted()
            assert decode_push(decrypt(body, DEVICE_KEY, AUTH)) == push
        unknown = replace(device, path=f"{device.path}x")
        outcome = await provider.send(delivery(unknown, MESSAGE))
        assert outcome == DeviceTokenInvalid(InvalidReason.UNREGISTERED)
    await distributor.close()
