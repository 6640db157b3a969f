"""Chat events in the bodies of agent messages, which are opaque to everything else.

JSON, one object: `{"v": 1, "hello": {...}}`, `message`, `call` or `callAnswer`. A reader ignores
unknown members, and a body that it cannot decode is no event, never an error.
"""

import json
from dataclasses import dataclass

from heliograph.device.chats.model import CallMedia
from heliograph.documents import JsonMapping, JsonObject

VERSION = 1
MAX_NAME = 100
MAX_TEXT = 12_000


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of a connection: the sender's name. Without `answer` one is expected."""

    name: str
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A message, with a file if `file_name` is set, and in a group if `group` is set."""

    text: str
    file_name: str = ""
    group: str = ""
    member: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    media: CallMedia = CallMedia.AUDIO


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer to the last `Call`."""

    accepted: bool


Body = Greeting | Text | Call | CallAnswer


class BodyError(ValueError):
    """The body could not be decoded by any reader."""


def encode_body(body: Body) -> bytes:
    match body:
        case Greeting():
            _check("a name", body.name, MAX_NAME, needed=True)
            content: JsonObject = {"hello": {"name": body.name, "answer": body.answer}}
        case Text():
            _check("a text", body.text, MAX_TEXT)
            for text in (body.file_name, body.group, body.member):
                _check("a name", text, MAX_NAME)
            if not body.text and not body.file_name:
                raise BodyError("a message needs a text or a file")
            values = {
                "text": body.text,
                "file": body.file_name,
                "group": body.group,
                "member": body.member,
            }
            content = {"message": {key: value for key, value in values.items() if value}}
        case Call():
            content = {"call": {"media": body.media.value}}
        case CallAnswer():
            content = {"callAnswer": {"accepted": body.accepted}}
    return json.dumps({"v": VERSION, **content}, ensure_ascii=False).encode()


def decode_body(data: bytes) -> Body | None:
    """Decode a body; None if it is not of this format, or of a later kind."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    match document:
        case {"v": int(), "hello": {"name": str(name), **rest}} if _is_text(name, MAX_NAME):
            return Greeting(name, rest.get("answer") is True)
        case {"v": int(), "message": dict(fields)}:
            return _message(fields)
        case {"v": int(), "call": {"media": str(media)}}:
            kinds = {kind.value: kind for kind in CallMedia}
            return Call(kinds[media]) if media in kinds else None
        case {"v": int(), "callAnswer": {"accepted": bool(accepted)}}:
            return CallAnswer(accepted)
    return None


def _message(fields: JsonMapping) -> Text | None:
    text, *names = (fields.get(key, "") for key in ("text", "file", "group", "member"))
    if not _is_text(text, MAX_TEXT, empty=True):
        return None
    if not all(_is_text(name, MAX_NAME, empty=True) for name in names):
        return None
    return Text(text, *names) if text or names[0] else None


def _is_text(value: object, limit: int, *, empty: bool = False) -> bool:
    if not isinstance(value, str) or len(value) > limit or not (value or empty):
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _check(what: str, value: str, limit: int, *, needed: bool = False) -> None:
    if not _is_text(value, limit, empty=not needed):
        least = 1 if needed else 0
        raise BodyError(f"{what} has {least} to {limit} characters")
