"""Requests of an operator to the running router: files in its directory, answered by files.

A file is as durable as the store, needs no port, and only who may read the router's keys can write
one. A request that was interrupted is executed again, which changes nothing twice.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from heliograph.runtime.files import write_file

__all__ = ["ActionRequest", "answer", "pending_requests", "submit", "wait_for_answer"]

FOLDER = "action-requests"
MAX_REQUEST = 4 << 20
KEPT_SECONDS = 3600.0
"""Seconds that an answer is kept for a command that may be gone."""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Apply or undo these actions."""

    name: str
    undo: bool
    action_ids: tuple[str, ...]


def submit(directory: Path, action_ids: tuple[str, ...], *, undo: bool) -> str:
    """Write a request, and return its name."""
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    name = secrets.token_hex(8)
    text = json.dumps({"undo": undo, "action_ids": action_ids})
    file = folder / f"{name}.json"
    write_file(file, text.encode(), 0o600)
    if os.geteuid() == 0:  # the router may run as another user
        owner = directory.stat()
        for path in (folder, file):
            os.chown(path, owner.st_uid, owner.st_gid)
    return name


def pending_requests(directory: Path) -> Iterator[ActionRequest]:
    """Yield requests without an answer. One that cannot be understood asks for nothing."""
    folder = directory / FOLDER
    if not folder.is_dir():
        return
    for file in sorted(folder.glob("*.json")):
        ids: tuple[str, ...] = ()
        undo = False
        try:
            if file.stat().st_size <= MAX_REQUEST:
                found = json.loads(file.read_bytes())
                undo = found["undo"] is True
                ids = tuple(item for item in found["action_ids"] if isinstance(item, str))
        except OSError:
            continue  # of another user, who gets no answer
        except (ValueError, KeyError, TypeError):
            ids = ()
        yield ActionRequest(file.stem, undo, ids)


def answer(directory: Path, request: ActionRequest, results: Mapping[str, str]) -> None:
    """Write the result of each action, and remove the request and old answers."""
    folder = directory / FOLDER
    write_file(folder / f"{request.name}.done", json.dumps(results).encode(), 0o600)
    (folder / f"{request.name}.json").unlink(missing_ok=True)
    for file in folder.glob("*.done"):
        if time.time() - file.stat().st_mtime > KEPT_SECONDS:
            file.unlink(missing_ok=True)


def wait_for_answer(directory: Path, name: str, seconds: float) -> dict[str, str] | None:
    """Return the results by action; None if the router has not answered in time."""
    file = directory / FOLDER / f"{name}.done"
    deadline = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)
    results: dict[str, str] = json.loads(file.read_bytes())
    file.unlink(missing_ok=True)
    return results
