"""The error vocabulary of both protocols, and the one exception of this layer.

    Exception
    └── WireError              anything malformed; `.error` is the error to answer

Values that travel after ``ERR ``:

    ErrorType
    ├── ErrorCode              BLOCK, SESSION, CMD *, AUTH, SERVICE, CRYPTO, QUOTA, ...
    ├── BLOCKED                the entity was blocked by the operator
    ├── STORE                  the router's store failed
    └── PROXY                  a forwarding router failed
"""

import json
from dataclasses import dataclass
from enum import Enum
from typing import assert_never


class ErrorCode(Enum):
    """Errors without parameters; the value is the text on the wire."""

    BLOCK = "BLOCK"
    SESSION = "SESSION"
    CMD_UNKNOWN = "CMD UNKNOWN"
    CMD_SYNTAX = "CMD SYNTAX"
    CMD_PROHIBITED = "CMD PROHIBITED"
    CMD_NO_AUTH = "CMD NO_AUTH"
    CMD_HAS_AUTH = "CMD HAS_AUTH"
    CMD_NO_ENTITY = "CMD NO_ENTITY"
    AUTH = "AUTH"
    SERVICE = "SERVICE"
    CRYPTO = "CRYPTO"
    QUOTA = "QUOTA"
    EXPIRED = "EXPIRED"
    NO_MSG = "NO_MSG"
    LARGE_MSG = "LARGE_MSG"
    INTERNAL = "INTERNAL"
    DUPLICATE = "DUPLICATE_"


class BlockingReason(Enum):
    SPAM = "spam"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class ClientNotice:
    """A notice for the user about a blocked entity; `ttl` in seconds, None without limit."""

    ttl: int | None = None


@dataclass(frozen=True, slots=True)
class BLOCKED:
    reason: BlockingReason
    notice: ClientNotice | None = None


@dataclass(frozen=True, slots=True)
class STORE:
    text: str


class TransportError(Enum):
    """The reason of a failed handshake or block; also the text after `E` in a service handshake."""

    BLOCK = "BLOCK"
    VERSION = "VERSION"
    LARGE_MSG = "LARGE_MSG"
    SESSION = "SESSION"
    NO_AUTH = "NO_AUTH"
    HANDSHAKE_PARSE = "HANDSHAKE PARSE"
    HANDSHAKE_IDENTITY = "HANDSHAKE IDENTITY"
    HANDSHAKE_BAD_AUTH = "HANDSHAKE BAD_AUTH"
    HANDSHAKE_BAD_SERVICE = "HANDSHAKE BAD_SERVICE"


@dataclass(frozen=True, slots=True)
class BrokerError:
    """The failure of a destination router, as seen by its proxy."""

    tag: str
    detail: str | TransportError | None = None


class ProxyFailure(Enum):
    BASIC_AUTH = "BASIC_AUTH"
    NO_SESSION = "NO_SESSION"


@dataclass(frozen=True, slots=True)
class ProxyProtocolError:
    error: "ErrorType"


@dataclass(frozen=True, slots=True)
class PROXY:
    error: ProxyFailure | ProxyProtocolError | BrokerError


ErrorType = ErrorCode | BLOCKED | STORE | PROXY


class WireError(Exception):
    """Bytes or values that break the protocol; `error` is the answer the peer gets."""

    def __init__(self, error: ErrorType, reason: str = "") -> None:
        super().__init__(reason or encode_error(error).decode("utf-8", "replace"))
        self.error = error


_CODES = {code.value.encode(): code for code in ErrorCode}
_CODES[b"CMD NO_QUEUE"] = ErrorCode.CMD_NO_ENTITY  # spelling of older routers
_TRANSPORT = {error.value.encode(): error for error in TransportError}
_PROXY = {failure.value.encode(): failure for failure in ProxyFailure}

_TOO_DEEP = b"PROXY PROTOCOL " * 8  # routers nest once; a hostile peer could nest without limit

_BROKER_PLAIN = frozenset({"TIMEOUT", "HOST", "NO_SERVICE"})
_BROKER_TEXT = frozenset({"RESPONSE", "UNEXPECTED"})
_NETWORK_PLAIN = frozenset({"UNKNOWNCA", "FAILED", "TIMEOUT"})
_NETWORK_TEXT = frozenset({"CONNECT", "TLS", "SUBSCRIBE"})


def encode_error(error: ErrorType) -> bytes:
    match error:
        case ErrorCode():
            return error.value.encode()
        case BLOCKED():
            return b"BLOCKED reason=" + error.reason.value.encode() + _encode_notice(error.notice)
        case STORE():
            return b"STORE " + error.text.encode("utf-8", "replace")
        case PROXY():
            return b"PROXY " + _encode_proxy(error.error)
        case _:
            assert_never(error)


def decode_error(data: bytes) -> ErrorType:
    code = _CODES.get(data)
    if code is not None:
        return code
    tag, _, rest = data.partition(b" ")
    if tag == b"BLOCKED":
        return _decode_blocked(rest)
    if tag == b"STORE" and len(data) > len(tag):
        return STORE(rest.decode("utf-8", "replace"))
    if tag == b"PROXY":
        return PROXY(_decode_proxy(rest))
    raise _bad("error type")


def encode_transport_error(error: TransportError) -> bytes:
    return error.value.encode()


def decode_transport_error(data: bytes) -> TransportError:
    try:
        return _TRANSPORT[data]
    except KeyError:
        raise _bad("transport error") from None


def _encode_notice(notice: ClientNotice | None) -> bytes:
    if notice is None:
        return b""
    fields = {} if notice.ttl is None else {"ttl": notice.ttl}
    return b",notice=" + json.dumps(fields, separators=(",", ":")).encode()


def _decode_blocked(data: bytes) -> BLOCKED:
    reason, comma, notice = data.partition(b",notice=")
    if not reason.startswith(b"reason="):
        raise _bad("blocking reason")
    try:
        blocking = BlockingReason(reason[7:].decode("ascii", "replace"))
    except ValueError:
        raise _bad("blocking reason") from None
    return BLOCKED(blocking, _decode_notice(notice) if comma else None)


def _decode_notice(data: bytes) -> ClientNotice:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise _bad("notice") from None
    ttl = fields.get("ttl") if isinstance(fields, dict) else ""
    if ttl is not None and (type(ttl) is not int or not -(2**63) <= ttl < 2**63):
        raise _bad("notice")
    return ClientNotice(ttl)


def _encode_proxy(error: ProxyFailure | ProxyProtocolError | BrokerError) -> bytes:
    match error:
        case ProxyFailure():
            return error.value.encode()
        case ProxyProtocolError():
            return b"PROTOCOL " + encode_error(error.error)
        case BrokerError():
            return b"BROKER " + _encode_broker(error)
        case _:
            assert_never(error)


def _decode_proxy(data: bytes) -> ProxyFailure | ProxyProtocolError | BrokerError:
    failure = _PROXY.get(data)
    if failure is not None:
        return failure
    tag, _, rest = data.partition(b" ")
    if tag == b"PROTOCOL" and not rest.startswith(_TOO_DEEP):
        return ProxyProtocolError(decode_error(rest))
    if tag == b"BROKER":
        return _decode_broker(rest)
    raise _bad("proxy error")


def _encode_broker(error: BrokerError) -> bytes:
    tag = error.tag.encode()
    match error.detail:
        case None:
            return tag
        case TransportError():
            return tag + b" " + encode_transport_error(error.detail)
        case str() if error.tag == "NETWORK":
            kind, _, text = error.detail.partition(" ")
            return (
                tag + b" " + kind.encode() + (b" " + _short(text) if kind in _NETWORK_TEXT else b"")
            )
        case str():
            return tag + b" " + _short(error.detail)
        case _:
            assert_never(error.detail)


def _decode_broker(data: bytes) -> BrokerError:
    tag_bytes, space, rest = data.partition(b" ")
    tag = tag_bytes.decode("ascii", "replace")
    if not space and (tag in _BROKER_PLAIN or tag == "NETWORK"):
        return BrokerError(tag)
    if tag in _BROKER_TEXT:
        return BrokerError(tag, _text(rest))
    if tag == "TRANSPORT":
        return BrokerError(tag, decode_transport_error(rest))
    if tag == "NETWORK":
        return BrokerError(tag, _decode_network(rest))
    raise _bad("broker error")


def _decode_network(data: bytes) -> str:
    kind_bytes, space, rest = data.partition(b" ")
    kind = kind_bytes.decode("ascii", "replace")
    if kind in _NETWORK_TEXT:
        return f"{kind} {_text(rest)}"
    if kind in _NETWORK_PLAIN and not space:
        return kind
    raise _bad("network error")


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")[:255]
    return bytes((len(data),)) + data


def _text(data: bytes) -> str:
    if not data or len(data) != 1 + data[0]:
        raise _bad("error text")
    return data[1:].decode("utf-8", "surrogateescape")


def _bad(what: str) -> WireError:
    return WireError(ErrorCode.CMD_SYNTAX, f"malformed {what}")
