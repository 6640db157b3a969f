"""A hook of mkdocs: which pages there are, in the order that a reader would like.

A page that is not named here comes at the end, so that none is forgotten.
"""

from pathlib import Path
from typing import Any

FIRST = (
    *("index", "architecture", "system", "smp", "ntf", "agent", "device", "pipeline", "journal"),
    *("machines", "threat-model", "protocol-map", "library", "configuration", "runbook"),
)


def on_config(config: Any) -> Any:
    names = sorted(file.stem for file in Path(config["docs_dir"]).glob("*.md"))
    ordered = [name for name in FIRST if name in names]
    others = [name for name in names if name not in ordered]
    config["nav"] = [f"{name}.md" for name in (*ordered, *others)]
    return config
