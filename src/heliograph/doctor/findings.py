"""Findings of checks: severity, text and advice."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Findings", "Level", "good", "note", "problem", "warning"]


class Level(StrEnum):
    """Severity, in ascending order."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `advice` is empty if there is nothing to do."""

    level: Level
    check: str
    text: str
    advice: str = ""


Findings = Iterator[Finding]
AsyncFindings = AsyncIterator[Finding]


def good(check: str, text: str) -> Finding:
    return Finding(Level.OK, check, text)


def note(check: str, text: str, advice: str = "") -> Finding:
    return Finding(Level.NOTE, check, text, advice)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(Level.WARNING, check, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    return Finding(Level.PROBLEM, check, text, advice)
