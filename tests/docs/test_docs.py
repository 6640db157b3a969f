"""The documentation says what the code does."""

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.cli.main import parser
from heliograph.wire.smp import SmpCommand

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md"]


def test_every_command_of_the_messaging_router_is_listed() -> None:
    module = runpy.run_path(str(ROOT / "docs" / "protocol_map.py"))
    page = (ROOT / "docs" / "smp.md").read_text()
    assert page == module["smp_page"](), "run docs/protocol_map.py"
    tags = {command.__name__ for command in SmpCommand.__args__}
    assert set(module["smp_handlers"]()) == tags
    assert all(f"| `{tag}` |" in page for tag in tags)


def test_protocol_map_is_current() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "protocol_map.py"))["main"]()
    assert (ROOT / "docs" / "protocol-map.md").read_text() == written, "run docs/protocol_map.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_paths_through_the_code_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("## Paths through the code\n")[2].partition("\n## ")[0]
    found = re.findall(r"`([\w/]+\.py)`\s+\(([^)]*)\)", section)
    assert len(found) >= 10
    for file, names in found:
        source = (ROOT / "src" / "heliograph" / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^\s*(async def|def|class) {name}\b", source, re.MULTILINE), name


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each command in a block of code."""
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^(?: {4,7}| *\$ )(heliograph .*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield words[1:end]
            words = words[end + 1 :]


def is_accepted(arguments: list[str]) -> bool:
    try:
        parser().parse_args(arguments)
    except SystemExit as exc:
        return exc.code == 0  # as of --help
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_these_options(page: Path) -> None:
    for arguments in commands_of(page):
        assert is_accepted(arguments), arguments
