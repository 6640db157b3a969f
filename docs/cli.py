"""The page of all commands, from their parsers. The site's hook adds it when the site is built."""

import argparse
import os
from collections.abc import Iterator

INTRODUCTION = """\
# Commands

All commands of `heliograph` with their options, generated from the program.
"""


def render() -> str:
    os.environ["COLUMNS"] = "96"
    os.environ["HELIOGRAPH_HOME"] = "~/.heliograph"
    from heliograph.cli.main import parser

    return "".join([INTRODUCTION, *_sections(parser(), 2)])


def _sections(parser: argparse.ArgumentParser, depth: int) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for name, child in action.choices.items():
            yield f"\n{'#' * depth} `{child.prog}`\n\n"
            has_children = any(
                isinstance(item, argparse._SubParsersAction) for item in child._actions
            )
            if has_children:
                yield _prose(child.description) or f"{_help(action, name)}\n"
                yield from _sections(child, depth + 1)
            else:
                yield f"```text\n{child.format_help().rstrip()}\n```\n"


def _prose(text: str | None) -> str:
    return f"{' '.join(text.split())}\n" if text else ""


def _help(action: argparse.Action, name: str) -> str:
    found = [item.help for item in action._choices_actions if item.dest == name]  # type: ignore[attr-defined]
    text = found[0] or ""
    return f"{text[:1].upper()}{text[1:]}."
