"""The page's API as OpenAPI 3.1; tests check the answers against it."""

from heliograph import __version__
from heliograph.documents import JsonObject
from heliograph.web.metrics.series import COLUMNS, RANGES

__all__ = ["MAX_HOURS", "MAX_ID", "specification"]

MAX_HOURS = 24 * 366
MAX_ID = 100

_COUNT = {"type": "integer", "minimum": 0}
_COUNTS = {"type": "object", "additionalProperties": _COUNT}
_NUMBER = {"type": "number"}
_TEXT = {"type": "string"}
_BOOLEAN = {"type": "boolean"}


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(item: JsonObject) -> JsonObject:
    return {"type": "array", "items": item}


def _or_null(schema: JsonObject) -> JsonObject:
    return {"anyOf": [schema, {"type": "null"}]}


_FLOW = _object(total=_COUNT, per_second=_NUMBER, recently=_COUNT)
_ROUTER = _object(problem=_or_null(_TEXT), as_of=_or_null(_NUMBER), is_stale=_BOOLEAN)
_LIVE = _object(
    at=_NUMBER,
    version=_TEXT,
    installation=_object(name=_TEXT, machine=_TEXT, directory=_TEXT),
    page_started_at=_NUMBER,
    interval_seconds=_NUMBER,
    state={"enum": ["ok", "warning", "critical", "unknown"]},
    problems=_list(
        _object(key=_TEXT, severity={"enum": ["warning", "critical"]}, text=_TEXT, action=_TEXT)
    ),
    routers=_object(ntf=_ROUTER, smp=_ROUTER),
    processes=_list(
        _object(
            name=_TEXT,
            state={"enum": ["starting", "running", "waiting", "stopped"]},
            since=_NUMBER,
            restarts=_COUNT,
            address=_TEXT,
            ended=_TEXT,
            cpu_percent=_or_null(_NUMBER),
            memory=_or_null(_COUNT),
            open_files=_or_null(_COUNT),
        )
    ),
    machine=_object(
        cores=_COUNT,
        load=_or_null(_NUMBER),
        memory_total=_or_null(_COUNT),
        memory_available=_or_null(_COUNT),
        uptime_seconds=_or_null(_NUMBER),
    ),
    disks=_list(_object(places=_list(_TEXT), total=_COUNT, free=_COUNT)),
    pipeline=_object(
        state={
            "enum": [
                "off",
                "unknown",
                "empty",
                "unreadable",
                "complete",
                "lagging",
                "gaps",
                "unaccounted",
            ]
        },
        lag_seconds=_or_null(_NUMBER),
        events=_or_null(_COUNT),
        quarantined=_or_null(_COUNT),
        unaccounted=_or_null(_COUNT),
        outcomes=_COUNTS,
        objectives_until=_or_null(_NUMBER),
        objectives=_list(
            _object(
                objective=_TEXT,
                provider=_TEXT,
                state={"enum": ["met", "missed", "incomplete", "not enough data"]},
                percent=_or_null(_NUMBER),
                budget_left=_or_null(_NUMBER),
                alerts=_list(
                    _object(name=_TEXT, severity={"enum": ["warning", "critical"]}, text=_TEXT)
                ),
            )
        ),
    ),
    tokens=_COUNTS,
    subscriptions=_COUNTS,
    smp_servers=_list(_object(name=_TEXT, own=_BOOLEAN, active=_COUNT, pending=_COUNT)),
    notifications=_FLOW,
    pushes=_object(
        total=_COUNT,
        per_second=_NUMBER,
        recently=_COUNT,
        failed=_COUNT,
        failed_recently=_COUNT,
        retried=_COUNT,
        expired=_COUNT,
    ),
    latency_ms=_object(p50=_or_null(_NUMBER), p90=_or_null(_NUMBER), p99=_or_null(_NUMBER)),
    pending=_COUNTS,
    oldest_pending_seconds=_NUMBER,
    providers=_list(
        _object(
            name=_TEXT,
            in_flight=_COUNT,
            accepted=_COUNT,
            failed=_COUNT,
            state={"enum": ["ok", "idle", "failing", "down"]},
        )
    ),
    failures=_list(_object(reason=_TEXT, recent=_COUNT, total=_COUNT)),
    restrictions=_COUNTS,
    found=_COUNTS,
    actions=_object(applied=_COUNT, undone=_COUNT, refused=_COUNT, waiting=_COUNT, capped=_COUNT),
    ntf_clients=_COUNT,
    messaging=_object(
        queues=_COUNT,
        notifiers=_COUNT,
        stored_messages=_COUNT,
        clients=_COUNT,
        sent=_FLOW,
        received=_FLOW,
        notifications_sent=_FLOW,
        notifications_pending=_COUNT,
    ),
    window_seconds=_NUMBER,
    actions_ask_token=_BOOLEAN,
)
_SERIES = _object(
    step=_NUMBER,
    at=_list(_NUMBER),
    **{column: _list(_or_null(_NUMBER)) for column in COLUMNS},
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
    outcomes=_COUNTS,
)
_SEARCH = _object(
    kind={"enum": ["token", "notification", "nothing"]},
    summary=_TEXT,
    facts=_list(_object(name=_TEXT, value=_TEXT)),
    events=_list(_object(at=_NUMBER, part=_TEXT, what=_TEXT)),
)
_ADDRESSES = _object(ntf=_or_null(_TEXT), smp=_or_null(_TEXT))
_TEST_PUSH = _object(
    ok=_BOOLEAN,
    problem=_or_null(_TEXT),
    steps=_list(_object(name=_TEXT, seconds=_NUMBER, problem=_or_null(_TEXT))),
)
_ERROR = _object(error=_TEXT)
_FAILURES = {"401": "the token is missing or wrong", "403": "not a loopback address"}


def _get(summary: str, answer: JsonObject, *parameters: JsonObject) -> JsonObject:
    failures = {"400": "a parameter is not valid"} if parameters else {}
    operation = _operation(summary, answer, _FAILURES | failures)
    return {"get": {**operation, "parameters": list(parameters)}}


def _post(summary: str, answer: JsonObject, conflict: str) -> JsonObject:
    operation = _operation(summary, answer, {**_FAILURES, "409": conflict})
    return {"post": {**operation, "security": [{"token": []}]}}


def _operation(summary: str, answer: JsonObject, failures: dict[str, str]) -> JsonObject:
    answers = {"200": (summary, answer)}
    answers |= {status: (text, _ERROR) for status, text in failures.items()}
    return {
        "summary": summary,
        "responses": {
            status: {"description": text, "content": {"application/json": {"schema": schema}}}
            for status, (text, schema) in answers.items()
        },
    }


def _query(name: str, required: bool, schema: JsonObject, text: str) -> JsonObject:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "schema": schema,
        "description": text,
    }


def specification() -> JsonObject:
    hours = {"type": "integer", "minimum": 1, "maximum": MAX_HOURS, "default": 24}
    wanted = {"type": "string", "minLength": 1, "maxLength": MAX_ID, "pattern": "^[!-~]+$"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Heliograph status",
            "version": __version__,
            "description": "What the system does now, and what it did.",
        },
        "paths": {
            "/api/live": _get("What the system does now", _LIVE),
            "/api/series": _get(
                "Throughput and latency of the last minutes or hours, for charts",
                _SERIES,
                _query("range", False, {"enum": list(RANGES), "default": "10m"}, "how far back"),
                _query("since", False, _NUMBER, "only what came after, in Unix seconds"),
            ),
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
            "/api/addresses": _get("The addresses of the routers, for apps", _ADDRESSES),
            "/api/test-push": _post(
                "Send a message through both routers to a simulated phone",
                _TEST_PUSH,
                "a test push is being sent already",
            ),
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
