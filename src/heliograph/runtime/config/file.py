"""Load a configuration: from its file, then the environment, then the command line; the last wins.

All problems are reported at once, each with the key, where it was set, and what to do. Messages
never contain values of secret settings.
"""

import difflib
import logging
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from heliograph.runtime.config.options import Option, build, options, sections
from heliograph.runtime.errors import ConfigError, file_error

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["FILE_NAME", "Checked", "load"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
KeyPath = tuple[str, ...]

FILE_NAME = "config.toml"

_WORDS = {
    str: 'a text in quotes, such as "text"',
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: 'a list of texts, such as ["one", "two"]',
}
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@runtime_checkable
class Checked(Protocol):
    """A section, or a whole configuration, with rules that no single setting can state."""

    def check(self) -> Iterable[tuple[str, str]]:
        """Yield dotted keys, relative to this section, and what is wrong with each."""


def load(
    config: type[T],
    file: Path,
    *,
    prefix: str,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> T:
    """Load and check. `overrides` are values by dotted key, None meaning not given.

    Variables of the environment are named ``PREFIX_SECTION_KEY``. Raises `ConfigError`.
    """
    loader = _Loader(config, file, prefix)
    loader.read_file()
    loader.read_environment(os.environ if environ is None else environ)
    loader.read_overrides(overrides or {})
    loaded: T = loader.finish()
    return loaded


class _Loader:
    def __init__(self, config: type, file: Path, prefix: str) -> None:
        self._config = config
        self._file = file
        self._prefix = prefix
        self._options = {option.path: option for option in options(config)}
        self._tables = {
            part.path[:depth] for part in sections(config) for depth in range(1, len(part.path) + 1)
        }
        self._values: dict[KeyPath, object] = {}
        self._sources: dict[KeyPath, str] = {}
        self._problems: list[str] = []
        self._wrong: set[KeyPath] = set()

    # Sources of settings.

    def read_file(self) -> None:
        try:
            text = self._file.read_bytes().decode()
            document = tomllib.loads(text)
        except FileNotFoundError:
            self._problems.append(f"{self._file}: there is no such file: run `init` to make one")
        except OSError as exc:
            self._problems.append(file_error(exc, self._file, "cannot be read"))
        except UnicodeDecodeError:
            self._problems.append(f"{self._file}: not UTF-8 text: save it as UTF-8")
        except tomllib.TOMLDecodeError as exc:
            hint = ": each section and key may appear once" if _is_repetition(exc) else ""
            self._problems.append(f"{self._file}: not TOML: {exc}{hint}")
        else:
            self._read_table((), document)

    def _read_table(self, path: KeyPath, table: Mapping[str, object]) -> None:
        for key, value in table.items():
            here = (*path, key)
            if here in self._tables:
                if isinstance(value, dict):
                    self._read_table(here, value)
                else:
                    self._problems.append(
                        f"{self._file}: {'.'.join(here)} is a section: write [{'.'.join(here)}]"
                        " on a line of its own, and its keys below"
                    )
            elif here in self._options:
                self._set(self._options[here], value, f"{self._file}: {_in_file(here)}")
            else:
                self._unknown(here, isinstance(value, dict))

    def _unknown(self, path: KeyPath, is_table: bool) -> None:
        known = (
            [".".join(table) for table in self._tables]
            if is_table
            else [option.key for option in self._options.values() if option.path[:-1] == path[:-1]]
        )
        word = "section" if is_table else "key"
        name = ".".join(path) if is_table else path[-1]
        elsewhere = [option for option in self._options.values() if option.key == path[-1]]
        hint = _nearest(name, known)
        if not hint and elsewhere and not is_table:
            hint = f"it belongs to [{'.'.join(elsewhere[0].path[:-1])}]"
        if not hint:
            hint = f"known are {', '.join(sorted(known))}" if known else "remove it"
        place = f"[{name}]" if is_table else _in_file(path)
        self._problems.append(f"{self._file}: {place}: there is no such {word}: {hint}")

    def read_environment(self, environ: Mapping[str, str]) -> None:
        known = {option.variable(self._prefix): option for option in self._options.values()}
        for name, text in environ.items():
            if name in known:
                try:
                    value = _parse(known[name], text)
                except ValueError:
                    value = text
                self._set(known[name], value, name)
            elif name.startswith(f"{self._prefix}_"):
                # Not an error: Kubernetes sets variables named after a service.
                hint = _nearest(name, list(known)) or "see the configuration reference"
                logger.warning("%s is not a setting: %s", name, hint)

    def read_overrides(self, overrides: Mapping[str, object]) -> None:
        for key, value in overrides.items():
            if value is not None:
                self._set(self._options[tuple(key.split("."))], value, f"command line: {key}")

    # Conversion and checks.

    def _set(self, option: Option, value: object, source: str) -> None:
        if option.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if option.type is tuple and isinstance(value, list):
            value = tuple(value)
        self._sources[option.path] = source
        problem = _judge(option, value)
        if problem is None:
            self._values[option.path] = value
            self._wrong.discard(option.path)
        else:
            shown = "" if option.rule.secret else f" = {_show(value)}"
            self._problems.append(f"{source}{shown}: {problem}")
            self._wrong.add(option.path)

    def finish(self) -> Any:  # an instance of the class to load
        config = build(self._config, self._values)
        self._check(config, ())
        if self._problems:
            raise ConfigError(self._problems)
        return config

    def _check(self, config: "DataclassInstance | type[DataclassInstance]", path: KeyPath) -> None:
        for member in fields(config):
            value = getattr(config, member.name)
            if is_dataclass(value):
                self._check(value, (*path, member.name))
        if isinstance(config, Checked):
            for key, problem in config.check():
                here = (*path, *key.split("."))
                if here not in self._wrong:
                    source = self._sources.get(here, f"{self._file}: {_in_file(here)}")
                    self._problems.append(f"{source}: {problem}")


def _judge(option: Option, value: object) -> str | None:
    """Return what is wrong with a value, None if nothing is."""
    rule = option.rule
    if value is None and option.optional:
        return None
    if not _is_a(option.type, value):
        return f"must be {_WORDS[option.type]}"
    if rule.choices and value not in rule.choices:
        return f"must be one of {', '.join(map(_show, rule.choices))}"
    if not isinstance(value, int | float):
        return None
    unit = f" {rule.unit}" if rule.unit else ""
    if rule.above is not None and value <= rule.above:
        return f"must be more than {rule.above:g}{unit}"
    if rule.minimum is not None and value < rule.minimum:
        return f"must be at least {rule.minimum:g}{unit}"
    if rule.maximum is not None and value > rule.maximum:
        return f"must be at most {rule.maximum:g}{unit}"
    return None


def _is_a(kind: type, value: object) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and not (isinstance(value, float) and not math.isfinite(value))


def _parse(option: Option, text: str) -> object:
    if not text and option.optional:
        return None
    if option.type is bool:
        return _BOOLEANS.get(text.strip().lower(), text)
    if option.type is tuple:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    return option.type(text)


def _nearest(name: str, known: list[str]) -> str:
    found = difflib.get_close_matches(name, known, 1, 0.6)
    return f"did you mean {found[0]}?" if found else ""


def _in_file(path: KeyPath) -> str:
    return f"[{'.'.join(path[:-1])}] {path[-1]}" if len(path) > 1 else path[0]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _is_repetition(exc: tomllib.TOMLDecodeError) -> bool:
    return "twice" in str(exc) or "overwrite" in str(exc)
