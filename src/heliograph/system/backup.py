"""Backups of a whole system: configurations, keys, stores, journal and tables, with checksums.

A backup is a directory like the system's own. Its stores are SQLite files, whatever the routers
use; `manifest.json` has the size, mode and SHA-256 of each file. It is made while routers run, and
appears under its name only when it is complete.

Not in it: logs, what runs at the moment, and stores' locks. A system is restored only if every file
is as the manifest says, and only into a directory that is not there.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from heliograph import __version__
from heliograph.db.copying import OWN_TABLES, check_empty, copy_database
from heliograph.db.database import Migration
from heliograph.db.dialects import open_dialect, sqlite_file
from heliograph.db.errors import DatabaseError
from heliograph.db.sqlite import check_file
from heliograph.ntf import config as ntf_config
from heliograph.ntf.store.schema import MIGRATIONS as NTF_MIGRATIONS
from heliograph.runtime.config.file import FILE_NAME, load
from heliograph.runtime.errors import StartError
from heliograph.runtime.files import make_private_directory, sync_directory, write_file
from heliograph.runtime.process import LOCK
from heliograph.smp import config as smp_config
from heliograph.smp.store.schema import MIGRATIONS as SMP_MIGRATIONS
from heliograph.system.layout import Layout

__all__ = ["Manifest", "back_up", "check_backup", "restore"]

MANIFEST = "manifest.json"
STORES = "stores"
FORMAT_VERSION = 1
CHUNK_BYTES = 1 << 20

_LEFT_OUT = frozenset({LOCK, "state.json", "logs"})
_STORE_SUFFIXES = ("", "-wal", "-shm", "-journal", ".lock")
_FIRST = "_delta_log"
"""Copied before the data files that it names, so that none is missing."""


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    size: int
    mode: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a backup; `rows` are those of the stores, by part and table."""

    format: int
    version: str
    made_at: float
    files: dict[str, BackedUpFile]
    rows: dict[str, dict[str, int]]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True, slots=True)
class _RouterStore:
    part: str
    url: str
    migrations: tuple[Migration, ...]

    @property
    def file(self) -> Path | None:
        return sqlite_file(self.url)


def back_up(root: Path, target: Path, now: float, *, routers_only: bool = False) -> Manifest:
    """Back up the system in `root`. Raises `StartError`, `ConfigError` and `OSError`."""
    layout = Layout(root)
    stores = list(_stores(layout))
    if not layout.config.exists() or not stores:
        raise StartError(f"{root} is not a system's directory: see `heliograph up`")
    if target.exists():
        raise StartError(f"{target} exists already: choose another name")
    if not target.parent.is_dir():
        raise StartError(f"there is no directory {target.parent}: create it first")
    if target.absolute().is_relative_to(root.absolute()):
        raise StartError(f"{target} is in the system's directory: choose another place")
    unfinished = target.with_name(f"{target.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    make_private_directory(unfinished)
    try:
        rows = _copy_stores(stores, unfinished / STORES)
        left_out = {"journal", "pipeline"} if routers_only else set()
        for path in _files(root, stores, left_out):
            _copy(path, unfinished / path.relative_to(root))
        files = dict(_describe(unfinished))
        manifest = Manifest(FORMAT_VERSION, __version__, now, files, rows)
        write_file(unfinished / MANIFEST, json.dumps(asdict(manifest), indent=1).encode(), 0o600)
        sync_directory(unfinished)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return manifest


def check_backup(backup: Path) -> Manifest:
    """Return the manifest of a backup that is whole. Raises `StartError` and `OSError`."""
    manifest = _read_manifest(backup)
    problems = []
    found = {_name(path, backup) for path in _all_files(backup)} - {MANIFEST}
    for name, expected in manifest.files.items():
        if name not in found:
            problems.append(f"{name}: it is missing")
        elif _hash(backup / name) != expected.sha256:
            problems.append(f"{name}: it is not what was backed up")
    problems += [f"{name}: it does not belong to the backup" for name in found - {*manifest.files}]
    if problems:
        raise StartError("\n".join(["the backup is damaged:", *sorted(problems)]))
    return manifest


def restore(backup: Path, root: Path) -> Manifest:
    """Create a system from a backup. Raises `StartError`, `ConfigError` and `OSError`."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StartError(f"{root} exists already: restore into a new directory")
    manifest = check_backup(backup)
    unfinished = root.with_name(f"{root.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    make_private_directory(unfinished)
    try:
        for name, file in manifest.files.items():
            if not name.startswith(f"{STORES}/"):
                _copy(backup / name, unfinished / name)
                (unfinished / name).chmod(file.mode)
        layout = Layout(unfinished)
        for directory in (layout.journal, layout.tables, layout.page):
            directory.mkdir(0o700, exist_ok=True)
        stores = list(_stores(layout))
        for store in stores:
            _check_target(store, unfinished)
        for store in stores:
            if store.part in manifest.rows:
                copy = backup / STORES / f"{store.part}.db"
                _restore_store(store, copy, manifest, unfinished)
        if root.exists():
            root.rmdir()
        sync_directory(unfinished)
        unfinished.rename(root)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return manifest


def _stores(layout: Layout) -> Iterator[_RouterStore]:
    """Return the stores that the configurations of the routers name."""
    if (layout.smp / FILE_NAME).exists():
        smp = load(smp_config.SmpConfig, layout.smp / FILE_NAME, prefix=smp_config.PREFIX)
        yield _RouterStore("smp", smp.store_url(layout.smp), SMP_MIGRATIONS)
    if (layout.ntf / FILE_NAME).exists():
        ntf = load(ntf_config.NtfConfig, layout.ntf / FILE_NAME, prefix=ntf_config.PREFIX)
        yield _RouterStore("ntf", ntf.store_url(layout.ntf), NTF_MIGRATIONS)


def _copy_stores(stores: list[_RouterStore], target: Path) -> dict[str, dict[str, int]]:
    """Copy each store as of one moment; return the number of rows of each table."""
    make_private_directory(target)
    rows = {}
    for store in stores:
        if store.file is not None and not store.file.exists():
            continue  # the router was never started
        copy = target / f"{store.part}.db"
        try:
            if store.file is None:
                rows[store.part] = copy_database(store.url, f"sqlite:///{copy}", store.migrations)
            else:
                with closing(open_dialect(store.url, read_only=True)) as dialect:
                    dialect.backup(copy)
                rows[store.part] = _count(copy)
            check_file(copy)
        except DatabaseError as exc:
            raise StartError(f"the store of {store.part} cannot be copied: {exc}") from exc
        for suffix in _STORE_SUFFIXES[1:]:
            copy.with_name(f"{copy.name}{suffix}").unlink(missing_ok=True)
    return rows


def _count(file: Path) -> dict[str, int]:
    with closing(open_dialect(f"sqlite:///{file}", read_only=True)) as dialect:
        return {
            table: dialect.query(f"SELECT COUNT(*) FROM {table}", ())[0][0]  # noqa: S608
            for table in dialect.columns()
            if table not in OWN_TABLES
        }


def _check_target(store: _RouterStore, unfinished: Path) -> None:
    """Refuse a PostgreSQL database with rows, and an SQLite file elsewhere that exists."""
    file = store.file
    if file is None:
        try:
            with closing(open_dialect(store.url, read_only=True)) as dialect:
                check_empty(dialect)
        except DatabaseError as exc:
            raise StartError(f"the store of {store.part} cannot be restored: {exc}") from exc
    if file is not None and not file.is_relative_to(unfinished.absolute()) and file.exists():
        raise StartError(f"{file}: the store of {store.part} exists already: move it away")


def _restore_store(store: _RouterStore, copy: Path, manifest: Manifest, unfinished: Path) -> None:
    try:
        if store.file is None:
            # A copy of the copy, because SQLite writes beside a file that it reads.
            temporary = unfinished / f"{store.part}.copying"
            _copy(copy, temporary)
            found = copy_database(f"sqlite:///{temporary}", store.url, store.migrations)
            temporary.unlink()
        else:
            _copy(copy, store.file)
            found = _count(store.file)
    except DatabaseError as exc:
        raise StartError(f"the store of {store.part} cannot be restored: {exc}") from exc
    if found != manifest.rows[store.part]:
        raise StartError(f"the store of {store.part} does not have the rows that were backed up")


def _files(root: Path, stores: list[_RouterStore], left_out: set[str]) -> Iterator[Path]:
    """Return what is copied as it is: everything but the stores and what runs now."""
    of_stores = {
        store.file.with_name(f"{store.file.name}{suffix}")
        for store in stores
        if store.file is not None
        for suffix in _STORE_SUFFIXES
    }
    found = [
        path
        for path in _all_files(root)
        if path.absolute() not in of_stores
        and path.name != LOCK
        and path.relative_to(root).parts[0] not in _LEFT_OUT | left_out
    ]
    return iter(sorted(found, key=lambda path: (_FIRST not in path.parts, path)))


def _all_files(root: Path) -> Iterator[Path]:
    """Yield all files, also those that symbolic links lead to. Raises `StartError`, `OSError`."""
    seen = set()
    for directory, below, names in os.walk(root, onerror=_fail, followlinks=True):
        place = os.path.realpath(directory)
        if place in seen:
            below.clear()  # a link to a directory above, or to one that was copied
            continue
        seen.add(place)
        for name in names:
            path = Path(directory) / name
            if path.is_file():
                yield path
            elif path.is_symlink():
                raise StartError(f"{path} leads nowhere: remove it, or mount what it needs")


def _fail(exc: OSError) -> NoReturn:
    raise exc


def _copy(source: Path, target: Path) -> None:
    """Copy a file for its owner only, unless it was removed meanwhile."""
    target.parent.mkdir(0o700, parents=True, exist_ok=True)
    try:
        mode = source.stat().st_mode & 0o777
        with source.open("rb") as file:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as copy:
                shutil.copyfileobj(file, copy, CHUNK_BYTES)
                copy.flush()
                os.fsync(copy.fileno())
        target.chmod(mode)
    except FileNotFoundError:
        target.unlink(missing_ok=True)


def _describe(directory: Path) -> Iterator[tuple[str, BackedUpFile]]:
    for path in sorted(_all_files(directory)):
        status = path.stat()
        file = BackedUpFile(status.st_size, status.st_mode & 0o777, _hash(path))
        yield _name(path, directory), file


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


def _read_manifest(backup: Path) -> Manifest:
    try:
        found = json.loads((backup / MANIFEST).read_bytes())
        if found["format"] != FORMAT_VERSION:
            raise StartError(f"{backup}: another version of Heliograph made it: use that one")
        files = {str(name): BackedUpFile(**file) for name, file in found.pop("files").items()}
    except PermissionError:
        raise
    except FileNotFoundError:
        what = f"it has no {MANIFEST}" if backup.is_dir() else "there is no such directory"
        raise StartError(f"{backup} is not a backup: {what}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
        raise StartError(f"{backup} is not a backup: its {MANIFEST} cannot be read") from exc
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise StartError(f"{backup}: {MANIFEST} names a file outside of the backup")
    return Manifest(files=files, **found)
