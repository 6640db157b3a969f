"""Checks over the network: clients reach this router, and it reaches messaging routers."""

import asyncio
import errno
import socket
import ssl
import time
from dataclasses import replace

from heliograph.crypto.certificates import certificates_from_pem
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.doctor.findings import AsyncFindings, Finding, good, note, problem, warning
from heliograph.doctor.store import NoStore, opened
from heliograph.doctor.subject import Subject
from heliograph.runtime.errors import IdentityError
from heliograph.runtime.identity import SERVER_CERTIFICATE, load_identity
from heliograph.runtime.listening import is_wildcard, refusal
from heliograph.runtime.process import running_address
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import ClientError
from heliograph.wire.addresses import HostKind, ServerAddress, decode_address
from heliograph.wire.errors import WireError
from heliograph.wire.table import PING

__all__ = ["check_listening", "check_names", "reach_smp_routers"]

TIMEOUT = 10.0
MAX_ROUTERS = 100
MAX_CONCURRENT_CHECKS = 20
MAX_NAMED = 5


async def check_listening(subject: Subject) -> AsyncFindings:
    """Check that the router answers with the certificate on disk, or that its port is free."""
    running = running_address(subject.directory)
    if running is None:
        yield _port_finding(subject)
        return
    address = decode_address(running)
    trouble = await _ping(address, ClientConfig())
    if trouble is not None:
        yield problem(
            "running",
            f"the router runs and does not answer at {address.hosts[0]}:{address.port}: {trouble}",
            "see its log; a proxy or a firewall may block it, or the name may mean another host",
        )
        return
    yield good("running", f"the router answers at {address.hosts[0]}:{address.port}")
    shown = await asyncio.to_thread(_shown_certificate, address)
    if shown is not None and shown != _own_certificate(subject):
        yield warning(
            "certificate",
            f"the router shows another certificate than {SERVER_CERTIFICATE}",
            "restart it: it was started before the rotation",
        )


def _port_finding(subject: Subject) -> Finding:
    listen = subject.config.listen
    if listen.port:
        bind = listen.bind_address
        family = socket.AF_INET6 if bind is not None and ":" in bind else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((bind or "", listen.port))
                sock.listen(1)
            except OSError as exc:
                what, advice = refusal(exc, bind, listen.port, "[listen]")
                if exc.errno == errno.EACCES:
                    return note("running", what, "the systemd unit grants it")
                return problem("running", what, advice)
    return note("running", "the router does not run", f"start it: {subject.command('start')}")


def _shown_certificate(address: ServerAddress) -> bytes | None:
    """Describe the certificate; `Client` has verified it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    target = (address.hosts[0].text, int(address.port or "443"))
    try:
        with (
            socket.create_connection(target, TIMEOUT) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return secure.getpeercert(binary_form=True)
    except OSError:
        return None


def _own_certificate(subject: Subject) -> bytes | None:
    try:
        return load_identity(subject.directory, time.time()).credentials.chain[0]
    except IdentityError:
        file = subject.directory / SERVER_CERTIFICATE
        return certificates_from_pem(file.read_bytes())[0] if file.exists() else None


async def check_names(subject: Subject) -> AsyncFindings:
    """Check that the names in the address resolve."""
    loop = asyncio.get_running_loop()
    for host in subject.config.listen.hosts:
        if is_wildcard(host):
            yield problem(
                "address",
                f"{host} is no address that clients could use",
                'set [listen] host to the name of this machine, and bind = "*"',
            )
        elif host.kind is HostKind.DOMAIN:
            if host.text.endswith(".onion"):
                continue
            try:
                async with asyncio.timeout(TIMEOUT):
                    await loop.getaddrinfo(host.text, None)
            except OSError:  # a time-out is one
                yield problem(
                    "address",
                    f"{host.text} is not a name that can be resolved here",
                    "make a DNS record for it: clients look the router up by this name",
                )
            else:
                yield good("address", f"{host.text} can be resolved")


async def reach_smp_routers(subject: Subject, *, show_hosts: bool = False) -> AsyncFindings:
    """Check that the messaging routers with most subscriptions answer with their identity."""
    config = subject.ntf
    if config is None:
        return
    try:
        with opened(subject) as dialect:
            rows = Transaction(dialect).query(
                "SELECT r.server_id, r.address, COUNT(*) FROM servers r JOIN subscriptions s"
                " ON s.server_id = r.server_id GROUP BY r.server_id, r.address"
                " ORDER BY COUNT(*) DESC, r.server_id LIMIT ?",
                (MAX_ROUTERS,),
            )
    except (NoStore, DatabaseError):
        return  # `check_store` reports it
    if not rows:
        yield note("messaging routers", "no device has a subscription yet")
        return
    client = replace(
        config.settings().subscriber.client, connect_timeout=TIMEOUT, handshake_timeout=TIMEOUT
    )
    limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

    async def ask(text: str) -> str | None:
        async with limit:
            try:
                return await _ping(decode_address(text), client)
            except WireError:
                return "its address cannot be read"

    troubles = await asyncio.gather(*(ask(address) for _, address, _ in rows))
    down = [
        (_name(server_id, address, config.subscriptions.own_domains, show=show_hosts), trouble)
        for (server_id, address, _), trouble in zip(rows, troubles, strict=True)
        if trouble is not None
    ]
    if not down:
        yield good("messaging routers", f"{len(rows)} asked, all answer")
        return
    named = "; ".join(f"{name}: {trouble}" for name, trouble in down[:MAX_NAMED])
    text = f"{len(down)} of {len(rows)} cannot be reached: {named}"
    if len(down) == len(rows):
        yield problem(
            "messaging routers", text, "all of them: look at this machine's network, proxy and DNS"
        )
    else:
        yield warning(
            "messaging routers",
            text,
            "the router keeps trying, and they keep what they have for it; --show-hosts names them",
        )


async def _ping(address: ServerAddress, config: ClientConfig) -> str | None:
    """Return None if it answers, else the reason."""
    try:
        async with asyncio.timeout(2 * TIMEOUT):
            async with Client.connect(address, config) as client:
                await client.request(PING())
    except (ClientError, TimeoutError) as exc:
        return type(exc).__name__
    return None


def _name(server_id: int, address: str, own_domains: tuple[str, ...], *, show: bool) -> str:
    """Return the name of an own server, and a number for others unless asked."""
    try:
        host = decode_address(address).hosts[0].text
    except WireError:
        return f"number {server_id}"
    own = any(host == domain or host.endswith(f".{domain}") for domain in own_domains)
    return host if own or show else f"number {server_id}"
