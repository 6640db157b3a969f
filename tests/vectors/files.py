"""Vector files by content: a line with `kind` is a golden vector, one with `layer` was recorded.

Every `*.jsonl` and `*.jsonl.gz` beside this module is read, and those in the directories that the
environment variable HELIOGRAPH_VECTORS names (separated as in PATH).
"""

import gzip
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

Line = dict[str, Any]

BUNDLED = Path(__file__).parent


def directories() -> list[Path]:
    extra = os.environ.get("HELIOGRAPH_VECTORS", "")
    return [BUNDLED, *(Path(name) for name in extra.split(os.pathsep) if name)]


def vector_files() -> list[Path]:
    return [
        path
        for directory in directories()
        for pattern in ("*.jsonl", "*.jsonl.gz")
        for path in sorted(directory.glob(pattern))
    ]


@cache
def read_lines(path: Path) -> list[Line]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def golden_vectors() -> Iterator[tuple[str, Line]]:
    for path in vector_files():
        for number, line in enumerate(read_lines(path), 1):
            if "layer" not in line:
                kind = line.get("kind", "unknown")
                name = line.get("name") or line.get("alg") or line.get("type") or ""
                yield f"{path.name}:{number}:{kind}:{name}", line


def connections() -> Iterator[tuple[str, Path, str]]:
    for path in vector_files():
        seen = dict.fromkeys(line["conn"] for line in read_lines(path) if "layer" in line)
        for connection in seen:
            yield f"{path.name}:{connection}", path, connection
