"""A configuration as text: the commented file, the reference page, and the changed settings."""

import textwrap
from collections.abc import Collection, Iterator

from heliograph.runtime.config.options import Option, Value, options, sections, value_of

WIDTH = 100


def render(config: object, introduction: str, *, live: Collection[str] = ()) -> str:
    """Return the commented file of a configuration.

    Settings with their default are commented out, so that a later version may change it; keys in
    `live` are always written.
    """
    lines = [*_comment(introduction), ""]
    for part in sections(type(config)):
        lines += [*_comment(part.doc), f"[{part.name}]", ""]
        for option in part.options:
            value = value_of(config, option.path)
            given = option.dotted in live or value != option.default
            lines += _comment(_described(option))
            if value is None:
                value = option.rule.example
            lines += [f"{'' if given else '# '}{option.key} = {_toml(value)}", ""]
    return "\n".join(lines)


def reference(config: type, prefix: str) -> str:
    """Return the sections of a configuration as Markdown, from the third level of headings."""
    parts = []
    for part in sections(config):
        parts.append(f"### `[{part.name}]`\n\n{_escape(part.doc)}\n\n")
        parts.append("| key | type | default | what it is |\n| --- | --- | --- | --- |\n")
        parts += [_row(option, prefix) for option in part.options]
        parts.append("\n")
    return "".join(parts)


def changed(config: object) -> Iterator[str]:
    """Yield a line for each setting that differs from its default; secrets are not shown."""
    for option in options(type(config)):
        value = value_of(config, option.path)
        if value != option.default:
            yield f"{option.dotted} = {'(not shown)' if option.rule.secret else _toml(value)}"


def _row(option: Option, prefix: str) -> str:
    rule = option.rule
    kind = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
        option.type.__name__, "list of texts"
    )
    if rule.choices:
        kind = " or ".join(f"`{choice}`" for choice in rule.choices)
    default = "not set" if option.default is None else f"`{_toml(option.default)}`"
    what = f"{_escape(_described(option))}<br>`{option.variable(prefix)}`"
    return f"| `{option.key}` | {kind}{_bounds(option)} | {default} | {what} |\n"


def _described(option: Option) -> str:
    unit = option.rule.unit
    return f"{option.rule.doc} In {unit}." if unit else option.rule.doc


def _bounds(option: Option) -> str:
    rule = option.rule
    low = "" if rule.above is None else f"more than {rule.above:g}"
    low = low if rule.minimum is None else f"{rule.minimum:g} or more"
    high = "" if rule.maximum is None else f"at most {rule.maximum:g}"
    if rule.minimum is not None and rule.maximum is not None:
        return f", {rule.minimum:g} to {rule.maximum:g}"
    return "".join(f", {bound}" for bound in (low, high) if bound)


def _comment(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(line, WIDTH - 2) or [""]
    return [f"# {line}".rstrip() for line in lines]


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _toml_text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_text, value))}]"
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else repr(value)


def _toml_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(_escape_control(character) for character in escaped) + '"'


def _escape_control(character: str) -> str:
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
