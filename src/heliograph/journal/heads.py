"""The head of each run of a router: how far its sealed segments reach, and when that was so.

    DIR/_heads/<router>-<boot>.json     one small file for each run, replaced at each seal

Without it a reader cannot tell a router that is idle from one whose newest segments are lost. While
nothing happens a run renews its head every `HEARTBEAT` seconds. When it ends, the head says so;
after a kill, the next run writes that. Heads are beside the folders of routers, so that they are
still there if such a folder is gone.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = [
    "HEADS",
    "HEARTBEAT",
    "SHARED_HEARTBEAT",
    "Head",
    "decode_head",
    "encode_head",
    "head_name",
    "write_head",
]

HEADS = "_heads"
HEARTBEAT = 60.0
"""Seconds after which an idle run renews its head."""
SHARED_HEARTBEAT = 10.0
"""The same beside other processes of its router: the newest windows of all wait for it."""
MAX_HEAD = 4096
"""Bytes that a head has at most."""
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Head:
    """At the time `at`, in microseconds, all events of a run were in its sealed segments.

    The last of these has the number `segment`, and its last event the sequence number `seq`.
    """

    router: str
    boot: int
    part: str
    segment: int = 0
    seq: int = 0
    at: int = 0
    ended: bool = False
    """The run writes nothing more: it was shut down, or another one has found it killed."""
    lost: int = 0
    """Events up to `seq` that the run could not write when it ended."""

    @property
    def run(self) -> str:
        return f"{self.router}/{self.boot}"


def head_name(router: str, boot: int) -> str:
    return f"{router}-{boot}.json"


def encode_head(head: Head) -> bytes:
    return json.dumps(asdict(head), separators=(",", ":")).encode()


def decode_head(data: bytes) -> Head:
    """Decode the content of a file. Raises ValueError."""
    try:
        head = Head(**json.loads(data))
    except (TypeError, RecursionError) as exc:
        raise ValueError("not the head of a run") from exc
    numbers = (head.boot, head.segment, head.seq, head.at, head.lost)
    texts = (head.router, head.part)
    if (
        any(type(number) is not int or not 0 <= number <= _MAX_NUMBER for number in numbers)
        or any(type(text) is not str or "/" in text for text in texts)
        or type(head.ended) is not bool
    ):
        raise ValueError("not the head of a run")
    return head


def write_head(journal: Path, head: Head) -> None:
    """Replace the head of a run. Not durable: an older head claims less. Raises OSError."""
    folder = journal / HEADS
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / head_name(head.router, head.boot)
    temporary = path.with_name(f"_{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode_head(head))
    temporary.replace(path)
