"""Draws what a phone shows, for `heliograph device`.

Texts come from others, so control characters are not printed.
"""

import json
import textwrap
import unicodedata
from collections.abc import Iterator

from heliograph.device.chats.content import Content
from heliograph.device.chats.store import ContactRow
from heliograph.journal.events import DeviceShown, JournalEvent
from heliograph.journal.hashing import notification_id
from heliograph.journal.journal import Journal
from heliograph.phone.phone import PhoneStatus
from heliograph.wire.primitives import b64encode

WIDTH = 44


def plain(text: str) -> str:
    """Remove control characters, and those that change the direction of text."""
    return "".join(
        " " if char in "\n\t" else "\N{REPLACEMENT CHARACTER}" if _is_control(char) else char
        for char in text
    )


def draw(content: Content, *, as_json: bool = False) -> str:
    """Draw a notification as a box, with the badge in its corner."""
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


class PrintingJournal(Journal):
    """A journal that also prints the notification ID, for searches in other journals."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        self._journal.record(event, at)
        if isinstance(event, DeviceShown):
            print(f"  notification {notification_id(event.notification)}", flush=True)


def describe(status: PhoneStatus) -> Iterator[tuple[str, str | int | list[str]]]:
    """Return the lines of `status`; never a device token or a key, only the token ID."""
    yield "name", "none" if status.name is None else plain(status.name)
    yield "token", "none" if status.token is None else status.token.value
    if status.token_id is not None:
        yield "token id", b64encode(status.token_id)
    if status.registered_at is not None:
        yield "registered at", status.registered_at
    if status.device is not None:
        yield "provider", status.device.provider.text
    yield "profiles", [plain(user.name) for user in status.users]
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
    yield "ntf", list(status.ntf)


def _stage(row: ContactRow, status: PhoneStatus) -> str:
    return "refused" if row.conn_id in status.refused else str(row.stage.value)


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
