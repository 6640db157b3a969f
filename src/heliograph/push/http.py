"""HTTP connections to a provider: one request, one answer, or the reason why there was none.

Texts of wreq's exceptions contain the URL, and with it the device token: they end here.
"""

import asyncio
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol, TypedDict
from urllib.parse import unquote, urlsplit

import wreq
from wreq import exceptions
from wreq.header import HeaderMap
from wreq.redirect import Policy

MAX_ANSWER = 4096
MAX_TRIES = 3
MAX_RETRY_AFTER = 24 * 3600.0
REFRESH_INTERVAL = 1.0
IDLE_TIMEOUT = 3600.0
PING_INTERVAL = 60.0
PING_TIMEOUT = 15.0

# The server says that it has not looked at the request, or the request never left.
_NOT_PROCESSED = re.compile(
    r"kind: GoAway\(.*, NO_ERROR, Remote\)|REFUSED_STREAM, Remote|kind: Canceled"
)

_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.TimeoutError, "Timeout"),
    (exceptions.ProxyConnectionError, "ProxyFailed"),
    (exceptions.ConnectionError, "ConnectFailed"),
    (exceptions.TlsError, "TlsFailed"),
    (exceptions.ConnectionResetError, "ConnectionReset"),
    (Exception, "ConnectionLost"),
)


class NoAnswer(Exception):
    """The request got no answer; whether it was served is unknown. `reason` is one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class HeaderLookup(Protocol):
    """Headers of an answer, by their name in lower case."""

    def get(self, key: str, /) -> bytes | memoryview | None: ...


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of a provider. Only the start of a long body is kept."""

    status: int
    body: bytes
    headers: "HeaderLookup" = field(repr=False)

    def header(self, name: str) -> str | None:
        value = self.headers.get(name.lower())
        return None if value is None else str(value, "latin-1")

    @property
    def retry_after(self) -> float | None:
        """Return the seconds of `Retry-After`, from either form of the header."""
        value = self.header("retry-after")
        if value is None:
            return None
        if value.isascii() and value.isdigit():
            return min(float(value), MAX_RETRY_AFTER)
        try:
            delay = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
        return min(max(delay, 0.0), MAX_RETRY_AFTER)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    connections: int = 2
    share_of: Callable[[int], int] = int
    """Returns how many of these connections this process may have now."""
    timeout: float = 30.0
    connect_timeout: float = 10.0
    ca: bytes | None = None
    """PEM certificates to trust instead of the public ones."""

    http2_only: bool = True
    thread: str = "push"
    """Clients with the same name share a thread: hosts that clients chose have another."""

    client: str = "wreq"
    """The implementation: wreq, or h2."""

    proxy: str = field(default="", repr=False)
    """The URL of an HTTP or SOCKS 5 proxy, which resolves the names; wreq only."""


@dataclass(eq=False, slots=True)
class _Slot:
    """One HTTP/2 connection: a wreq client has at most one to a host."""

    client: wreq.Client
    created_at: float
    active: int = 0
    failed: bool = False
    is_used: bool = False


class Connections:
    """Several connections to one host; each request takes the one with the fewest in flight."""

    def __init__(
        self,
        settings: HttpSettings,
        pin: tuple[str, Sequence[IPv4Address | IPv6Address]] | None = None,
    ) -> None:
        """``pin`` is a host name and the only addresses to connect to for it."""
        self._settings = settings
        self._pin = pin
        self._roots = True if settings.ca is None else wreq.CertStore.from_pem_stack(settings.ca)
        self._slots = [self._slot() for _ in range(settings.connections)]
        self._usual: list[str] | None = None
        """Headers that all answers 200 of this host have had."""
        self._closed = False

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, read: bool = False
    ) -> HttpAnswer:
        """Send a request and return the answer. Raises only `NoAnswer` and `CancelledError`.

        The body of an answer 200 is kept only if it is to be ``read``. What a server leaves
        unprocessed when it says GOAWAY goes to a new connection by itself.
        """
        if self._pin is not None and _host(url) != self._pin[0]:
            raise NoAnswer("NotPinned")  # wreq would resolve any other spelling of the name
        for _ in range(MAX_TRIES):
            slot = self._choose()
            slot.active += 1
            try:
                response = await slot.client.post(url, headers=headers, body=body)
                status = response.status.as_int()
                if status == 200 and not self._has_usual_headers(response.headers):
                    slot.failed = True
                    raise NoAnswer("NoStatus")
                content = await _start_of_body(response) if status != 200 or read else b""
                return HttpAnswer(status, content, response.headers)
            except NoAnswer:
                raise
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed and task is not None and not task.cancelling():
                    raise NoAnswer("Closed") from None
                raise
            except Exception as exc:
                failure = exc
                if _NOT_PROCESSED.search(str(exc)) is None:
                    slot.failed = True
                    break
            finally:
                slot.active -= 1
        raise NoAnswer(next(name for kind, name in _FAILURES if isinstance(failure, kind)))

    def _choose(self) -> _Slot:
        """Return the least busy connection; drop those beyond this process's share."""
        share = self._settings.share_of(len(self._slots))
        for index in range(share, len(self._slots)):
            if self._slots[index].is_used:
                self._slots[index] = self._slot()  # what is in flight on the old one continues
        slot = min(self._slots[:share], key=lambda slot: slot.active)
        slot.is_used = True
        return slot

    def _has_usual_headers(self, headers: HeaderMap) -> bool:
        """Return whether an answer has one of the headers that all of this host's have had.

        wreq takes an answer without `:status`, which is none, for 200: this tells them apart.
        """
        if self._usual is None:
            names = headers.keys()
            self._usual = [str(name, "latin-1") for name in names]
        if not self._usual or headers.get(self._usual[0]) is not None:
            return True
        common = [name for name in self._usual if headers.get(name) is not None]
        if common:
            self._usual = common
        return bool(common)

    def refresh(self) -> None:
        """Replace the connections, but not again those that are new and did not fail.

        When one connection breaks, every request in flight on it calls this.
        """
        now = time.monotonic()
        for index, slot in enumerate(self._slots):
            if slot.failed or now - slot.created_at >= REFRESH_INTERVAL:
                self._slots[index] = self._slot()

    def close(self) -> None:
        self._closed = True
        for slot in self._slots:
            slot.client.close()

    def _slot(self) -> _Slot:
        settings = self._settings
        dns = wreq.DnsOptions(system_dns=True)
        if self._pin is not None:
            dns.add_resolve(*self._pin)
        client = wreq.Client(
            runtime=_runtime(settings.thread),
            http2_only=settings.http2_only,
            https_only=True,
            tls_verify=self._roots,
            dns_options=dns,
            **_proxy(settings.proxy),
            redirect=Policy.none(),
            timeout=timedelta(seconds=settings.timeout),
            connect_timeout=timedelta(seconds=settings.connect_timeout),
            pool_idle_timeout=timedelta(seconds=IDLE_TIMEOUT),
            http2_options=wreq.Http2Options(
                # APNs allows one stream until it has seen a token; its SETTINGS say the rest.
                initial_max_send_streams=1,
                keep_alive_interval=timedelta(seconds=PING_INTERVAL),
                keep_alive_timeout=timedelta(seconds=PING_TIMEOUT),
                keep_alive_while_idle=True,
            ),
            gzip=False,
            brotli=False,
            deflate=False,
            zstd=False,
        )
        return _Slot(client, time.monotonic())


class _ProxyArguments(TypedDict, total=False):
    no_proxy: bool
    proxies: list[wreq.Proxy]


def _proxy(url: str) -> _ProxyArguments:
    """Return the arguments for wreq; without a URL it must not look into the environment."""
    if not url:
        return {"no_proxy": True}
    parts = urlsplit(url)
    scheme = "socks5h" if parts.scheme == "socks5" else parts.scheme
    place = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.username is None:
        return {"proxies": [wreq.Proxy.all(place)]}
    username, password = unquote(parts.username), unquote(parts.password or "")
    return {"proxies": [wreq.Proxy.all(place, username=username, password=password)]}


def _host(url: str) -> str:
    return url.removeprefix("https://").partition("/")[0].partition(":")[0]


@functools.cache
def _runtime(name: str) -> wreq.Runtime:
    """Return a runtime of one thread, instead of one for each core."""
    return wreq.Runtime(workers=1, work_steal=False, thread_name=name)


async def _start_of_body(response: wreq.Response) -> bytes:
    content = bytearray()
    async with response.stream() as stream:
        async for chunk in stream:
            if isinstance(chunk, memoryview):
                content += chunk
            if len(content) >= MAX_ANSWER:
                break
    return bytes(content[:MAX_ANSWER])
