"""Router addresses, text and binary: `smp://<fingerprint>[:password]@host1[,host2...][:port]`.

The text of a notification router may end with `/?vapid=<key>`, the key that apps subscribe with at
a Web Push service, as in the reference's Web Push branch; other parameters are for later versions.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import (
    Codec,
    Reader,
    b64decode,
    b64encode,
    encode_short,
    list_of,
)


class Scheme(Enum):
    SMP = "smp"
    NTF = "ntf"


class HostKind(Enum):
    IPV4 = "IPv4"
    IPV6 = "IPv6"
    ONION = "onion"
    DOMAIN = "domain"


FINGERPRINT_SIZE = 32
MAX_PORT = 65535
DEFAULT_PORTS = {Scheme.SMP: "5223", Scheme.NTF: "443"}

_PASSWORD_BYTES = (set(range(0x21, 0x7F)) | set(range(0xA1, 0x100))) - {0xAD, *b"@:/"}

_IPV4 = re.compile(r"0*([0-9]{1,3})\.0*([0-9]{1,3})\.0*([0-9]{1,3})\.0*([0-9]+)")
_IPV6 = re.compile(r"\[([^\]%]+)\]|([0-9A-Fa-f:]+(?:\.[0-9]+){3}|[0-9A-Fa-f:]+)")
_ONION = re.compile(r"[a-z0-9]*\.onion")
_DOMAIN = re.compile(r"[^:#,;/ \n\r\t\ud800-\udfff]+")
_PORT = re.compile(r":([0-9]{1,10})")
_ADDRESS = re.compile(
    r"(?P<scheme>\w+)://(?P<fingerprint>[A-Za-z0-9_-]+=*)"
    r"(:(?P<password>[^@\ud800-\udfff]+))?@(?P<rest>.+)",
    re.DOTALL,
)

_PARAMETERS = re.compile(r"(?P<address>ntf://[^/]+)/\?(?P<list>[^?]*)", re.DOTALL)
VAPID_KEY_SIZE = 65


@dataclass(frozen=True, slots=True)
class Host:
    kind: HostKind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A router's address. An empty `port` is the default; `fingerprint` identifies the router."""

    scheme: Scheme
    hosts: tuple[Host, ...]
    port: str
    fingerprint: bytes
    password: str | None = None

    @property
    def effective_port(self) -> int:
        port = self.port or DEFAULT_PORTS[self.scheme]
        if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
            raise _bad(f"port {self.port!r}")
        return int(port)

    def without_password(self) -> "ServerAddress":
        return replace(self, password=None)

    def __str__(self) -> str:
        """Encode as `encode_address` does, with brackets around an IPv6 host before a port."""
        last = self.hosts[-1]
        if not self.port or last.kind is not HostKind.IPV6:
            return encode_address(self)
        bracketed = Host(HostKind.IPV6, f"[{last.text}]")
        return encode_address(replace(self, hosts=(*self.hosts[:-1], bracketed)))


def encode_address(address: ServerAddress) -> str:
    """Return the text on the wire. IPv6 hosts have no brackets, as in the reference."""
    password = "" if address.password is None else f":{address.password}"
    port = f":{address.port}" if address.port else ""
    hosts = ",".join(host.text for host in address.hosts)
    fingerprint = b64encode(address.fingerprint)
    return f"{address.scheme.value}://{fingerprint}{password}@{hosts}{port}"


def decode_address(text: str) -> ServerAddress:
    """Parse the text of an address. Raises `WireError` if it is not a usable address.

    A VAPID key is checked and left out: see `split_vapid`.
    """
    match = _ADDRESS.fullmatch(split_vapid(text)[0])
    if match is None:
        raise _bad("not scheme://fingerprint@hosts")
    try:
        scheme = Scheme(match["scheme"])
    except ValueError:
        raise _bad("the scheme is neither smp nor ntf") from None
    password = match["password"]
    if password is not None and not valid_password(password.encode()):
        raise _bad("a character that a password may not have")
    hosts, port = _decode_hosts(match["rest"])
    fingerprint = b64decode(match["fingerprint"])
    if len(fingerprint) != FINGERPRINT_SIZE:
        raise _bad("a fingerprint that is no SHA-256")
    return ServerAddress(scheme, hosts, port, fingerprint, password)


def split_vapid(text: str) -> tuple[str, bytes | None]:
    """Return an address without its VAPID key, and the key, an uncompressed P-256 point."""
    match = _PARAMETERS.fullmatch(text)
    if match is None:
        return text, None
    keys = [item[6:] for item in match["list"].split("&") if item.startswith("vapid=")]
    if not keys:
        return match["address"], None
    key = b64decode(keys[0])
    if len(key) != VAPID_KEY_SIZE or key[0] != 4:
        raise _bad("a VAPID key that is no P-256 point")
    return match["address"], key


def with_vapid(address: ServerAddress, key: str) -> str:
    """Return an address with the text of a VAPID key."""
    return f"{address}/?vapid={key}"


def valid_password(password: bytes) -> bool:
    """Return True if each byte, read as Latin-1, is printable, no space and no separator."""
    return not (set(password) - _PASSWORD_BYTES)


def decode_host(text: str) -> Host:
    host, end = _host_at(text, 0)
    if end != len(text):
        raise _bad("not a host")
    return host


def _decode_hosts(text: str) -> tuple[tuple[Host, ...], str]:
    hosts = []
    pos = 0
    while True:
        host, pos = _host_at(text, pos)
        hosts.append(host)
        if pos == len(text) or text[pos] != ",":
            break
        pos += 1
    if pos == len(text):
        return tuple(hosts), ""
    port = _PORT.fullmatch(text, pos)
    if port is None or not 0 < int(port[1]) <= MAX_PORT:
        raise _bad("not a port")
    return tuple(hosts), str(int(port[1]))


def _host_at(text: str, pos: int) -> tuple[Host, int]:
    match = _IPV4.match(text, pos)
    if match is not None and all(int(part) <= 255 for part in match.groups()[:3]):
        if len(match[4]) > 3 or int(match[4]) > 255:
            raise _bad("not an IPv4 address")
        return Host(HostKind.IPV4, ".".join(str(int(part)) for part in match.groups())), match.end()
    match = _IPV6.match(text, pos)
    if match is not None:
        try:
            return Host(HostKind.IPV6, _ipv6_text(IPv6Address(match[1] or match[2]))), match.end()
        except AddressValueError:
            pass  # abc.example.com begins like an IPv6 address
    match = _ONION.match(text, pos)
    if match is not None:
        return Host(HostKind.ONION, match[0]), match.end()
    match = _DOMAIN.match(text, pos)
    if match is None or match[0].endswith(".onion"):
        raise _bad("not a host")
    return Host(HostKind.DOMAIN, match[0]), match.end()


def _ipv6_text(address: IPv6Address) -> str:
    """Format an IPv6 address as the reference does, with an embedded IPv4 address as such."""
    head, tail = divmod(int(address), 1 << 32)
    if head == 0xFFFF:
        return f"::ffff:{IPv4Address(tail)}"
    if head == 0 and tail > 0xFFFF:
        return f"::{IPv4Address(tail)}"
    return str(address)


def _bad(reason: str) -> WireError:
    return WireError(ErrorCode.CMD_SYNTAX, f"malformed address: {reason}")


def _decode_host_field(reader: Reader) -> Host:
    data = reader.short()
    try:
        return decode_host(data.decode())
    except (WireError, UnicodeDecodeError):
        raise reader.fail("malformed host") from None


host_codec = Codec[Host]("host", lambda host: encode_short(host.text.encode()), _decode_host_field)
_hosts = list_of(host_codec)


def _encode_server(address: ServerAddress) -> bytes:
    return (
        _hosts.encode(address.hosts)
        + encode_short(address.port.encode())
        + encode_short(address.fingerprint)
    )


def _decode_server(reader: Reader) -> ServerAddress:
    hosts = _hosts.decode(reader)
    try:
        port = reader.short().decode()
    except UnicodeDecodeError:
        raise reader.fail("malformed port") from None
    return ServerAddress(Scheme.SMP, hosts, port, reader.short())


smp_server = Codec[ServerAddress]("server", _encode_server, _decode_server)


@dataclass(frozen=True, slots=True)
class SMPQueueNtf:
    """The identity of a notification queue: its router and its notifier ID there."""

    server: ServerAddress
    notifier_id: bytes


def encode_queue(queue: SMPQueueNtf) -> str:
    return f"{queue.server}/{b64encode(queue.notifier_id)}"


def decode_queue(text: str) -> SMPQueueNtf:
    address, slash, notifier_id = text.rpartition("/")
    server = decode_address(address)
    if not slash or server.scheme is not Scheme.SMP or server.password is not None:
        raise _bad("not the address of a notification queue")
    return SMPQueueNtf(server, b64decode(notifier_id))


def _decode_queue_field(reader: Reader) -> SMPQueueNtf:
    return SMPQueueNtf(_decode_server(reader), reader.short())


smp_queue_ntf = Codec[SMPQueueNtf](
    "server + str notifierId",
    lambda queue: _encode_server(queue.server) + encode_short(queue.notifier_id),
    _decode_queue_field,
)
