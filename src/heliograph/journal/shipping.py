"""Copy sealed segments to other storage, for a pipeline on another machine.

A segment is copied atomically and once, however often it is shipped: sealed segments never change.
Copied segments stay in the journal until its size limit removes them.
"""

import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.fs

from heliograph.journal.storage.reader import segments
from heliograph.runtime.errors import StartError

__all__ = ["FileTarget", "HttpTarget", "Shipper", "Target", "open_target"]

TIMEOUT = 60.0


class Target(Protocol):
    """A destination of segments."""

    def put(self, name: str, data: bytes) -> bool:
        """Store a segment; return False if it exists already. Raises OSError."""
        ...


class FileTarget:
    """A directory or URL that Arrow can write. Raises `StartError` if it knows no such URL."""

    def __init__(self, place: str) -> None:
        url = place if "://" in place else Path(place).absolute().as_uri()
        try:
            found = pyarrow.fs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError) as exc:
            raise StartError(
                f"{place}: {exc}: name a directory, or a URL as s3://bucket/folder"
            ) from exc
        self._filesystem: pyarrow.fs.FileSystem = found[0]
        self._root: str = found[1]
        self._has_rename = isinstance(self._filesystem, pyarrow.fs.LocalFileSystem)

    def put(self, name: str, data: bytes) -> bool:
        final = f"{self._root}/{name}"
        known = self._filesystem.get_file_info(final)
        if known.type == pyarrow.fs.FileType.File and known.size == len(data):
            return False
        folder, _, file = final.rpartition("/")
        self._filesystem.create_dir(folder, recursive=True)
        # Object storage shows only complete files; elsewhere a rename ensures that.
        written = f"{folder}/_{file}.tmp" if self._has_rename else final
        with self._filesystem.open_output_stream(written) as stream:
            stream.write(data)
        if written != final:
            self._filesystem.move(written, final)
        return True


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
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked
            f"{self._url}/v1/segments/{name}",
            data,
            {"Authorization": f"Bearer {self._token}"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT, context=self._tls) as answer:  # noqa: S310
                return bool(answer.status == 201)
        except urllib.error.HTTPError as exc:
            with exc:
                raise OSError(f"{exc.code}: {exc.read().decode(errors='replace').strip()}") from exc


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
        self._shipped: set[str] = set()

    def ship(self) -> int:
        """Copy segments that the target does not have; return their number. Raises `StartError`."""
        try:
            found = segments(self._directory)
        except OSError as exc:
            raise StartError(f"{self._directory}: {exc.strerror}: see [journal] path") from exc
        names = {str(path.relative_to(self._directory)): path for path in found}
        self._shipped &= names.keys()
        count = 0
        for name, path in names.items():
            if name not in self._shipped:
                try:
                    count += self._target.put(name, path.read_bytes())
                except FileNotFoundError:
                    if not path.exists():
                        continue  # its router has removed it
                    raise
                except (OSError, pa.ArrowException) as exc:
                    raise StartError(
                        f"{name} cannot be shipped: {exc}. What was shipped is whole; run it again"
                        " when the cause is gone"
                    ) from exc
                self._shipped.add(name)
        return count
