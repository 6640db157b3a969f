"""A hook of MkDocs: the order of pages, and the pages that are generated from the code.

A page that is not named here comes at the end, so that none is forgotten.
"""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOME = "index"
SHIM = "https://unpkg.com/iframe-worker/shim"
GENERATED = ("cli", "api")
GROUPS = {
    "Start": ("getting-started", "concepts", "system", "faq"),
    "Parts": ("smp", "ntf", "agent", "device", "unifiedpush", "pipeline", "journal", "loop"),
    "Operating": ("runbook", "migration", "sizing", "scale", "plan", "configuration", "cli"),
    "How it works": ("architecture", "machines", "threat-model", "protocol-map"),
    "Library": ("library", "api"),
    "Reference": ("glossary",),
}
MACHINES = "-machines"


def on_config(config: Any) -> Any:
    names = sorted(file.stem for file in Path(config["docs_dir"]).glob("*.md"))
    config["nav"] = nav([*names, *GENERATED])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are generated from the code."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(HERE))
    try:
        for name in GENERATED:
            content = __import__(name).render()
            files.append(File.generated(config, f"{name}.md", content=content))
    finally:
        sys.path.remove(str(HERE))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load the shim that lets search work from a disk from the site itself."""
    return output.replace(SHIM, "assets/iframe-worker.js")


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
