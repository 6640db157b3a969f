"""Checks of permissions, free disk space and the clock."""

import ctypes
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from heliograph.doctor.findings import Finding, Findings, good, note, problem, warning
from heliograph.doctor.subject import Subject
from heliograph.runtime.config.file import FILE_NAME
from heliograph.runtime.identity import CA_KEY, SERVER_KEY

__all__ = ["check_clock", "check_disk", "check_permissions"]

MAX_AHEAD_SECONDS = 300.0
MEGABYTE = 1 << 20
_TIME_ERROR = 5
_TIMEX_SIZE = 512  # more than the kernel's struct timex has


def check_permissions(subject: Subject) -> Findings:
    """Check that only the owner of the directory can read its secrets."""
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
    yield from found or [good("permissions", "only the owner can read secrets")]


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
    control, ntf, smp = subject.config.control, subject.ntf, subject.smp
    names = [SERVER_KEY, CA_KEY, FILE_NAME]
    names += [control.admin_password_file, control.user_password_file]
    if smp is not None:
        names.append(smp.queues.password_file)
    if ntf is not None:
        names += [
            ntf.push.webpush.vapid_key_file,
            ntf.push.apns.key_file,
            ntf.push.fcm.service_account_file,
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
    """Check the free space for the store and the journal."""
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
    """Return a warning below the wanted space, and a problem below a fifth of it."""
    if all_inodes and inodes < 1000:
        return problem(
            "disk", f"{what} is on a disk with only {inodes} free inodes", "remove files"
        )
    text = f"{what} has {free // MEGABYTE} MB of free space"
    if free >= wanted:
        return good("disk", text)
    advice = (
        "free some: old backups and journal segments first, or lower [journal] max_megabytes; see"
        " 'The disk is full' in the runbook"
    )
    return (problem if free < wanted // 5 else warning)("disk", text, advice)


def check_clock(subject: Subject) -> Findings:
    """Check the clock, which certificates, provider tokens and expiry depend on."""
    now = time.time()
    ahead = [
        file for file in subject.directory.iterdir() if _modified(file) > now + MAX_AHEAD_SECONDS
    ]
    if ahead:
        yield problem(
            "clock",
            f"{ahead[0].name} was written in the future: the clock was or is wrong",
            "set the clock (timedatectl set-ntp true); then touch the file",
        )
    elif _is_unsynchronized():
        yield note(
            "clock",
            "the kernel does not know whether the clock is right: no time service set it",
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
    """Ask adjtimex(2); return False where there is no such call."""
    try:
        libc = ctypes.CDLL(None)
        state: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_SIZE))
    except (OSError, AttributeError):
        return False
    return state == _TIME_ERROR
