"""For tests that feed anything to a parser: the value, or the documented exception."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from heliograph.wire.errors import ErrorType, WireError

P = ParamSpec("P")
T = TypeVar("T")


def attempt(
    parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> tuple[T | None, ErrorType | None]:
    try:
        return parse(*args, **kwargs), None
    except WireError as exc:
        return None, exc.error
