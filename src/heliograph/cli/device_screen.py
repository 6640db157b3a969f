"""How `heliograph device` draws what a phone shows.

Texts come from others, so what a terminal would obey is not printed.
"""

import json
import textwrap
import unicodedata
from collections.abc import Iterator
from typing import Any

from heliograph.device.content import Content
from heliograph.journal.events import Journal, notification_id
from heliograph.wire.primitives import b64encode

WIDTH = 44


def plain(text: str) -> str:
    """Without control characters, and those that change the direction of text."""
    return "".join(
        " " if char in "\n\t" else "\N{REPLACEMENT CHARACTER}" if _is_control(char) else char
        for char in text
    )


def draw(content: Content, *, as_json: bool = False) -> str:
    """A notification as a box, with the badge in its corner."""
    if as_json:
        return json.dumps(
            {
                "title": content.title,
                "body": content.body,
                "badge": content.badge,
                "category": content.category.value,
                "thread": content.thread,
            }
        )
    return box(content.title, content.body, content.badge)


def box(title: str, body: str, badge: int | None) -> str:
    corner = f"({badge})" if badge else ""
    short = textwrap.shorten(plain(title), WIDTH - len(corner) - 1, placeholder="...")
    lines = [f"{short:{WIDTH - len(corner)}}{corner}"]
    for part in body.split("\n"):
        lines += textwrap.wrap(plain(part), WIDTH) or [""] * bool(body)
    edge = f"+{'-' * (WIDTH + 2)}+"
    return "\n".join((edge, *(f"| {line:{WIDTH}} |" for line in lines), edge))


class Telling(Journal):
    """A journal that also prints the ID by which others can say what happened to it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __call__(self, kind: str, /, at: float | None = None, **columns: Any) -> None:
        self._journal(kind, at, **columns)
        if kind == "device_shown":
            print(f"  notification {notification_id(columns['notification'])}", flush=True)


def describe(status: Any) -> Iterator[tuple[str, Any]]:
    """Lines of `status`; never a device token or a key. Routers know it by the token ID."""
    yield "name", plain(status.name)
    yield "token", "none" if status.token is None else status.token.value
    if status.token_id is not None:
        yield "token id", b64encode(status.token_id)
    if status.device is not None:
        yield "provider", status.device.provider.text
    yield "mode", status.mode.value
    yield "preview", status.preview.value
    yield "app", status.app.value
    yield "badge", status.badge
    yield "subscribed", status.subscribed
    yield (
        "contacts",
        [f"{plain(row.contact.name)} ({_stage(row, status)})" for row in status.contacts],
    )
    yield "smp", list(status.smp)
    yield "ntf", status.ntf


def _stage(row: Any, status: Any) -> str:
    return "refused" if row.conn_id in status.refused else str(row.stage.value)


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
