"""The type of a JSON object, here once because its values can be of any type."""

from collections.abc import Mapping
from typing import Any

__all__ = ["JsonMapping", "JsonObject"]

JsonObject = dict[str, Any]
"""An object that was parsed, or is to be written."""
JsonMapping = Mapping[str, Any]
"""The same, read-only."""
