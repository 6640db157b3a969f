"""The type of a command's subcommands, for which argparse has no public name."""

import argparse
from typing import TYPE_CHECKING, TypeAlias

__all__ = ["Subparsers"]

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = argparse._SubParsersAction
