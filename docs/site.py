"""A hook of mkdocs: which pages there are, in the order that a reader would like.

A page that is not named here comes at the end, so that none is forgotten.
"""

from pathlib import Path
from typing import Any

HOME = "index"
GROUPS = {
    "Parts": ("system", "smp", "ntf", "agent", "device", "pipeline", "journal"),
    "How it works": ("architecture", "machines", "threat-model", "protocol-map", "library"),
    "Operating": ("runbook", "configuration"),
}
MACHINES = "-machines"


def on_config(config: Any) -> Any:
    names = sorted(file.stem for file in Path(config["docs_dir"]).glob("*.md"))
    config["nav"] = nav(names)
    return config


def nav(names: list[str]) -> list[Any]:
    left = [name for name in names if name != HOME]
    found: list[Any] = [f"{HOME}.md"]
    for title, wanted in GROUPS.items():
        group = [name for name in wanted if name in left]
        if "machines" in wanted:
            group[2:2] = [name for name in left if name.endswith(MACHINES)]
        found.append({title: [f"{name}.md" for name in group]})
        left = [name for name in left if name not in group]
    return [*found, *(f"{name}.md" for name in left)]
