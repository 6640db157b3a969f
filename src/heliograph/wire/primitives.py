"""Primitive types: a reader over bytes, codecs for each primitive, and combinators.

A codec is a pair of functions with the name the documentation uses. Readers raise `WireError`;
encoders raise it too when a value does not fit its type.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from heliograph.wire.errors import ErrorCode, ErrorType, WireError

T = TypeVar("T")

MAX_PADDED_MESSAGE = 65533


class Reader:
    """A cursor over received bytes; `error` is the answer to malformed ones."""

    __slots__ = ("data", "error", "pos")

    def __init__(self, data: bytes, error: ErrorType = ErrorCode.CMD_SYNTAX) -> None:
        self.data = data
        self.pos = 0
        self.error = error

    def take(self, size: int) -> bytes:
        end = self.pos + size
        if end > len(self.data):
            raise WireError(self.error, f"{size} bytes wanted, {len(self.data) - self.pos} left")
        chunk = self.data[self.pos : end]
        self.pos = end
        return chunk

    def tail(self) -> bytes:
        chunk = self.data[self.pos :]
        self.pos = len(self.data)
        return chunk

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2))

    def short(self) -> bytes:
        return self.take(self.u8())

    def large(self) -> bytes:
        return self.take(self.u16())

    def end(self) -> None:
        if self.pos != len(self.data):
            raise WireError(self.error, f"{len(self.data) - self.pos} surplus bytes")

    def fail(self, reason: str) -> WireError:
        return WireError(self.error, reason)


@dataclass(frozen=True)
class Codec(Generic[T]):
    name: str
    encode: Callable[[T], bytes]
    decode: Callable[[Reader], T]


LENGTHS = tuple(bytes((length,)) for length in range(256))
"""Length bytes of short strings."""


def encode_short(data: bytes) -> bytes:
    if len(data) > 255:
        raise WireError(ErrorCode.LARGE_MSG, f"{len(data)} bytes in a string of at most 255")
    return LENGTHS[len(data)] + data


def encode_large(data: bytes) -> bytes:
    if len(data) > 65535:
        raise WireError(ErrorCode.LARGE_MSG, f"{len(data)} bytes in a string of at most 65535")
    return len(data).to_bytes(2) + data


def unsigned(name: str, size: int) -> Codec[int]:
    def encode(value: int) -> bytes:
        try:
            return value.to_bytes(size)
        except OverflowError:
            raise WireError(ErrorCode.CMD_SYNTAX, f"{value} is not a {name}") from None

    return Codec(name, encode, lambda reader: int.from_bytes(reader.take(size)))


def _encode_i64(value: int) -> bytes:
    try:
        return value.to_bytes(8, signed=True)
    except OverflowError:
        raise WireError(ErrorCode.CMD_SYNTAX, f"{value} is not an i64") from None


def _decode_bool(reader: Reader) -> bool:
    match reader.take(1):
        case b"T":
            return True
        case b"F":
            return False
    raise reader.fail("neither T nor F")


u8 = unsigned("u8", 1)
u16 = unsigned("u16", 2)
u32 = unsigned("u32", 4)
i64 = Codec[int]("i64", _encode_i64, lambda reader: int.from_bytes(reader.take(8), signed=True))
time = Codec[int]("time", i64.encode, i64.decode)
boolean = Codec[bool]("bool", lambda value: b"T" if value else b"F", _decode_bool)
short = Codec[bytes]("str", encode_short, Reader.short)
large = Codec[bytes]("large", encode_large, Reader.large)
tail = Codec[bytes]("tail", lambda value: value, Reader.tail)


def raw(size: int) -> Codec[bytes]:
    """Return a codec for exactly `size` bytes, without a length."""

    def encode(value: bytes) -> bytes:
        if len(value) != size:
            raise WireError(ErrorCode.CMD_SYNTAX, f"{len(value)} bytes where {size} are needed")
        return value

    return Codec(f"{size} bytes", encode, lambda reader: reader.take(size))


def literal(text: bytes) -> Codec[None]:
    def decode(reader: Reader) -> None:
        if reader.take(len(text)) != text:
            raise reader.fail(f"{text.decode()} expected")

    return Codec(f"`{text.decode()}`", lambda _: text, decode)


def maybe(item: Codec[T]) -> Codec[T | None]:
    def encode(value: T | None) -> bytes:
        return b"0" if value is None else b"1" + item.encode(value)

    def decode(reader: Reader) -> T | None:
        match reader.take(1):
            case b"0":
                return None
            case b"1":
                return item.decode(reader)
        raise reader.fail("neither 0 nor 1 before an optional value")

    return Codec(f"maybe({item.name})", encode, decode)


def list_of(item: Codec[T], *, least: int = 1) -> Codec[tuple[T, ...]]:
    def encode(values: Sequence[T]) -> bytes:
        if not least <= len(values) <= 255:
            raise WireError(ErrorCode.CMD_SYNTAX, f"{len(values)} items in a list")
        return bytes((len(values),)) + b"".join(map(item.encode, values))

    def decode(reader: Reader) -> tuple[T, ...]:
        count = reader.u8()
        if count < least:
            raise reader.fail("empty list")
        return tuple([item.decode(reader) for _ in range(count)])

    return Codec(f"list({item.name})", encode, decode)


def pad(message: bytes, size: int) -> bytes:
    """Return the u16 length, the message, and `#` up to `size` bytes."""
    room = size - 2 - len(message)
    if room < 0 or len(message) > MAX_PADDED_MESSAGE:
        raise WireError(ErrorCode.LARGE_MSG, f"{len(message)} bytes do not fit in {size}")
    return len(message).to_bytes(2) + message + b"#" * room


def unpad(padded: bytes) -> bytes:
    length = int.from_bytes(padded[:2])
    if len(padded) < 2 or length > len(padded) - 2:
        raise WireError(ErrorCode.BLOCK, "the padded length exceeds the block")
    return padded[2 : 2 + length]


def b64encode(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def b64decode(text: str) -> bytes:
    """Decode canonical base64url, padded or not. Empty text is an error, as in the protocols."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise WireError(ErrorCode.CMD_SYNTAX, "not base64url") from None
    canonical = b64encode(data)
    if not data or text not in (canonical, canonical.rstrip("=")):
        raise WireError(ErrorCode.CMD_SYNTAX, "not base64url")
    return data
