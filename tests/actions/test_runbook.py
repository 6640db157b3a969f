"""The runbook has a recipe for each kind of action, and loop.md says what each does."""

from pathlib import Path

import pytest

from heliograph.actions.contract import ActionKind

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("kind", ActionKind)
def test_every_kind_is_documented(kind: ActionKind) -> None:
    for page, heading in (("runbook.md", "### Actions wait"), ("loop.md", "## Actions")):
        section = (DOCS / page).read_text().partition(heading)[2].partition("\n##")[0]
        rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
        assert any(f"`{kind.value}`" in row for row in rows), page
