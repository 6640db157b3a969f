"""Checks of what is on disk: who can read it, how much room there is, and whether time is sane."""

import ctypes
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from heliograph.doctor.findings import Finding, Findings, good, note, problem, warning
from heliograph.doctor.subject import Subject
from heliograph.runtime.config import FILE_NAME
from heliograph.runtime.identity import CA_KEY, SERVER_KEY

__all__ = ["check_clock", "check_disk", "check_permissions"]

FUTURE = 300.0
MEGABYTE = 1 << 20
_TIME_ERROR = 5
_TIMEX_SIZE = 512  # more than the kernel's struct timex has


def check_permissions(subject: Subject) -> Findings:
    """Secrets are their owner's alone, and the owner is one and the same."""
    directory = subject.directory
    owner = directory.stat()
    found = list(_directory_findings(directory, owner))
    for file in _secrets(subject):
        found += _secret_findings(file, owner)
    if not os.access(directory, os.W_OK):
        found.append(
            problem(
                "permissions",
                f"{directory} cannot be written by this user",
                "run the router and this command as the directory's owner",
            )
        )
    yield from found or [good("permissions", "secrets are their owner's alone")]


def _directory_findings(directory: Path, owner: os.stat_result) -> Findings:
    mode = stat.S_IMODE(owner.st_mode)
    if mode & 0o022:
        yield problem(
            "permissions",
            f"{directory} can be written by others (mode {mode:03o})",
            f"chmod 700 {directory}",
        )
    elif mode & 0o055:
        yield warning(
            "permissions",
            f"{directory} can be listed by others (mode {mode:03o})",
            f"chmod 700 {directory}",
        )


def _secrets(subject: Subject) -> Iterable[Path]:
    directory = subject.directory
    names = [SERVER_KEY, CA_KEY, FILE_NAME]
    ntf = subject.ntf
    if ntf is not None:
        names += [
            ntf.push.webpush.vapid_key_file,
            ntf.push.apns.key_file,
            ntf.push.fcm.service_account_file,
            ntf.control.admin_password_file,
            ntf.control.user_password_file,
        ]
    files = [directory / name for name in names if name]
    if subject.store_file is not None:
        files.append(subject.store_file)
    return [file for file in files if file.exists()]


def _secret_findings(file: Path, owner: os.stat_result) -> Findings:
    found = file.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        yield problem(
            "permissions", f"{file} can be read by others (mode {mode:03o})", f"chmod 600 {file}"
        )
    if found.st_uid != owner.st_uid:
        yield problem(
            "permissions",
            f"{file} belongs to another user than its directory",
            f"chown --reference={file.parent} {file}",
        )


def check_disk(subject: Subject) -> Findings:
    """Room for the store and the journal, wherever they are."""
    places = {"the directory": subject.directory}
    if subject.store_file is not None:
        places["the store"] = subject.store_file.parent
    journal = subject.config.journal.path_in(subject.directory)
    if journal is not None:
        places["the journal"] = journal if journal.is_dir() else journal.parent
    seen = set()
    for what, place in places.items():
        if not place.exists():
            yield problem(
                "disk", f"{place}, for {what}, does not exist", f"mkdir -p {place}, or change it"
            )
            continue
        if place.stat().st_dev not in seen:
            seen.add(place.stat().st_dev)
            system = os.statvfs(place)
            free = system.f_bavail * system.f_frsize
            yield judge_disk(what, free, system.f_favail, system.f_files, subject.thresholds.free)


def judge_disk(what: str, free: int, inodes: int, all_inodes: int, wanted: int) -> Finding:
    """A fifth of what is wanted is too little to go on with."""
    if all_inodes and inodes < 1000:
        return problem(
            "disk", f"{what} is on a disk that has room for {inodes} files only", "remove files"
        )
    text = f"{what} has {free // MEGABYTE} MB left"
    if free >= wanted:
        return good("disk", text)
    advice = (
        "free some: old backups and journal segments first, or let the journal keep less; see"
        " 'The disk is full' in the runbook"
    )
    return (problem if free < wanted // 5 else warning)("disk", text, advice)


def check_clock(subject: Subject) -> Findings:
    """Certificates, provider tokens and expiry all need the right time."""
    now = time.time()
    ahead = [file for file in subject.directory.iterdir() if _modified(file) > now + FUTURE]
    if ahead:
        yield problem(
            "clock",
            f"{ahead[0].name} was written in the future: the clock was, or is, wrong",
            "set the clock (timedatectl set-ntp true); then touch the file",
        )
    elif _is_unsynchronized():
        yield note(
            "clock",
            "the kernel does not know whether the clock is right: no time service has told it",
            "run one (timedatectl set-ntp true), here or on the host of this container",
        )
    else:
        yield good("clock", time.strftime("it is %Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))


def _modified(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except FileNotFoundError:
        return 0.0  # a router that runs replaces files


def _is_unsynchronized() -> bool:
    """As adjtimex(2) says; False where there is no such call."""
    try:
        libc = ctypes.CDLL(None)
        state: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_SIZE))
    except (OSError, AttributeError):
        return False
    return state == _TIME_ERROR
