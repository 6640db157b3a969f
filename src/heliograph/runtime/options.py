"""How a configuration is defined: frozen dataclasses whose fields document themselves.

One definition gives the loading and checking (`config`), the commented file and the reference page
(`config_text`). It reads nothing: no files, no environment.

    @dataclass(frozen=True, slots=True)
    class Listen:
        "Where the router is reached."

        port: int = option(5223, "The TCP port; 0 is any free one.", maximum=65535)

    @dataclass(frozen=True, slots=True)
    class Config:
        listen: Listen = field(default_factory=Listen)
"""

import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

_METADATA = "heliograph"

Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a field says of itself. Bounds are inclusive, unless `above` excludes the lower one."""

    doc: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    example: Value = None


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a configuration. `path` begins with the sections it is in."""

    path: tuple[str, ...]
    type: type
    optional: bool
    default: Value
    rule: Rule

    @property
    def key(self) -> str:
        return self.path[-1]

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    def variable(self, prefix: str) -> str:
        return "_".join((prefix, *self.path)).upper()


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file, with its settings; tables inside it are sections of their own."""

    path: tuple[str, ...]
    doc: str
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)


def option(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    example: Value = None,
) -> Any:
    """A field that is a setting. `example` stands in the commented file if there is no default."""
    rule = Rule(doc, unit, minimum, maximum, above, choices, secret, example)
    return field(default=default, repr=not secret, metadata={_METADATA: rule})


def sections(config: type, path: tuple[str, ...] = ()) -> Iterator[Section]:
    """All sections of a definition, outer before inner, in the order they were written."""
    hints = typing.get_type_hints(config)
    members = fields(config)
    options = tuple(
        _option((*path, member.name), hints[member.name], member)
        for member in members
        if _METADATA in member.metadata
    )
    if options:
        yield Section(path, (inspect.getdoc(config) or "").strip(), options)
    for member in members:
        if is_dataclass(hints[member.name]):
            yield from sections(hints[member.name], (*path, member.name))


def options(config: type) -> list[Option]:
    return [option for part in sections(config) for option in part.options]


def value_of(config: Any, path: tuple[str, ...]) -> Any:
    """What a configuration has at a path."""
    for name in path:
        config = getattr(config, name)
    return config


def build(config: type, values: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> Any:
    """An instance with these values, and defaults for the rest."""
    hints = typing.get_type_hints(config)
    arguments = {}
    for member in fields(config):
        here = (*path, member.name)
        if is_dataclass(hints[member.name]):
            arguments[member.name] = build(hints[member.name], values, here)
        elif here in values:
            arguments[member.name] = values[here]
    return config(**arguments)


def _option(path: tuple[str, ...], hint: Any, member: "Field[Any]") -> Option:
    optional = isinstance(hint, types.UnionType)
    if optional:
        [hint] = [part for part in typing.get_args(hint) if part is not types.NoneType]
    kind = typing.get_origin(hint) or hint
    if kind not in (str, int, float, bool, tuple) or member.default is MISSING:
        raise TypeError(f"{'.'.join(path)}: a setting is a str, int, float, bool or tuple of str")
    return Option(path, kind, optional, member.default, member.metadata[_METADATA])
