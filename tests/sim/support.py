"""Helpers of the simulator tests: requests that are right until a test changes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heliograph.sim.providers.http2 import HttpRequest


def request(
    path: str, headers: Mapping[str, str], body: bytes, *, method: str = "POST"
) -> HttpRequest:
    return HttpRequest(1, method, path, dict(headers), body, 0.0)


def changed(whole: HttpRequest, **values: Any) -> HttpRequest:
    """A header set to None is left out."""
    headers = {**whole.headers, **values.pop("headers", {})}
    kept = {name: value for name, value in headers.items() if value is not None}
    return replace(whole, headers=kept, **values)
