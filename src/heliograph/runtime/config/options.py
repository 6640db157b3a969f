"""Definition of a configuration: frozen dataclasses whose fields document themselves.

One definition gives loading and checking (`file`), the commented file and the reference page
(`text`). It reads nothing: no files, no environment.

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
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, cast

_METADATA = "heliograph"

Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """Metadata of a field. Bounds are inclusive, unless `above` excludes the lower one."""

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
    default: object,
    doc: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    example: Value = None,
) -> Any:  # as `field` does, for the annotation of the field decides
    """Define a field as a setting. The commented file has `example` if there is no default."""
    rule = Rule(doc, unit, minimum, maximum, above, choices, secret, example)
    return field(default=default, repr=not secret, metadata={_METADATA: rule})


def sections(config: type, path: tuple[str, ...] = ()) -> Iterator[Section]:
    """Yield all sections of a definition in order, outer before inner."""
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


def value_of(config: object, path: tuple[str, ...]) -> Value:
    """Return the value of a configuration at a path."""
    found = config  # sections, then the value of one option
    for name in path:
        found = getattr(found, name)
    return cast(Value, found)


def build(
    config: type, values: Mapping[tuple[str, ...], object], path: tuple[str, ...] = ()
) -> Any:  # an instance of `config`
    """Return an instance with these values, and defaults for the rest."""
    hints = typing.get_type_hints(config)
    arguments = {}
    for member in fields(config):
        here = (*path, member.name)
        if is_dataclass(hints[member.name]):
            arguments[member.name] = build(hints[member.name], values, here)
        elif here in values:
            arguments[member.name] = values[here]
    return config(**arguments)


def _option(
    path: tuple[str, ...],
    hint: Any,  # a type, or another form of annotation
    member: "Field[Any]",  # of the type that `hint` is
) -> Option:
    optional = isinstance(hint, types.UnionType)
    if optional:
        [hint] = [part for part in typing.get_args(hint) if part is not types.NoneType]
    kind = typing.get_origin(hint) or hint
    if kind not in (str, int, float, bool, tuple) or member.default is MISSING:
        raise TypeError(f"{'.'.join(path)}: a setting is a str, int, float, bool or tuple of str")
    return Option(path, kind, optional, member.default, member.metadata[_METADATA])
