"""What the commands' arguments share: types for argparse."""

import argparse
from typing import TYPE_CHECKING, TypeAlias

__all__ = ["MOST_DAYS", "Subparsers", "percent", "seconds"]

MOST_DAYS = 36_500

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = argparse._SubParsersAction
"""The type of a command's subcommands, for which argparse has no public name."""


def seconds(text: str) -> float:
    """Parse a duration; refuse what is negative, endless or not a number."""
    try:
        duration = float(text)
    except ValueError:
        duration = -1.0
    if not 0 <= duration <= MOST_DAYS * 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return duration


def percent(text: str) -> float:
    """Parse a share from 0 to 100."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 100")
    return share
