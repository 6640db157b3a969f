"""The package's description: the README without what only a clone of the repository has.

A package index shows no pictures of the repository, and follows no links into it.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^]]*\]\([^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^]]*)\]\((?!https?://|#)[^)]*\)")


def description(readme: str) -> str:
    """Return the text with the words of relative links, and without pictures."""
    return _LINK.sub(r"\1", _PICTURE.sub("", readme))


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = description((Path(self.root) / "README.md").read_text())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
