"""The page of the library's classes and functions, from their signatures and docstrings.

The site's hook adds it when the site is built.
"""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

INTRODUCTION = """\
# API reference

The names that a program needs, generated from the code. [Library](library.md) has examples.
"""
MODULES = (
    "heliograph",
    "heliograph.transport.client",
    "heliograph.transport.server",
    "heliograph.wire.addresses",
    "heliograph.wire.transmissions",
    "heliograph.wire.ntf.push",
    "heliograph.crypto.keys",
    "heliograph.crypto.certificates",
    "heliograph.journal.storage.reader",
)


def render() -> str:
    return "".join([INTRODUCTION, *(text for name in MODULES for text in _module(name))])


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"\n## `{name}`\n\n{_first_paragraph(module)}\n"
    public = getattr(module, "__all__", None) or [
        key for key, value in vars(module).items() if getattr(value, "__module__", "") == name
    ]
    for key in sorted(key for key in public if not key.startswith("_")):
        value = getattr(module, key)
        if inspect.isclass(value):
            yield from _class(key, value)
        elif callable(value):
            yield f"\n### `{key}{_signature(value)}`\n\n{_doc(value)}\n"


def _class(name: str, value: type[Any]) -> Iterator[str]:
    is_error = issubclass(value, BaseException)
    yield f"\n### `{name}{'' if is_error else _signature(value)}`\n\n{_doc(value)}\n"
    for key, member in vars(value).items():
        if key.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
            continue
        function = member.fget if isinstance(member, property) else getattr(value, key)
        doc = _doc(function)
        if doc:
            shown = key if isinstance(member, property) else f"{key}{_signature(function)}"
            yield f"\n- `{shown}`: {' '.join(doc.split())}\n"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("heliograph.", "")
    except (TypeError, ValueError):
        return ""


def _doc(value: Any) -> str:
    own = getattr(value, "__doc__", None) or ""
    if own.startswith(f"{getattr(value, '__name__', '')}("):  # made up by dataclass
        return ""
    return inspect.cleandoc(own).replace("<", "&lt;")


def _first_paragraph(module: Any) -> str:
    return (inspect.getdoc(module) or "").split("\n\n")[0]
