"""The page's API as OpenAPI 3.1, written by hand once and checked against the answers by tests."""

from typing import Any

from heliograph import __version__

__all__ = ["MAX_HOURS", "MAX_ID", "specification"]

MAX_HOURS = 24 * 366
MAX_ID = 100

_COUNT = {"type": "integer", "minimum": 0}
_COUNTS = {"type": "object", "additionalProperties": _COUNT}
_NUMBER = {"type": "number"}
_TEXT = {"type": "string"}
_SERIES = {
    "type": "array",
    "items": {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2},
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_FLOW = {"total": _COUNT, "per_second": _NUMBER, "series": _SERIES}
_LIVE = _object(
    at=_NUMBER,
    parts=_list(
        _object(name=_TEXT, state=_TEXT, since=_NUMBER, restarts=_COUNT, told=_TEXT, ended=_TEXT)
    ),
    problems=_object(ntf=_or_null(_TEXT), smp=_or_null(_TEXT)),
    pipeline=_object(
        state=_TEXT,
        lag_seconds=_or_null(_NUMBER),
        events=_or_null(_COUNT),
        quarantined=_or_null(_COUNT),
    ),
    tokens=_COUNTS,
    subscriptions=_COUNTS,
    smp_routers=_list(_object(name=_TEXT, own={"type": "boolean"}, active=_COUNT, pending=_COUNT)),
    notifications=_object(**_FLOW),
    pushes=_object(**_FLOW, failed=_COUNT, retried=_COUNT, expired=_COUNT),
    latency_ms=_object(p50=_or_null(_NUMBER), p90=_or_null(_NUMBER), p99=_or_null(_NUMBER)),
    debts=_COUNTS,
    oldest_debt_seconds=_NUMBER,
    providers=_list(
        _object(
            name=_TEXT,
            under_way=_COUNT,
            accepted=_COUNT,
            failed=_COUNT,
            health={"enum": ["good", "idle", "failing", "down"]},
        )
    ),
    failures=_list(_object(reason=_TEXT, recent=_COUNT, total=_COUNT)),
    clients=_COUNT,
    queues=_COUNT,
    window_seconds=_NUMBER,
)
_HISTORY = _object(
    hours=_COUNT,
    points=_list(
        _object(
            at=_NUMBER,
            accepted=_COUNT,
            rejected=_COUNT,
            notifications=_COUNT,
            p50_ms=_or_null(_NUMBER),
            p99_ms=_or_null(_NUMBER),
        )
    ),
    fates=_COUNTS,
)
_SEARCH = _object(
    kind={"enum": ["token", "notification", "nothing"]},
    summary=_TEXT,
    facts=_list(_object(name=_TEXT, value=_TEXT)),
    events=_list(_object(at=_NUMBER, part=_TEXT, what=_TEXT)),
)
_ERROR = _object(error=_TEXT)


def _get(summary: str, answer: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    failures = {"401": "the token is missing or wrong", "403": "not a loopback address"}
    if parameters:
        failures["400"] = "a parameter is not as it must be"
    return {
        "get": {
            "summary": summary,
            "parameters": list(parameters),
            "responses": {
                "200": {
                    "description": summary,
                    "content": {"application/json": {"schema": answer}},
                },
                **{
                    status: {
                        "description": text,
                        "content": {"application/json": {"schema": _ERROR}},
                    }
                    for status, text in failures.items()
                },
            },
        }
    }


def _query(name: str, required: bool, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "schema": schema,
        "description": text,
    }


def specification() -> dict[str, Any]:
    hours = {"type": "integer", "minimum": 1, "maximum": MAX_HOURS, "default": 24}
    wanted = {"type": "string", "minLength": 1, "maxLength": MAX_ID, "pattern": "^[!-~]+$"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Heliograph status",
            "version": __version__,
            "description": "What the system does now and did before. Read-only.",
        },
        "paths": {
            "/api/live": _get("What the system does now", _LIVE),
            "/api/history": _get(
                "What it did, by hour, from the data pipeline",
                _HISTORY,
                _query("hours", False, hours, "how far back"),
            ),
            "/api/search": _get(
                "What happened to a notification or a token",
                _SEARCH,
                _query("id", True, wanted, "the id that its owner sees"),
            ),
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
