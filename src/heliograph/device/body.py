"""What chats say to each other in an agent's bodies, which are opaque bytes to everybody else.

JSON, one object: `{"v": 1, "hello": {...}}`, `message` or `call`. A reader ignores members that it
does not know, and a body that it cannot read is no event, never an error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.device.chat import CallMedia

VERSION = 1
MAX_NAME = 100
MAX_TEXT = 12_000


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection: who is there. Without `answer` one is expected."""

    name: str
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A message, with a file if it has a name, and in a group if that has one."""

    text: str
    file_name: str = ""
    group: str = ""
    member: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    media: CallMedia = CallMedia.AUDIO


Body = Hello | Text | Call


class BodyError(ValueError):
    """A body that nobody could read."""


def encode_body(body: Body) -> bytes:
    match body:
        case Hello():
            _check("a name", body.name, MAX_NAME, needed=True)
            content: dict[str, Any] = {"hello": {"name": body.name, "answer": body.answer}}
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
    return json.dumps({"v": VERSION, **content}, ensure_ascii=False).encode()


def decode_body(data: bytes) -> Body | None:
    """None if it is not of this format, or of a kind that came later."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    match document:
        case {"v": int(), "hello": {"name": str(name), **rest}} if _is_text(name, MAX_NAME):
            return Hello(name, rest.get("answer") is True)
        case {"v": int(), "message": dict(fields)}:
            return _message(fields)
        case {"v": int(), "call": {"media": str(media)}}:
            kinds = {kind.value: kind for kind in CallMedia}
            return Call(kinds[media]) if media in kinds else None
    return None


def _message(fields: Mapping[str, Any]) -> Text | None:
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
