"""Draw the pictures of the documentation: `python docs/pictures.py`.

Boxes and arrows in SVG, for light and dark backgrounds. A test fails when they are out of date, and
compares the token's arrows with the machine itself.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
NAMESPACE = "http://www.w3.org/2000/svg"
HEAD = (
    '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8"'
    ' orient="auto-start-reverse"><path class="head" d="M0 1 L10 5 L0 9 z"/></marker>'
)

STYLE = """
  text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
  .small { font-size: 12px; fill: #52606d; }
  .title { font-weight: 600; }
  .label { font-size: 12px; fill: #334e68; }
  .halo { font-size: 12px; fill: none; stroke: #ffffff; stroke-width: 8px; stroke-linejoin: round; }
  .ground { fill: #ffffff; }
  .box { fill: #f0f4f8; stroke: #486581; stroke-width: 1.5; }
  .main { fill: #e3f2fd; stroke: #1769aa; }
  .end { fill: #fdecea; stroke: #b04a3f; }
  .good { fill: #e6f4ea; stroke: #2f7d4f; }
  .zone { fill: none; stroke: #9fb3c8; stroke-dasharray: 5 4; }
  .arrow { fill: none; stroke: #486581; stroke-width: 1.5; }
  .soft { stroke-dasharray: 4 4; }
  .head { fill: #486581; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; }
    .small { fill: #9aa5b1; }
    .label { fill: #bcccdc; }
    .halo { stroke: #10171f; }
    .ground { fill: #10171f; }
    .box { fill: #1f2933; stroke: #829ab1; }
    .main { fill: #102a43; stroke: #62a9e6; }
    .end { fill: #3b1f1d; stroke: #d98880; }
    .good { fill: #17301f; stroke: #6fbf8b; }
    .zone { stroke: #52606d; }
    .arrow { stroke: #9fb3c8; }
    .head { fill: #9fb3c8; }
  }
"""


class Box(NamedTuple):
    """`x` and `y` are of the middle."""

    name: str
    x: int
    y: int
    lines: tuple[str, ...] = ()
    kind: str = ""
    width: int = 130
    height: int = 44


class Arrow(NamedTuple):
    """`bend` is how far the middle is pushed to the left of the way."""

    source: str
    target: str
    label: str = ""
    bend: int = 0
    soft: bool = False
    at: float = 0.5


class Zone(NamedTuple):
    label: str
    x: int
    y: int
    width: int
    height: int


class Picture(NamedTuple):
    file: str
    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    zones: Sequence[Zone] = ()


TOKEN = Picture(
    "machine-token.svg",
    "The life of a token",
    900,
    400,
    (
        Box("start", 50, 160, ("TNEW",), "plain", 50, 30),
        Box("REGISTERED", 200, 160, ("a code is pending",), "main", 140, 50),
        Box("CONFIRMED", 480, 160, ("the provider took it",), "main", 160, 50),
        Box("ACTIVE", 770, 160, ("gets pushes",), "good", 130, 50),
        Box("INVALID", 590, 345, ("with the provider's reason",), "end", 190, 50),
        Box("EXPIRED", 130, 345, ("from imported stores",), "end", 150, 50),
    ),
    (
        Arrow("start", "REGISTERED"),
        Arrow("REGISTERED", "CONFIRMED", "accepted"),
        Arrow("CONFIRMED", "ACTIVE", "code"),
        Arrow("REGISTERED", "ACTIVE", "code", 62),
        Arrow("ACTIVE", "REGISTERED", "TRPL", -112),
        Arrow("CONFIRMED", "REGISTERED", "TRPL", 44),
        Arrow("REGISTERED", "INVALID", "rejected", 0, at=0.62),
        Arrow("CONFIRMED", "INVALID", "rejected", 0, at=0.42),
        Arrow("ACTIVE", "INVALID", "rejected"),
        Arrow("INVALID", "REGISTERED", "TNEW again, TRPL", 44),
        Arrow("EXPIRED", "REGISTERED", "TNEW again, TRPL"),
        Arrow("EXPIRED", "INVALID", "rejected"),
    ),
)

SUBSCRIPTION = Picture(
    "machine-subscription.svg",
    "A subscription to a queue's notifications",
    900,
    350,
    (
        Box("start", 50, 90, ("SNEW",), "plain", 50, 30),
        Box("PENDING", 200, 90, ("waits for its router",), "main", 150, 50),
        Box("ACTIVE", 480, 90, ("notifications come",), "good", 150, 50),
        Box("INACTIVE", 790, 90, ("the connection is down",), "main", 170, 50),
        Box("ERR", 110, 290, ("with the error",), "end", 120, 50),
        Box("AUTH", 280, 290, ("refused",), "end", 100, 50),
        Box("DELETED", 480, 290, ("the queue was deleted",), "end", 165, 50),
        Box("END", 700, 290, ("another took over",), "end", 140, 50),
    ),
    (
        Arrow("start", "PENDING"),
        Arrow("PENDING", "ACTIVE", "SOK to NSUB"),
        Arrow("ACTIVE", "INACTIVE", "disconnected", 46),
        Arrow("INACTIVE", "ACTIVE", "subscribed again", 46),
        Arrow("PENDING", "ERR", "an error"),
        Arrow("ERR", "ACTIVE", "retried", 0, at=0.66),
        Arrow("PENDING", "AUTH", "AUTH", 0, at=0.75),
        Arrow("ACTIVE", "DELETED", "DELD"),
        Arrow("ACTIVE", "END", "END, in this session", 0, at=0.6),
    ),
)

PUSH = Picture(
    "machine-push.svg",
    "A pending push",
    900,
    330,
    (
        Box("start", 75, 110, ("NMSG, TNEW,", "wake-up due"), "plain", 100, 44),
        Box("pending", 250, 110, ("a row of the store",), "main", 150, 50),
        Box("in flight", 560, 110, ("in the provider's window",), "main", 190, 50),
        Box("accepted", 810, 110, ("the row is deleted",), "good", 130, 50),
        Box("expired", 170, 275, ("counted",), "end", 120, 50),
        Box("void", 600, 275, ("the token is INVALID or deleted",), "end", 220, 50),
    ),
    (
        Arrow("start", "pending"),
        Arrow("pending", "in flight", "due, and there is room", 50),
        Arrow("in flight", "accepted", "accepted"),
        Arrow("in flight", "pending", "retry: back-off, Retry-After", 44),
        Arrow("pending", "expired", "older than its time to live"),
        Arrow("in flight", "void", "token rejected"),
        Arrow("pending", "void", "token deleted", -16, at=0.55),
    ),
)

QUEUE = Picture(
    "machine-queue.svg",
    "A queue of the messaging router",
    900,
    340,
    (
        Box("start", 45, 120, ("NEW",), "plain", 45, 30),
        Box("open", 210, 120, ("anyone with the ID sends",), "main", 190, 50),
        Box("secured", 520, 120, ("only the holder of the key sends",), "good", 200, 50),
        Box("off", 800, 120, ("senders: AUTH",), "end", 140, 50),
        Box("full", 320, 285, ("senders: QUOTA",), "main", 140, 50),
        Box("deleted", 720, 285, ("everyone: AUTH",), "end", 150, 50),
    ),
    (
        Arrow("start", "open"),
        Arrow("open", "secured", "KEY, SKEY"),
        Arrow("secured", "off", "OFF"),
        Arrow("open", "off", "OFF", 72),
        Arrow("open", "full", "quota reached", -26, at=0.55),
        Arrow("full", "open", "emptied", -26, at=0.5),
        Arrow("secured", "full", "quota reached", 0, at=0.45),
        Arrow("open", "deleted", "DEL", 0, at=0.72),
        Arrow("secured", "deleted", "DEL"),
        Arrow("off", "deleted", "DEL"),
    ),
)

SYSTEM = Picture(
    "system.svg",
    "How a message becomes a notification",
    900,
    480,
    (
        Box("Journal", 380, 90, ("events without identities",), "", 220, 58),
        Box("Data pipeline", 715, 90, ("Spark: ledger, statistics, health",), "main", 250, 58),
        Box("Contact", 100, 240, ("sends a message",), "", 150, 58),
        Box("Messaging router", 380, 240, ("smp: queues, notifications",), "main", 220, 58),
        Box("Notification router", 715, 240, ("ntf: tokens, queues, pushes",), "main", 250, 58),
        Box("Phone", 240, 410, ("agent and device: fetches, decrypts, shows",), "good", 310, 58),
        Box("Push provider", 715, 410, ("APNs, FCM, Web Push",), "", 200, 58),
    ),
    (
        Arrow("Contact", "Messaging router", "SEND"),
        Arrow("Messaging router", "Notification router", "NMSG"),
        Arrow("Notification router", "Push provider", "a push, encrypted twice"),
        Arrow("Push provider", "Phone", "wakes it; cannot read it"),
        Arrow("Phone", "Messaging router", "GET: the message"),
        Arrow("Phone", "Notification router", "TNEW: the token, SNEW: queues", 0, at=0.56),
        Arrow("Messaging router", "Journal", "events", soft=True),
        Arrow("Notification router", "Journal", "events", soft=True),
        Arrow("Journal", "Data pipeline", soft=True),
    ),
    (Zone("your machines", 245, 30, 630, 262),),
)  # fmt: skip

PICTURES = (SYSTEM, TOKEN, SUBSCRIPTION, PUSH, QUEUE)


def draw(picture: Picture) -> str:
    boxes = {box.name: box for box in picture.boxes}
    size = f'width="{picture.width}" height="{picture.height}"'
    parts = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {picture.width} {picture.height}" {size}>',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{STYLE}</style>",
        f"<defs>{HEAD}</defs>",
        f'<rect class="ground" {size} rx="8"/>',
    ]
    for zone in picture.zones:
        parts += _zone(zone)
    labels: list[str] = []
    for arrow in picture.arrows:
        line, label = _arrow(arrow, boxes[arrow.source], boxes[arrow.target])
        parts.append(line)
        labels += label
    for box in picture.boxes:
        parts += _box(box)
    return "\n".join([*parts, *labels, "</svg>", ""])


def _zone(zone: Zone) -> Iterator[str]:
    yield (
        f'<rect class="zone" x="{zone.x}" y="{zone.y}" width="{zone.width}"'
        f' height="{zone.height}" rx="12"/>'
    )
    yield f'<text class="small" x="{zone.x + 14}" y="{zone.y + 20}">{escape(zone.label)}</text>'


def _box(box: Box) -> Iterator[str]:
    left, top = box.x - box.width // 2, box.y - box.height // 2
    if box.kind != "plain":
        yield (
            f'<rect class="box {box.kind}" x="{left}" y="{top}" width="{box.width}"'
            f' height="{box.height}" rx="8"/>'
        )
    lines = [*([] if box.kind == "plain" else [box.name]), *box.lines]
    first = box.y + 5 - (len(lines) - 1) * 9
    for number, line in enumerate(lines):
        style = "title" if number == 0 and box.kind != "plain" else "small"
        yield (
            f'<text class="{style}" x="{box.x}" y="{first + number * 18}" text-anchor="middle">'
            f"{escape(line)}</text>"
        )


def _arrow(arrow: Arrow, source: Box, target: Box) -> tuple[str, list[str]]:
    dx, dy = target.x - source.x, target.y - source.y
    length = math.hypot(dx, dy)
    # The control point of a quadratic curve is twice as far out as its middle.
    middle = ((source.x + target.x) / 2, (source.y + target.y) / 2)
    control = (
        middle[0] + dy / length * arrow.bend * 2,
        middle[1] - dx / length * arrow.bend * 2,
    )
    begin = _edge(source, control if arrow.bend else (target.x, target.y))
    end = _edge(target, control if arrow.bend else (source.x, source.y))
    if arrow.bend:
        way = f"M{_point(begin)} Q{_point(control)} {_point(end)}"
    else:
        way = f"M{_point(begin)} L{_point(end)}"
        control = ((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2)
    soft = " soft" if arrow.soft else ""
    line = f'<path class="arrow{soft}" d="{way}" marker-end="url(#head)"/>'
    if not arrow.label:
        return line, []
    place = _on_curve(begin, control, end, arrow.at)
    at = f'x="{place[0]:.0f}" y="{place[1] + 4:.0f}" text-anchor="middle"'
    text = escape(arrow.label)
    return line, [
        f'<text class="halo" {at}>{text}</text>',
        f'<text class="label" {at}>{text}</text>',
    ]


def _edge(box: Box, towards: tuple[float, float]) -> tuple[float, float]:
    """Where the way from the middle of a box leaves it."""
    dx, dy = towards[0] - box.x, towards[1] - box.y
    width, height = box.width / 2 + 4, box.height / 2 + 4
    scale = min(width / abs(dx) if dx else math.inf, height / abs(dy) if dy else math.inf)
    return box.x + dx * scale, box.y + dy * scale


def _on_curve(
    begin: tuple[float, float], control: tuple[float, float], end: tuple[float, float], at: float
) -> tuple[float, float]:
    first, second, third = (1 - at) ** 2, 2 * at * (1 - at), at**2
    return (
        first * begin[0] + second * control[0] + third * end[0],
        first * begin[1] + second * control[1] + third * end[1],
    )


def _point(point: tuple[float, float]) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def main() -> dict[str, str]:
    return {picture.file: draw(picture) for picture in PICTURES}


if __name__ == "__main__":
    drawn = main()
    if "--check" in sys.argv:
        sys.exit(any((HERE / name).read_text() != text for name, text in drawn.items()))
    for name, text in drawn.items():
        (HERE / name).write_text(text)
