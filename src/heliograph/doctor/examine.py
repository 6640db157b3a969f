"""Run the checks that apply to a directory, in a readable order."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.doctor import files, keys, network, pipeline, store
from heliograph.doctor.findings import Finding, Findings, good, problem
from heliograph.doctor.subject import Subject, Thresholds, part_of
from heliograph.runtime.config.file import FILE_NAME
from heliograph.runtime.errors import ConfigError, access_advice

__all__ = ["Examination", "examine"]

_LOCAL: tuple[Callable[[Subject], Findings], ...] = (
    keys.check_identity,
    files.check_permissions,
    files.check_clock,
    files.check_disk,
    store.check_import,
    store.check_store,
    store.check_pending,
    store.check_processes,
    keys.check_providers,
    pipeline.check_journal,
    pipeline.check_pipeline,
)


@dataclass(frozen=True, slots=True)
class Examination:
    """`network` allows connections at all, `online` a push to a device that does not exist."""

    network: bool = True
    online: bool = False
    show_hosts: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    tables: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)


async def examine(directory: Path, how: Examination) -> AsyncIterator[Finding]:
    """Yield all findings about a router's directory. A check that fails is a finding too."""
    try:
        part = part_of(directory)
        subject = Subject.load(directory, part, how.environ, how.thresholds, how.tables)
        _read_passwords(subject)
    except OSError as exc:
        yield _failed("config", exc)
        return
    except ConfigError as exc:
        file = directory / FILE_NAME
        advice = f"correct it in {file}" if file.exists() else _make_one(directory)
        for text in exc.problems:
            yield problem("config", text, advice)
        return
    yield good("config", f"{FILE_NAME} of a {subject.part.title} is good")
    for check in _LOCAL:
        try:
            for finding in check(subject):
                yield finding
        except Exception as exc:
            yield _failed(check.__name__, exc)
    if not how.network:
        return
    checks = [network.check_names(subject), network.check_listening(subject)]
    checks.append(network.reach_smp_routers(subject, show_hosts=how.show_hosts))
    if how.online:
        checks.append(keys.reach_providers(subject))
    for findings in checks:
        try:
            async for finding in findings:
                yield finding
        except Exception as exc:
            yield _failed("network", exc)


def _read_passwords(subject: Subject) -> None:
    """Read the password files that a start would read. Raises `ConfigError`."""
    subject.config.control.passwords_in(subject.directory)
    if subject.smp is not None:
        subject.smp.queues.password_in(subject.directory)


def _failed(name: str, exc: Exception) -> Finding:
    text = f"the check itself failed: {type(exc).__name__}"
    advice = "run it again; if it fails again, report it"
    if isinstance(exc, OSError) and exc.strerror:
        text = f"{exc.filename or name}: {exc.strerror}"
        advice = access_advice(exc, exc.filename or "") or advice
    return problem(name.removeprefix("check_"), text, advice)


def _make_one(directory: Path) -> str:
    name_another = "name a router's directory with --dir"
    if directory.is_file():
        return name_another
    return (
        f"{name_another}, or make a system: heliograph up --dir {directory},"
        f" or one router: heliograph ntf init --dir {directory}"
    )
