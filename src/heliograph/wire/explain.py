"""Explain received bytes field by field, to debug these protocols."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from heliograph.wire import handshakes
from heliograph.wire.addresses import Host, ServerAddress
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.keys import private_key_algorithm, public_key_algorithm
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.primitives import Reader, unpad
from heliograph.wire.smp import SMP_COMMANDS, SMP_RESPONSES
from heliograph.wire.table import AnyTable, tag_of
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

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_AUTHORIZATIONS = {
    0: "none",
    ED25519_SIGNATURE_SIZE: "Ed25519 signature",
    ED448_SIGNATURE_SIZE: "Ed448 signature",
    AUTHENTICATOR_SIZE: "X25519 authenticator",
}
_TABLES: dict[str, tuple[AnyTable, AnyTable]] = {
    "ntf": (NTF_COMMANDS, NTF_RESPONSES),
    "smp": (SMP_COMMANDS, SMP_RESPONSES),
}
_VERSIONS = {"ntf": NTF_VERSIONS, "smp": SMP_VERSIONS}
_BLOCK_SIZES = {NTF_BLOCK_SIZE: "ntf", SMP_BLOCK_SIZE: "smp"}
_SENT_SESSION_SIZE = 32
_HANDSHAKES: dict[str, dict[str, Callable[[bytes], "DataclassInstance"]]] = {
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
    """One field: its position in the given bytes (if known), its name and its value."""

    start: int | None
    end: int | None
    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Explanation:
    title: str
    lines: tuple[Line, ...]


def explain(data: bytes, protocol: str | None = None, version: int | None = None) -> Explanation:
    """Explain a block, its content, a transmission or a command; try whatever is not given.

    Raises WireError if it is none of these in any candidate protocol and version; its text
    describes the outermost valid frame, or if there is none what was tried.
    """
    best, outermost = None, len(_ATTEMPTS)
    protocols = [protocol] if protocol else _guess_protocols(data)
    for name in protocols:
        for number in _versions(name, version):
            for depth, (kind, attempt) in enumerate(_ATTEMPTS.items()):
                try:
                    lines = attempt(data, name, number)
                except WireError as exc:
                    if depth < outermost and _is_framed(data, name, number, kind):
                        best = WireError(exc.error, f"as {name.upper()} {kind}: {exc}")
                        outermost = depth
                    continue
                if kind == "command" and not _TABLES[name][0].knows(data):
                    kind = "response"
                return Explanation(f"{name.upper()} {kind}, version {number}", tuple(lines))
    if best is None:
        raise WireError(ErrorCode.BLOCK, _nothing_known(data, protocols, version))
    raise WireError(best.error, f"cannot be explained {best}")


def _nothing_known(data: bytes, protocols: Sequence[str], version: int | None) -> str:
    """Return what was tried, and the nearest reading."""
    tried = []
    for name in protocols:
        versions = sorted(_versions(name, version))
        if versions:
            numbers = f"{versions[0]} to {versions[-1]}" if len(versions) > 1 else f"{version}"
            tried.append(f"{name.upper()} {numbers}")
    if not tried:
        return "nothing to explain: no protocol has this version"
    kinds = "block, content, transmission and command"
    return (
        f"nothing known: tried as {kinds} of {' and '.join(tried)}."
        f" The nearest reading: {_nearest(data, protocols)}"
    )


def _nearest(data: bytes, protocols: Iterable[str]) -> str:
    tags = {
        tag_of(message).decode(): name
        for name in protocols
        for table in _TABLES[name]
        for message in table.messages
    }
    word = data.partition(b" ")[0][:16].decode("latin-1")
    for tag in difflib.get_close_matches(word, tags, 1):
        return f"{tags[tag].upper()} {tag}, which has a similar tag"
    readings = []
    for name in protocols:
        try:
            _explain_transmission(data, name, _VERSIONS[name].max)
        except WireError as exc:
            readings.append((exc.error is ErrorCode.BLOCK, f"{name.upper()} transmission: {exc}"))
    return min(readings, key=lambda reading: reading[0])[1]


def explain_frame(
    data: bytes, protocol: str | None = None, version: int | None = None
) -> Explanation | None:
    """Explain the valid parts of a block or its content with a malformed command, and the error.

    A bare transmission is tried only if `protocol` is given: almost any bytes could be one.
    """
    for name in [protocol] if protocol else _guess_protocols(data):
        for number in _versions(name, version):
            for kind, attempt in _TOLERANT_ATTEMPTS.items():
                if kind == "transmission" and protocol is None:
                    continue
                try:
                    lines = attempt(data, name, number)
                except WireError:
                    continue
                title = f"malformed {name.upper()} {kind}, version {number}"
                return Explanation(title, tuple(lines))
    return None


def _versions(protocol: str, version: int | None) -> Iterable[int]:
    supported = _VERSIONS[protocol]
    if version is None:
        return range(supported.max, supported.min - 1, -1)
    return [version] if version in supported else []


def _is_framed(data: bytes, protocol: str, version: int, kind: str) -> bool:
    """Return True if bytes that failed as this kind have its frame; a command's is its tag."""
    session = _session(protocol, version)
    match kind:
        case "block":
            return len(data) == session.block_size
        case "content":
            try:
                return session.batched and bool(unpack(session, data))
            except WireError:
                return False
    return kind == "command" and _table_of(data, protocol).knows(data)


def explain_handshake(data: bytes, protocol: str, sender: str) -> Explanation:
    """Explain a handshake message; `sender` is `server`, `client` or (SMP) `service`."""
    content = unpad(data) if len(data) in _BLOCK_SIZES else data
    decode = _HANDSHAKES[protocol].get(sender)
    if decode is None:
        raise WireError(ErrorCode.BLOCK, f"{protocol} has no {sender} handshake")
    value = decode(content)
    lines = (
        Line(None, None, field.name, describe(getattr(value, field.name)))
        for field in fields(value)
    )
    return Explanation(f"{protocol.upper()} {sender} handshake", tuple(lines))


def _guess_protocols(data: bytes) -> Sequence[str]:
    known = _BLOCK_SIZES.get(len(data))
    return [known] if known else ["ntf", "smp"]


def _session(protocol: str, version: int, session_id: bytes = b"") -> Session:
    return (Session.ntf if protocol == "ntf" else Session.smp)(session_id, version)


def _explain_block(
    data: bytes, protocol: str, version: int, *, tolerant: bool = False
) -> list[Line]:
    if len(data) != _session(protocol, version).block_size:
        raise WireError(ErrorCode.BLOCK, "not the size of a block")
    content = unpad(data)
    padding = len(data) - 2 - len(content)
    return [
        Line(0, 2, "length", str(len(content))),
        *_explain_content(content, protocol, version, base=2, tolerant=tolerant),
        Line(2 + len(content), len(data), "padding", f"{padding} bytes"),
    ]


def _explain_content(
    data: bytes, protocol: str, version: int, base: int = 0, *, tolerant: bool = False
) -> list[Line]:
    session = _session(protocol, version)
    if not session.batched:
        return _explain_transmission(data, protocol, version, base, tolerant=tolerant)
    transmissions = unpack(session, data)
    lines = [Line(base, base + 1, "count", str(len(transmissions)))]
    pos = 1
    for transmission in transmissions:
        start = pos + 2
        lines.append(Line(base + pos, base + start, "size", str(len(transmission))))
        lines += _explain_transmission(
            transmission, protocol, version, base + start, tolerant=tolerant
        )
        pos = start + len(transmission)
    return lines


def _explain_transmission(
    data: bytes, protocol: str, version: int, base: int = 0, *, tolerant: bool = False
) -> list[Line]:
    reader = Reader(data, ErrorCode.BLOCK)
    spans: list[tuple[int, str, str]] = []

    def add(name: str, meaning: str) -> None:
        spans.append((reader.pos, name, meaning))

    def read(name: str) -> bytes:
        try:
            return reader.short()
        except WireError as exc:
            raise reader.fail(f"{name}: {exc}") from exc

    auth = read("authorization")
    add("authorization", _AUTHORIZATIONS.get(len(auth), f"{len(auth)} bytes of an unknown kind"))
    session = _session(protocol, version)
    if auth and session.service_auth:
        signature = read("service signature") if reader.take(1) == b"1" else None
        add("service signature", "none" if signature is None else describe(signature))
    if not session.implied_session:
        session_id = read("session ID")
        if len(session_id) != _SENT_SESSION_SIZE:
            raise reader.fail("no session ID")
        session = _session(protocol, version, session_id)
        add("session ID", describe(session_id))
    corr_id = read("correlation ID")
    add("correlation ID", describe(corr_id) if corr_id else "none: a push")
    entity_id = read("entity ID")
    add("entity ID", describe(entity_id) if entity_id else "none")
    command_at = reader.pos
    decode_transmission(session, data)
    lines = []
    start = 0
    for end, name, meaning in spans:
        lines.append(Line(base + start, base + end, name, meaning))
        start = end
    command = data[command_at:]
    try:
        return lines + _explain_command(command, protocol, version, base + command_at)
    except WireError as exc:
        if not tolerant:
            raise
        # Only the tag: the rest may contain a private key.
        fault = f"{describe(command.partition(b' ')[0][:8])}, malformed: {exc}"
        return [*lines, Line(base + command_at, base + len(data), "command", fault)]


def _explain_command(data: bytes, protocol: str, version: int, base: int = 0) -> list[Line]:
    table = _table_of(data, protocol)
    if not table.knows(data):
        raise WireError(ErrorCode.CMD_UNKNOWN, "no command or response has this tag")
    tag, spans = table.explain(data, version)
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


def _table_of(data: bytes, protocol: str) -> AnyTable:
    commands, responses = _TABLES[protocol]
    return commands if commands.knows(data) else responses


_Attempt = Callable[[bytes, str, int], list[Line]]

_TOLERANT_ATTEMPTS: dict[str, _Attempt] = {
    "block": partial(_explain_block, tolerant=True),
    "content": partial(_explain_content, tolerant=True),
    "transmission": partial(_explain_transmission, tolerant=True),
}
_ATTEMPTS: dict[str, _Attempt] = {
    "block": _explain_block,
    "content": _explain_content,
    "transmission": _explain_transmission,
    "command": _explain_command,
}


def describe(value: object) -> str:
    """Return a readable form of a value. Private keys are named, never shown."""
    match value:
        case None:
            return "none"
        case bytes():
            return _describe_bytes(value)
        case Enum():
            return str(value.name)
        case str() | Host() | ServerAddress():
            return _printable(str(value))
        case tuple():
            return ", ".join(map(describe, value))
    if is_dataclass(value):  # not a Host or an address, whose texts are readable
        parts = (f"{field.name}={describe(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(parts)})"
    return str(value)


def _printable(text: str) -> str:
    """Escape text of a peer, which must not reach a terminal unchanged."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


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
