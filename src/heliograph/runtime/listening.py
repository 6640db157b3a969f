"""The addresses where a router is reached and where it listens, which may differ."""

import errno
import os
import socket
from ipaddress import ip_address

from heliograph.wire.addresses import Host, HostKind, decode_host
from heliograph.wire.errors import WireError

__all__ = ["bind_address", "decode_hosts", "is_wildcard", "refused"]

ALL = "*"


def decode_hosts(text: str) -> tuple[Host, ...]:
    """Parse names or addresses, separated by commas. Raises `ValueError`."""
    try:
        return tuple(decode_host(part.strip()) for part in text.split(","))
    except WireError as exc:
        raise ValueError(str(exc)) from exc


def bind_address(hosts: tuple[Host, ...], bind: str) -> str | None:
    """Return the address to listen on; None is all of them.

    A name may be that of a proxy or of a machine before this one; an address is taken for ours.
    """
    if bind:
        return None if bind == ALL else bind
    [first, *others] = hosts
    if not others and (first.kind in (HostKind.IPV4, HostKind.IPV6) or first.text == "localhost"):
        return first.text
    return None


def is_wildcard(host: Host) -> bool:
    """Return True for an address that clients on other machines cannot use."""
    return host.kind in (HostKind.IPV4, HostKind.IPV6) and ip_address(host.text).is_unspecified


def refused(exc: OSError, host: str | None, port: int, section: str) -> str:
    """Explain why a port cannot be used, and what to do. `section` is where it is set."""
    return ": ".join(refusal(exc, host, port, section))


def refusal(exc: OSError, host: str | None, port: int, section: str) -> tuple[str, str]:
    """Return why a port cannot be used, and what to do."""
    where = f"port {port} of {host or 'all addresses'}"
    if exc.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program", f"stop it, or change {section} port"
    if exc.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is not an address of this machine",
            (
                f"change {section} host, or, if clients reach this machine by it all the same, set"
                ' [listen] bind = "*"'
            ),
        )
    if exc.errno == errno.EACCES:
        return f"{where} needs a privilege", f"change {section} port to 1024 or more, or grant it"
    if isinstance(exc, socket.gaierror):
        return f"{host} is not known here as a name or an address", f"change {section}"
    words = os.strerror(exc.errno) if exc.errno else type(exc).__name__
    return f"cannot listen on {where}", words
