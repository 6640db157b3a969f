import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_configuration_reference_is_current() -> None:
    written = runpy.run_path(str(DOCS / "configuration.py"))["main"]()
    assert (DOCS / "configuration.md").read_text() == written, "run docs/configuration.py"
