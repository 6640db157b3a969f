"""Writes docs/protocol-map.md from the protocol tables: `python docs/protocol_map.py`."""

import importlib
import inspect
import re
import sys
from pathlib import Path

from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.smp import SMP_COMMANDS, SMP_RESPONSES
from heliograph.wire.table import LATEST, Field, Message, Table, tag_of

TARGET = Path(__file__).with_name("protocol-map.md")

INTRODUCTION = """\
# Protocol map

From each command and response to its bytes and to the code behind it. This page is written by
`docs/protocol_map.py` from the tables that encode and decode: a test fails when it is out of date.

A message is its tag, and if it has parameters a space and the parameters with nothing between them.
`str` is a u8 length and bytes, `large` a u16 length and bytes, `maybe(x)` is `0`, or `1` and x,
`list(x)` a u8 count and items, `tail` all that is left, `bool` is `T` or `F`.
Keys are `str` with the DER form. `since` and `until` are protocol versions.
"""


def main() -> str:
    parts = [INTRODUCTION]
    for title, table in (
        ("Notification router: commands", NTF_COMMANDS),
        ("Notification router: responses", NTF_RESPONSES),
        ("Messaging router: commands", SMP_COMMANDS),
        ("Messaging router: responses and pushes", SMP_RESPONSES),
    ):
        parts.append(f"\n## {title}\n\n{_rows(table)}")
    return "".join(parts)


HANDLERS = {"ntf": ("heliograph.ntf.commands",)}
"""Modules that handle commands in methods named by tag; for `smp` see `smp_handlers`."""


def _rows(table: Table) -> str:
    head = "| tag | what it is | parameters | must come with | value | handled by |\n"
    head += "| --- " * 6 + "|\n"
    part = table.name.split()[0].lower() if table.name.endswith("command") else None
    return head + "".join(_row(message, part) for message in table.messages)


def _handler(tag: str, part: str | None) -> str:
    if part == "smp":
        return f"`{smp_handlers()[tag]}`"
    sources = {
        module: inspect.getsource(importlib.import_module(module))
        for module in HANDLERS.get(part or "", ())
    }
    for module, source in sources.items():
        for name in (tag.lower(), f"_{tag.lower()}"):
            if re.search(rf"^    (async )?def {name}\(", source, re.MULTILINE):
                return f"`{module}.{name}`"
    mentioned = (f"`{m}`" for m, source in sources.items() if re.search(rf"\.{tag}\b", source))
    return next(mentioned, "")


def _row(message: Message, part: str | None) -> str:
    doc = (inspect.getdoc(message.type) or "").split("\n")[0]
    if doc.startswith(f"{message.type.__name__}("):  # what a dataclass makes up
        doc = ""
    fields = "<br>".join(map(_field, message.fields))
    code = f"`{message.type.__module__}.{message.type.__name__}`"
    tag = tag_of(message).decode()
    cells = (f"`{tag}`", doc, fields, message.credentials.value, code, _handler(tag, part))
    return f"| {' | '.join(cells)} |\n"


def _field(field: Field) -> str:
    name = f"{field.name}: " if field.name else ""
    notes = []
    if field.since:
        notes.append(f"since {field.since}")
    if field.until != LATEST:
        notes.append(f"until {field.until}")
    suffix = f" ({', '.join(notes)})" if notes else ""
    return f"{name}{field.codec.name}{suffix}"


SMP_PAGE = Path(__file__).with_name("smp.md")
BEGIN, END = "<!-- commands -->\n", "<!-- /commands -->\n"


def smp_handlers() -> dict[str, str]:
    """Return where the messaging router handles each command, from its registry."""
    module = importlib.import_module("heliograph.smp.commands.handlers")
    source = inspect.getsource(module)
    owners = dict(re.findall(r"(\w+)(?: = |: )(\w+Commands)\b", source))
    return {
        tag: f"{getattr(module, owners[owner]).__module__}.{method}"
        for tag, owner, method in re.findall(r"smp\.(\w+): (\w+)\.(\w+),", source)
    }


def smp_page() -> str:
    """Return docs/smp.md with its table of commands."""
    handlers = smp_handlers()
    rows = ["| command | what it does | must come with | handled by |\n", "| --- " * 4 + "|\n"]
    for message in SMP_COMMANDS.messages:
        tag = tag_of(message).decode()
        doc = (inspect.getdoc(message.type) or "").split("\n")[0]
        cells = f"`{tag}`", doc, message.credentials.value, f"`{handlers[tag]}`"
        rows.append(f"| {' | '.join(cells)} |\n")
    head, _, rest = SMP_PAGE.read_text().partition(BEGIN)
    return f"{head}{BEGIN}{''.join(rows)}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != main() or SMP_PAGE.read_text() != smp_page())
    TARGET.write_text(main())
    SMP_PAGE.write_text(smp_page())
