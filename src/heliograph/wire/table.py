"""One table per protocol: tag, fields, versions and credential rule of each message.

Encoding, decoding, explaining and documenting all read the same table, so they cannot drift.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, assert_never

from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import Codec, Reader

LATEST = 65535


class Credentials(Enum):
    """What must come with a message besides the message itself."""

    AUTH = "authorization, no entity"
    ENTITY_AUTH = "authorization and entity"
    ENTITY = "entity, authorization optional"
    NONE = "neither authorization nor entity"
    REPLY = "entity"
    REPLY_NO_ENTITY = "no entity"
    REPLY_ANY = "entity optional"


class Field(NamedTuple):
    """`name` is the attribute of the value; a field without a name is a constant of the layout."""

    name: str
    codec: Codec[Any]
    since: int = 0
    until: int = LATEST

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until


@dataclass(frozen=True, slots=True)
class Message:
    """How one type of value travels; `downgrade` replaces what an older version does not know."""

    type: type[Any]
    credentials: Credentials
    fields: tuple[Field, ...] = ()
    downgrade: Callable[[Any, int], Any] | None = None
    tag: bytes = b""

    def layout(self, version: int) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.in_version(version))


class Span(NamedTuple):
    """Where one field was found, for explanations."""

    name: str
    codec: str
    start: int
    end: int
    value: Any


class Table:
    """All messages of one direction of one protocol."""

    def __init__(self, name: str, messages: Iterable[Message]) -> None:
        self.name = name
        self.messages = tuple(messages)
        self._by_type = {message.type: message for message in self.messages}
        self._by_tag = {tag_of(message): message for message in self.messages}
        self._layouts: dict[tuple[bytes, int], tuple[Field, ...]] = {}
        self._encodings: dict[tuple[type[Any], int], tuple[bytes, tuple[Field, ...]]] = {}
        self._decoders: dict[tuple[bytes, int], _Decoder] = {}

    def credentials(self, value: Any) -> Credentials:
        return self._by_type[type(value)].credentials

    def encode(self, value: Any, version: int) -> bytes:
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

    def decode(self, command: bytes, version: int) -> Any:
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

    def _decoder(self, command: bytes, version: int) -> "_Decoder":
        message, tag = self._find(command)
        fields = self._layout(tag, message, version)
        decoder = message.type, tuple((field.name, field.codec.decode) for field in fields)
        self._decoders[tag, version] = decoder
        return decoder

    def explain(self, command: bytes, version: int) -> tuple[bytes, list[Span]]:
        """The tag and the span of each parameter within `command`."""
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


_Decoder = tuple[Callable[..., Any], tuple[tuple[str, Callable[[Reader], Any]], ...]]
"""What makes a value, of which parameters."""


def tag_of(message: Message) -> bytes:
    return message.tag or message.type.__name__.encode()


def check_credentials(rule: Credentials, auth: bytes, entity_id: bytes) -> None:
    """Raise the error that the protocol has for a breach of `rule`."""
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
class PING:
    """Keeps a connection alive."""


@dataclass(frozen=True, slots=True)
class PONG:
    """The answer to PING."""


@dataclass(frozen=True, slots=True)
class OK:
    """Done."""
