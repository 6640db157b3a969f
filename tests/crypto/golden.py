"""The golden vectors of one kind."""

import json
from pathlib import Path
from typing import Any

_LINES = (Path(__file__).parent.parent / "vectors" / "golden.jsonl").read_text().splitlines()


def golden(kind: str) -> list[dict[str, Any]]:
    return [vector for vector in map(json.loads, _LINES) if vector["kind"] == kind]
