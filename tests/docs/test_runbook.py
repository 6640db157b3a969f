"""What operators are told to type exists."""

import argparse
import re
from pathlib import Path

import pytest

from heliograph.cli.main import parser
from heliograph.ntf.config import NtfConfig
from heliograph.runtime.options import options

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "docs" / "runbook.md", *sorted((ROOT / "deploy").iterdir())]


def commands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_commands(file: Path) -> None:
    parts = commands(parser())
    found = re.findall(r"\bheliograph (smp|ntf|sim) ([a-z][a-z-]+)", file.read_text())
    assert found
    for part, name in found:
        assert name in commands(parts[part]), f"{part} {name}"


def test_settings() -> None:
    known = {f"[{'.'.join(item.path[:-1])}] {item.key}" for item in options(NtfConfig)}
    text = (ROOT / "docs" / "runbook.md").read_text()
    for section, key in re.findall(r"`(\[[a-z.]+\]) ([a-z_]+)", text):
        assert f"{section} {key}" in known


def test_metrics() -> None:
    source = (ROOT / "src" / "heliograph" / "ntf" / "metrics.py").read_text()
    text = (ROOT / "docs" / "runbook.md").read_text()
    names = re.findall(r"heliograph_ntf_([a-z_]+?)(?:_total|_bucket|_seconds)?\b(?!\*)", text)
    assert names
    for name in names:
        assert name in source, name
