"""Sections about operating a router: statistics and the control port; and passwords in files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heliograph.runtime.config.options import option
from heliograph.runtime.errors import ConfigError, file_error
from heliograph.wire.addresses import valid_password

STATS_NAME = "stats.json"
NOT_ALLOWED = "must be printable text without spaces, @, : and /"

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """Statistics: a line a day, as the reference writes it. They survive an orderly restart; a
    crash loses the counts since the last save, at most an hour."""

    log_file: str = option(
        "",
        "The file to append comma-separated lines to. If empty: none. A relative path begins in"
        " this directory.",
        example="stats.csv",
    )
    log_start_time: str = option("00:00", "The time of day, in UTC, of the first line.")
    log_interval_seconds: float = option(
        86_400.0, "The time from one line to the next.", unit="seconds", minimum=1
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if _TIME.fullmatch(self.log_start_time) is None:
            yield "log_start_time", 'must be a time of day such as "00:00"'

    @property
    def start_seconds(self) -> int:
        """Seconds since midnight."""
        hours, minutes = self.log_start_time.split(":")
        return int(hours) * 3600 + int(minutes) * 60

    def path_in(self, directory: Path) -> Path | None:
        return directory / self.log_file if self.log_file else None


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """A port on 127.0.0.1 where operators ask questions: `nc 127.0.0.1 PORT`, then `help`."""

    port: int | None = option(
        None,
        "The TCP port. 0 is any free one, which is logged. If not set, there is none.",
        minimum=0,
        maximum=65535,
        example=5227,
    )
    admin_password: str = option(
        "",
        "Shows all, with the names of your own routers; at a messaging router, deletes queues.",
        secret=True,
    )
    admin_password_file: str = option("", "A file that has it, instead of `admin_password`.")
    user_password: str = option(
        "", "Shows numbers; at a messaging router, blocks and unblocks queues.", secret=True
    )
    user_password_file: str = option("", "A file that has it, instead of `user_password`.")

    def check(self) -> Iterator[tuple[str, str]]:
        for role in ("admin", "user"):
            password = getattr(self, f"{role}_password")
            if password and getattr(self, f"{role}_password_file"):
                yield f"{role}_password_file", "there is a password as well: remove one of them"
            if not valid_password(password.encode()):
                yield f"{role}_password", NOT_ALLOWED

    def passwords_in(self, directory: Path) -> tuple[bytes | None, bytes | None]:
        """Return the administrator's and the user's password. Raises `ConfigError`."""
        key = "[control] {}_password".format
        return (
            read_password(directory, key("admin"), self.admin_password, self.admin_password_file),
            read_password(directory, key("user"), self.user_password, self.user_password_file),
        )


def read_password(directory: Path, key: str, password: str, file_name: str) -> bytes | None:
    """Return a password, from its file if it has one. Raises `ConfigError`."""
    if not file_name:
        return password.encode() or None
    file = directory / file_name
    try:
        found = file.read_bytes().strip()
    except OSError as exc:
        raise ConfigError([f"{key}_file: {file_error(exc, file, 'cannot be read')}"]) from exc
    if not found or not valid_password(found):
        raise ConfigError([f"{key}_file: {file}: {NOT_ALLOWED}, and not empty"])
    return found
