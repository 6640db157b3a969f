"""Explains received bytes field by field, for people who debug these protocols."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from heliograph.wire import handshakes
from heliograph.wire.addresses import Host, ServerAddress
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import private_key_algorithm, public_key_algorithm
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.primitives import Reader, unpad
from heliograph.wire.smp import SMP_COMMANDS, SMP_RESPONSES
from heliograph.wire.table import Table
from heliograph.wire.transmissions import (
    AUTHENTICATOR_SIZE,
    ED448_SIGNATURE_SIZE,
    ED25519_SIGNATURE_SIZE,
    NTF_BLOCK_SIZE,
    SMP_BLOCK_SIZE,
    Session,
    decode_transmission,
    unpack,
)
from heliograph.wire.versions import NTF_VERSIONS, SMP_VERSIONS

_AUTHORIZATIONS = {
    0: "none",
    ED25519_SIGNATURE_SIZE: "Ed25519 signature",
    ED448_SIGNATURE_SIZE: "Ed448 signature",
    AUTHENTICATOR_SIZE: "X25519 authenticator",
}
_TABLES = {"ntf": (NTF_COMMANDS, NTF_RESPONSES), "smp": (SMP_COMMANDS, SMP_RESPONSES)}
_VERSIONS = {"ntf": NTF_VERSIONS, "smp": SMP_VERSIONS}
_BLOCK_SIZES = {NTF_BLOCK_SIZE: "ntf", SMP_BLOCK_SIZE: "smp"}
_SENT_SESSION_SIZE = 32
_HANDSHAKES = {
    "ntf": {
        "server": handshakes.decode_ntf_server,
        "client": handshakes.decode_ntf_client,
    },
    "smp": {
        "server": handshakes.decode_smp_server,
        "client": handshakes.decode_smp_client,
        "service": handshakes.decode_service_response,
    },
}


@dataclass(frozen=True, slots=True)
class Line:
    """One field: where it is in the bytes given (if known), its name, and what it says."""

    start: int | None
    end: int | None
    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Explanation:
    title: str
    lines: tuple[Line, ...]


def explain(data: bytes, protocol: str | None = None, version: int | None = None) -> Explanation:
    """Explain a block, its content, a transmission or a command, trying what is not said.

    Raises WireError if it is none of these in any protocol and version that may be meant.
    """
    protocols = [protocol] if protocol else _guess_protocols(data)
    failure = WireError(ErrorCode.BLOCK, "nothing to explain")
    for name in protocols:
        supported = _VERSIONS[name]
        versions = [version] if version else range(supported.max, supported.min - 1, -1)
        for number in versions:
            for attempt in (
                _explain_block,
                _explain_content,
                _explain_transmission,
                _explain_command,
            ):
                try:
                    lines = attempt(data, name, number)
                except WireError as exc:
                    failure = exc
                    continue
                kind = attempt.__name__.removeprefix("_explain_")
                return Explanation(f"{name.upper()} {kind}, version {number}", tuple(lines))
    raise WireError(failure.error, f"cannot be read as a block, transmission or command: {failure}")


def explain_handshake(data: bytes, protocol: str, sender: str) -> Explanation:
    """Explain a handshake message; `sender` is `server`, `client` or (SMP) `service`."""
    content = unpad(data) if len(data) in _BLOCK_SIZES else data
    decode = _HANDSHAKES[protocol].get(sender)
    if decode is None:
        raise WireError(ErrorCode.BLOCK, f"{protocol} has no {sender} handshake")
    value: Any = decode(content)
    lines = (
        Line(None, None, field.name, describe(getattr(value, field.name)))
        for field in fields(value)
    )
    return Explanation(f"{protocol.upper()} {sender} handshake", tuple(lines))


def _guess_protocols(data: bytes) -> Iterable[str]:
    known = _BLOCK_SIZES.get(len(data))
    return [known] if known else ["ntf", "smp"]


def _session(protocol: str, version: int, session_id: bytes = b"") -> Session:
    return (Session.ntf if protocol == "ntf" else Session.smp)(session_id, version)


def _explain_block(data: bytes, protocol: str, version: int) -> list[Line]:
    if len(data) != _session(protocol, version).block_size:
        raise WireError(ErrorCode.BLOCK, "not the size of a block")
    content = unpad(data)
    padding = len(data) - 2 - len(content)
    return [
        Line(0, 2, "length", str(len(content))),
        *_explain_content(content, protocol, version, base=2),
        Line(2 + len(content), len(data), "padding", f"{padding} bytes"),
    ]


def _explain_content(data: bytes, protocol: str, version: int, base: int = 0) -> list[Line]:
    session = _session(protocol, version)
    if not session.batched:
        return _explain_transmission(data, protocol, version, base)
    transmissions = unpack(session, data)
    lines = [Line(base, base + 1, "count", str(len(transmissions)))]
    pos = 1
    for transmission in transmissions:
        start = pos + 2
        lines.append(Line(base + pos, base + start, "size", str(len(transmission))))
        lines += _explain_transmission(transmission, protocol, version, base + start)
        pos = start + len(transmission)
    return lines


def _explain_transmission(data: bytes, protocol: str, version: int, base: int = 0) -> list[Line]:
    reader = Reader(data, ErrorCode.BLOCK)
    spans: list[tuple[int, str, str]] = []

    def add(name: str, meaning: str) -> None:
        spans.append((reader.pos, name, meaning))

    auth = reader.short()
    add("authorization", _AUTHORIZATIONS.get(len(auth), f"{len(auth)} bytes of an unknown kind"))
    session = _session(protocol, version)
    if auth and session.service_auth:
        signature = reader.short() if reader.take(1) == b"1" else None
        add("service signature", "none" if signature is None else describe(signature))
    if not session.implied_session:
        session_id = reader.short()
        if len(session_id) != _SENT_SESSION_SIZE:
            raise reader.fail("no session ID")
        session = _session(protocol, version, session_id)
        add("session ID", describe(session_id))
    corr_id = reader.short()
    add("correlation ID", describe(corr_id) if corr_id else "none: a push")
    entity_id = reader.short()
    add("entity ID", describe(entity_id) if entity_id else "none")
    command_at = reader.pos
    decode_transmission(session, data)
    lines = []
    start = 0
    for end, name, meaning in spans:
        lines.append(Line(base + start, base + end, name, meaning))
        start = end
    return lines + _explain_command(data[command_at:], protocol, version, base + command_at)


def _explain_command(data: bytes, protocol: str, version: int, base: int = 0) -> list[Line]:
    tag, spans = _table_of(data, protocol).explain(data, version)
    lines = [Line(base, base + len(tag), "tag", tag.decode())]
    lines += [
        Line(
            base + span.start,
            base + span.end,
            span.name or "constant",
            describe(span.value) if span.name else span.codec,
        )
        for span in spans
    ]
    return lines


def _table_of(data: bytes, protocol: str) -> Table:
    commands, responses = _TABLES[protocol]
    return commands if commands.knows(data) else responses


def describe(value: Any) -> str:
    """A value as people read it. Private keys are named, never shown."""
    match value:
        case None:
            return "none"
        case bytes():
            return _describe_bytes(value)
        case Enum():
            return str(value.name)
        case Host() | ServerAddress():
            return str(value)
        case tuple():
            return ", ".join(map(describe, value))
    if is_dataclass(value):
        parts = (f"{field.name}={describe(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return str(value)


def _describe_bytes(value: bytes) -> str:
    private = private_key_algorithm(value)
    if private is not None:
        return f"{private.value} private key, not shown"
    public = public_key_algorithm(value)
    if public is not None:
        return f"{public.value} key {value[12:].hex()}"
    if value and value.isascii() and value.decode().isprintable():
        return repr(value.decode())
    return f"{value[:32].hex()}{'...' if len(value) > 32 else ''} ({len(value)} bytes)"
