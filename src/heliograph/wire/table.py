"""One table per protocol: tag, fields, versions and credential rule of each message.

Encoding, decoding, explaining and documenting all read the same table, so they cannot drift.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, assert_never, get_args

from heliograph.wire.errors import ErrorCode, ErrorType, WireError, decode_error, encode_error
from heliograph.wire.primitives import Codec, Reader

LATEST = 65535

M = TypeVar("M")
R_co = TypeVar("R_co", covariant=True)


class Command(Generic[R_co]):
    """A command that is answered by `R_co`, or by ERR.

    `responses` are the classes of that union, to check an answer against.
    """

    __slots__ = ()
    responses: ClassVar[frozenset[type]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        [(response,)] = (get_args(base) for base in cls.__orig_bases__)  # type: ignore[attr-defined]
        cls.responses = frozenset(get_args(response) or (response,))


class Credentials(Enum):
    """The authorization and entity that must come with a message."""

    AUTH = "authorization, no entity"
    ENTITY_AUTH = "authorization and entity"
    ENTITY = "entity, authorization optional"
    ENTITY_NO_AUTH = "entity, no authorization"
    NONE = "neither authorization nor entity"
    REPLY = "entity"
    REPLY_NO_ENTITY = "no entity"
    REPLY_ANY = "entity optional"


class Field(NamedTuple):
    """A field. `name` is the attribute of the value; without one it is a constant of the layout."""

    name: str
    codec: Codec[Any]  # of the type of the attribute
    since: int = 0
    until: int = LATEST

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until


@dataclass(frozen=True, slots=True)
class Message:
    """Encoding of one type of value; `downgrade` replaces it for versions that do not know it."""

    type: type[Any]  # of the value: one table has messages of many
    credentials: Credentials
    fields: tuple[Field, ...] = ()
    downgrade: Callable[[Any, int], Any] | None = None  # from and to a value of the table
    tag: bytes = b""

    def layout(self, version: int) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.in_version(version))


class Span(NamedTuple):
    """Position of one field, for explanations."""

    name: str
    codec: str
    start: int
    end: int
    value: object


class Table(Generic[M]):
    """All messages of one direction of one protocol; `M` is the union of their types."""

    def __init__(self, name: str, messages: Iterable[Message]) -> None:
        self.name = name
        self.messages = tuple(messages)
        self._by_type = {message.type: message for message in self.messages}
        self._by_tag = {tag_of(message): message for message in self.messages}
        self._layouts: dict[tuple[bytes, int], tuple[Field, ...]] = {}
        self._encodings: dict[tuple[type, int], tuple[bytes, tuple[Field, ...]]] = {}
        self._decoders: dict[tuple[bytes, int], _Decoder[M]] = {}

    def credentials(self, value: M) -> Credentials:
        return self._by_type[type(value)].credentials

    def encode(self, value: M, version: int) -> bytes:
        message = self._by_type[type(value)]
        if message.downgrade is not None:
            value = message.downgrade(value, version)
        encoding = self._encodings.get((type(value), version))
        if encoding is None:
            message = self._by_type[type(value)]
            tag = tag_of(message)
            fields = self._layout(tag, message, version)
            encoding = tag + b" " if fields else tag, fields
            self._encodings[type(value), version] = encoding
        head, fields = encoding
        if not fields:
            return head
        parts = [head]
        for name, codec, _, _ in fields:
            parts.append(codec.encode(getattr(value, name) if name else None))
        return b"".join(parts)

    def decode(self, command: bytes, version: int) -> M:
        space = command.find(b" ", 0, 8)
        tag = command if space < 0 else command[:space]
        decoder = self._decoders.get((tag, version))
        if decoder is None:
            decoder = self._decoder(command, version)
        make, fields = decoder
        if not fields:
            if len(command) != len(tag):
                raise WireError(ErrorCode.CMD_SYNTAX, f"{tag.decode()} has no parameters")
            return make()
        reader = self._parameters(command, tag)
        values = {}
        for name, decode in fields:
            values[name] = decode(reader)
        reader.end()
        values.pop("", None)
        return make(**values)

    def _decoder(self, command: bytes, version: int) -> "_Decoder[M]":
        message, tag = self._find(command)
        fields = self._layout(tag, message, version)
        decoder: _Decoder[M] = (
            message.type,
            tuple((field.name, field.codec.decode) for field in fields),
        )
        self._decoders[tag, version] = decoder
        return decoder

    def explain(self, command: bytes, version: int) -> tuple[bytes, list[Span]]:
        """Return the tag, and the span of each parameter within `command`."""
        message, tag = self._find(command)
        fields = self._layout(tag, message, version)
        spans = []
        reader = self._parameters(command, tag) if fields else Reader(command)
        reader.pos = max(reader.pos, len(tag))
        for name, codec, _, _ in fields:
            start = reader.pos
            value = codec.decode(reader)
            spans.append(Span(name, codec.name, start, reader.pos, value))
        reader.end()
        return tag, spans

    def knows(self, command: bytes) -> bool:
        return command.partition(b" ")[0] in self._by_tag

    def _find(self, command: bytes) -> tuple[Message, bytes]:
        space = command.find(b" ", 0, 8)
        tag = command if space < 0 else command[:space]
        message = self._by_tag.get(tag)
        if message is None:
            raise WireError(ErrorCode.CMD_UNKNOWN, f"unknown {self.name}")
        return message, tag

    def _parameters(self, command: bytes, tag: bytes) -> Reader:
        if len(command) == len(tag):
            raise WireError(ErrorCode.CMD_SYNTAX, f"{tag.decode()} needs parameters")
        reader = Reader(command)
        reader.pos = len(tag) + 1
        return reader

    def _layout(self, tag: bytes, message: Message, version: int) -> tuple[Field, ...]:
        layout = self._layouts.get((tag, version))
        if layout is None:
            layout = self._layouts[tag, version] = message.layout(version)
        return layout


AnyTable = Table[Any]
"""A table whose messages are explained, whatever they are."""

_Decoder = tuple[Callable[..., M], tuple[tuple[str, Callable[[Reader], object]], ...]]
"""The class of a value, and the decoders of its parameters."""


def tag_of(message: Message) -> bytes:
    return message.tag or message.type.__name__.encode()


def check_credentials(rule: Credentials, auth: bytes, entity_id: bytes) -> None:
    """Raise the protocol's error if the credentials violate `rule`."""
    match rule:
        case Credentials.ENTITY_AUTH:
            error = None if auth and entity_id else ErrorCode.CMD_NO_AUTH
        case Credentials.NONE:
            error = ErrorCode.CMD_HAS_AUTH if auth or entity_id else None
        case Credentials.AUTH:
            error = ErrorCode.CMD_HAS_AUTH if entity_id else None
            error = error if auth else ErrorCode.CMD_NO_AUTH
        case Credentials.ENTITY | Credentials.REPLY:
            error = None if entity_id else ErrorCode.CMD_NO_ENTITY
        case Credentials.ENTITY_NO_AUTH:
            error = ErrorCode.CMD_HAS_AUTH if auth else None
            error = error if entity_id else ErrorCode.CMD_NO_ENTITY
        case Credentials.REPLY_NO_ENTITY:
            error = ErrorCode.CMD_HAS_AUTH if entity_id else None
        case Credentials.REPLY_ANY:
            error = None
        case _:
            assert_never(rule)
    if error is not None:
        raise WireError(error, f"{rule.value} expected")


# Messages that both protocols have.


@dataclass(frozen=True, slots=True)
class PONG:
    """The answer to PING."""


@dataclass(frozen=True, slots=True)
class PING(Command[PONG]):
    """Keep a connection alive."""


@dataclass(frozen=True, slots=True)
class OK:
    """Done."""


def _decode_error_field(reader: Reader) -> ErrorType:
    return decode_error(reader.tail())


error_type = Codec[ErrorType]("error", encode_error, _decode_error_field)
