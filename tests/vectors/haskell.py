"""String literals as Haskell's `show` writes them."""

import re

_CONTROL = (
    "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI "
    "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US SP"
)
_NAMED = {name: code for code, name in enumerate(_CONTROL.split())} | {"DEL": 127}
_SHORT = dict(zip('abfnrtv"\\', (7, 8, 12, 10, 13, 9, 11, 34, 92), strict=True))
# SOH before SO: the longest name wins, and "\SO\&H" is how the other reading is written.
_TOKEN = re.compile(
    r"\\(?:(?P<named>" + "|".join(sorted(_NAMED, key=len, reverse=True)) + r")"
    r"|(?P<decimal>[0-9]+)|(?P<short>[abfnrtv\"\\])|(?P<empty>&))|(?P<plain>[^\\\"])"
)


def parse_string(text: str) -> bytes:
    """The first string literal in `text`, if it was made from bytes."""
    return parse_text(text).encode("latin-1")


def parse_text(text: str) -> str:
    """The first string literal in `text`, if it was made from characters."""
    start = text.index('"') + 1
    out: list[int] = []
    while text[start] != '"':
        token = _TOKEN.match(text, start)
        if token is None:
            raise ValueError(f"not a Haskell string: {text!r}")
        start = token.end()
        if token["named"]:
            out.append(_NAMED[token["named"]])
        elif token["decimal"]:
            out.append(int(token["decimal"]))
        elif token["short"]:
            out.append(_SHORT[token["short"]])
        elif token["plain"]:
            out.append(ord(token["plain"]))
    return "".join(map(chr, out))
