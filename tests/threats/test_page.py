"""docs/threat-model.md has every claim of the protocol's threat model, with tests that exist."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"

# By party: how many things it can, and how many it cannot, in the protocols' documents.
CLAIMS = {
    "U": (1, 1),
    "S": (1, 0),
    "M": (4, 2),
    "N": (5, 5),
    "P": (3, 7),
    "C": (0, 1),
    "V": (3, 3),
    "A": (0, 2),
    "X": (2, 1),
    "D": (0, 1),
    "O": (0, 1),
    "L": (4, 5),
}


def rows() -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """Claim, can or cannot, what, and the tests."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[A-Z]\d+", cells[0]):
            named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", cells[3])
            found.append((cells[0], cells[1], cells[2], named))
    return found


def test_other_tests_that_are_named_exist() -> None:
    root = PAGE.parents[1]
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE.read_text())
    assert named
    for name in named:
        assert (root / name).exists(), name


def test_every_claim_is_there() -> None:
    expected = {
        (f"{party}{number + 1}", "can" if number < can else "cannot")
        for party, (can, cannot) in CLAIMS.items()
        for number in range(can + cannot)
    }
    found = [(claim, verb) for claim, verb, _, _ in rows()]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_every_claim_has_tests_that_exist() -> None:
    defined: dict[str, set[str]] = {}
    for file in HERE.glob("test_*.py"):
        tree = ast.parse(file.read_text())
        defined[file.name] = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    used = set()
    for claim, _, what, named in rows():
        assert what
        assert named, claim
        for where, name in named:
            assert name in defined[where], (claim, name)
            used.add((where, name))
    tests = {
        (where, name)
        for where, names in defined.items()
        for name in names
        if name.startswith("test_") and where != Path(__file__).name
    }
    assert tests == used, tests - used
