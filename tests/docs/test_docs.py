"""The documentation says what the code does."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md"]


def test_protocol_map_is_current() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "protocol_map.py"))["main"]()
    assert (ROOT / "docs" / "protocol-map.md").read_text() == written, "run docs/protocol_map.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
