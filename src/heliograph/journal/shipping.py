"""Copy sealed segments to other storage, for a pipeline on another machine.

A segment is copied atomically and once, however often it is shipped: sealed segments never change.
The heads of runs follow the segments that they count.
What the pipeline acknowledges there is copied back, so that the router removes what was read first.
"""

import contextlib
import logging
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.fs

from heliograph.journal.heads import HEADS
from heliograph.journal.readers import (
    ACKNOWLEDGED,
    decode_acknowledged,
    encode_acknowledged,
    read_acknowledged,
)
from heliograph.journal.storage.reader import segments
from heliograph.runtime.errors import StartError, file_error
from heliograph.runtime.files import sync_directory, write_file

__all__ = ["FileTarget", "HttpTarget", "SegmentRefused", "Shipper", "Target", "open_target"]

logger = logging.getLogger(__name__)

TIMEOUT = 60.0
MAX_ANSWER = 16 << 20
"""Bytes of an answer of a collector that are read."""
MAX_REASON = 1000
"""The same of the text of a refusal."""
_REFUSALS = (400, 409, 413)
"""Answers of a collector that concern one segment, and stay the same."""


_MAGIC = b"PAR1"
"""The first and the last bytes of a Parquet file that was written completely."""


class SegmentRefused(OSError):
    """The target will never accept this segment; others may go on."""


class Target(Protocol):
    """A destination of segments."""

    def put(self, name: str, data: bytes) -> bool:
        """Store a segment; return False if it exists already. Raises OSError."""
        ...

    def put_head(self, name: str, data: bytes) -> None:
        """Replace the head of a run, see `heliograph.journal.heads`. Raises OSError."""
        ...

    def acknowledged(self, router: str) -> bytes | None:
        """Return the router's file of acknowledged segments, if there is one. Raises OSError."""
        ...


class FileTarget:
    """A directory or URL that Arrow can write. Raises `StartError` if it knows no such URL."""

    def __init__(self, place: str) -> None:
        url = place if "://" in place else Path(place).absolute().as_uri()
        try:
            found = pyarrow.fs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError) as exc:
            reason = str(exc).partition("\n")[0]
            raise StartError(
                f"{place}: {reason}: name a directory, or a URL as s3://bucket/folder"
            ) from exc
        self._filesystem: pyarrow.fs.FileSystem = found[0]
        self._root: str = found[1].rstrip("/")
        self._is_local = isinstance(self._filesystem, pyarrow.fs.LocalFileSystem)
        # Object storage shows only complete files; elsewhere a rename ensures that.
        has_rename = (pyarrow.fs.LocalFileSystem, pyarrow.fs.HadoopFileSystem)
        self._has_rename = isinstance(self._filesystem, has_rename)

    def put(self, name: str, data: bytes) -> bool:
        known = self._filesystem.get_file_info(f"{self._root}/{name}")
        if known.type == pyarrow.fs.FileType.File:
            if known.size == len(data):
                return False
            if not data.startswith(_MAGIC) or not data.endswith(_MAGIC):
                raise SegmentRefused("it is damaged here, and another one is there")
        self._replace(name, data)
        return True

    def put_head(self, name: str, data: bytes) -> None:
        self._replace(f"{HEADS}/{name}", data)

    def _replace(self, name: str, data: bytes) -> None:
        final = f"{self._root}/{name}"
        folder, _, file = final.rpartition("/")
        if self._has_rename:
            self._filesystem.create_dir(folder, recursive=True)
        written = f"{folder}/_{file}.tmp" if self._has_rename else final
        with self._filesystem.open_output_stream(written) as stream:
            stream.write(data)
        if written != final:
            if self._is_local:
                _sync(written)
            self._filesystem.move(written, final)
        if self._is_local:
            sync_directory(Path(folder))
            sync_directory(Path(folder).parent)

    def acknowledged(self, router: str) -> bytes | None:
        try:
            with self._filesystem.open_input_stream(
                f"{self._root}/{router}/{ACKNOWLEDGED}"
            ) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None


class HttpTarget:
    """A collector, see `heliograph.journal.collector`. `authority` is a file of certificates."""

    def __init__(self, url: str, token: str, authority: Path | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token
        try:
            self._tls = ssl.create_default_context(cafile=authority)
        except OSError as exc:
            raise StartError(f"{authority}: {exc.strerror}: name a file of certificates") from exc

    def put(self, name: str, data: bytes) -> bool:
        return self._put(f"segments/{name}", data)

    def put_head(self, name: str, data: bytes) -> None:
        self._put(f"heads/{name}", data)

    def _put(self, path: str, data: bytes) -> bool:
        try:
            return self._ask("PUT", path, data)[0] == 201
        except urllib.error.HTTPError as exc:
            with exc:
                text = f"{exc.code}: {exc.read(MAX_REASON).decode(errors='replace').strip()}"
            raise (SegmentRefused if exc.code in _REFUSALS else OSError)(text) from exc

    def acknowledged(self, router: str) -> bytes | None:
        try:
            return self._ask("GET", f"acknowledged/{router}")[1]
        except urllib.error.HTTPError as exc:
            with exc:
                if exc.code == 404:
                    return None
                raise OSError(str(exc.code)) from exc

    def _ask(self, method: str, path: str, data: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self._token}"}
        url = f"{self._url}/v1/{path}"
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the scheme is checked
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=self._tls) as answer:  # noqa: S310
            return int(answer.status), bytes(answer.read(MAX_ANSWER))


def open_target(place: str, token: str | None, authority: Path | None = None) -> Target:
    """Return the target for a directory, a URL of storage or of a collector."""
    if not place.startswith(("http://", "https://")):
        return FileTarget(place)
    if token is None:
        raise StartError(f"{place}: a collector asks for a token: --token-file")
    return HttpTarget(place, token, authority)


class Shipper:
    """Ships the journal in `directory`."""

    def __init__(self, directory: Path, target: Target) -> None:
        self._directory = directory
        self._target = target
        self._done: set[str] = set()
        """Segments that were shipped, or that the target refused for good."""
        self.refused = 0
        """Number of segments that the target refused for good."""
        self._heads: dict[str, bytes] = {}
        """Heads that were shipped, by name."""

    def ship(self) -> int:
        """Copy segments that the target does not have; return their number. Raises `StartError`."""
        try:
            heads = self._read_heads()  # first, so that the segments that they count are found
            found = segments(self._directory)
        except OSError as exc:
            text = file_error(exc, self._directory, advice="see [journal] path")
            raise StartError(text) from exc
        names = {str(path.relative_to(self._directory)): path for path in found}
        self._done &= names.keys()
        routers = {path.parent.name for path in found if path.parent != self._directory}
        count = 0
        for router in sorted(routers):
            known = read_acknowledged(self._directory / router)
            self._done |= {
                name
                for name, path in names.items()
                if path.parent.name == router and known.has(*_numbers(path))
            }
        for name, path in names.items():
            if name not in self._done:
                count += self._ship(name, path)
        self._ship_heads(heads)
        for router in sorted(routers):
            self._copy_acknowledged(router)
        return count

    def _ship(self, name: str, path: Path) -> bool:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return False  # its router has removed it
        try:
            is_new = self._target.put(name, data)
        except SegmentRefused as exc:
            logger.error("%s is refused, and not sent again: %s", name, exc)
            self.refused += 1
            is_new = False
        except (OSError, pa.ArrowException) as exc:
            raise StartError(
                f"{name} cannot be shipped: {exc}. What was shipped is whole; run it again"
                " when the cause is gone"
            ) from exc
        self._done.add(name)
        return is_new

    def _read_heads(self) -> dict[str, bytes]:
        found = {}
        for path in sorted((self._directory / HEADS).glob("[!_]*.json")):
            with contextlib.suppress(FileNotFoundError):
                found[path.name] = path.read_bytes()
        return found

    def _ship_heads(self, heads: Mapping[str, bytes]) -> None:
        """Copy the heads that have changed: the segments that they count are there."""
        for name, data in heads.items():
            if self._heads.get(name) != data:
                try:
                    self._target.put_head(name, data)
                except SegmentRefused as exc:
                    logger.error("the head %s is refused: %s", name, exc)
                except (OSError, pa.ArrowException) as exc:
                    raise StartError(
                        f"the head {name} cannot be shipped: {exc}. What was shipped is whole; run"
                        " it again when the cause is gone"
                    ) from exc
        self._heads = dict(heads)

    def _copy_acknowledged(self, router: str) -> None:
        """Copy back what a pipeline has acknowledged at the target, for the router."""
        try:
            data = self._target.acknowledged(router)
            if data is None:
                return
            found = encode_acknowledged(decode_acknowledged(data))
            if found != encode_acknowledged(read_acknowledged(self._directory / router)):
                write_file(self._directory / router / ACKNOWLEDGED, found)
        except (OSError, ValueError, pa.ArrowException) as exc:
            logger.warning("acknowledgements of %s cannot be copied: %s", router, exc)


def _numbers(path: Path) -> tuple[int, int]:
    """Return the boot and the number of a segment; a name without them is never acknowledged."""
    boot, _, number = path.stem.partition("-")
    return (int(boot), int(number)) if boot.isdigit() and number.isdigit() else (-1, -1)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
