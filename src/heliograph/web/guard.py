"""Who may read the page: everybody on loopback, elsewhere whoever has the token.

A page in a browser must not be able to read this one through a name it controls (DNS rebinding), so
a request must name a host that is ours.
"""

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any

from aiohttp import web

__all__ = ["COOKIE", "SECURITY_HEADERS", "guard"]

COOKIE = "heliograph"
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(token: str | None) -> Any:
    """A middleware. Without a token only hosts of the loopback are answered, and all of them."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await _answer(request, handler, token)
        except web.HTTPException as exc:
            response = web.json_response({"error": exc.reason}, status=exc.status)
            if "Allow" in exc.headers:
                response.headers["Allow"] = exc.headers["Allow"]
        response.headers.update(SECURITY_HEADERS)
        return response

    return middleware


async def _answer(request: web.Request, handler: Handler, token: str | None) -> web.StreamResponse:
    if token is None:
        if not _is_loopback(request.host):
            raise web.HTTPForbidden(reason="this page answers to loopback addresses only")
        return await handler(request)
    given = request.query.get("token")
    if given is not None and _same(given, token):
        # The token leaves the address bar, and its history, at once.
        query = {key: value for key, value in request.query.items() if key != "token"}
        # One slash, as two would lead to another host.
        path = f"/{request.path.lstrip('/')}"
        location = str(request.rel_url.with_path(path).with_query(query))
        answer = web.Response(status=303, headers={"Location": location})
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=request.secure)
        return answer
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not _same(bearer, token) and not _same(request.cookies.get(COOKIE, ""), token):
        raise web.HTTPUnauthorized(
            reason="open this page with ?token=..., from the file page.token of the system"
        )
    return await handler(request)


def _same(given: str, token: str) -> bool:
    """Headers may have bytes that are no text."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


def _is_loopback(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
