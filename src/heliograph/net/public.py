"""Which addresses and names belong to the Internet, and which to this machine or its network.

Clients choose hosts that a router connects to. Pure: nothing is resolved here.
"""

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address

__all__ = ["Address", "is_number", "is_public", "is_public_name"]

Address = IPv4Address | IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")

_PRIVATE_DOMAINS = (
    # RFC 6761, RFC 6762, RFC 8375, RFC 9476, ICANN's .internal, and what networks use unregistered.
    *("localhost", "local", "internal", "home.arpa", "test", "invalid", "alt"),
    *("localdomain", "intranet", "private", "corp", "home", "lan"),
    *("svc", "cluster", "consul", "docker"),
)


def is_public(address: Address) -> bool:
    """Return whether an address is in the Internet, also if it embeds one of the other family."""
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = IPv4Address(address.packed[12:])
        if embedded is not None:
            return is_public(embedded)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_number(host: str) -> bool:
    """Return whether clients take a host for an IPv4 address, such as 127.1 and 0x7f000001."""
    return _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) is not None


def is_public_name(name: str) -> bool:
    """Return whether a name may be given to a proxy, which resolves it in its own network.

    It has a domain that may be registered, and cannot be read as a number.
    """
    try:
        ascii_name = name.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        return False
    labels = ascii_name.split(".")
    if len(labels) < 2 or is_number(ascii_name) or not all(map(_LABEL.fullmatch, labels)):
        return False
    return not any(f".{ascii_name}".endswith(f".{domain}") for domain in _PRIVATE_DOMAINS)
