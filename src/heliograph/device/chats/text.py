"""Preview texts: secrets are hidden, and long messages are cut."""

import re

from heliograph.device.chats.model import ChatItem, Format, Formatted

HIDDEN = "..."
MAX_PREVIEW = 1024

_SECRET = re.compile(r"(?<![\w#])#(?! )([^#\n]*[^#\s])#(?![\w#])")


def format_text(text: str) -> tuple[Formatted, ...]:
    """Split a text into parts; those between `#` signs, as in `the code is #1234#`, are secret."""
    parts: list[Formatted] = []
    end = 0
    for found in _SECRET.finditer(text):
        if found.start() > end:
            parts.append(Formatted(text[end : found.start()]))
        parts.append(Formatted(found[1], Format.SECRET))
        end = found.end()
    if end < len(text):
        parts.append(Formatted(text[end:]))
    return tuple(parts)


def hide_secrets(item: ChatItem) -> str:
    """Return the text of an item without secrets, or else the name of its file."""
    if not item.text:
        return _cut(item.file_name)
    if not item.formatted:
        return _cut(item.text)
    shown = (HIDDEN if part.format is Format.SECRET else part.text for part in item.formatted)
    return _cut("".join(shown))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PREVIEW else text[: MAX_PREVIEW - 1] + "…"
