import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current() -> None:
    written = runpy.run_path(str(DOCS / "journal.py"))["main"]()
    assert (DOCS / "journal.md").read_text() == written, "run docs/journal.py"
