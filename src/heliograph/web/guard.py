"""Access to the page: without a token only from loopback names, with one from anywhere.

A page in a browser must not be able to read this one through a name it controls (DNS rebinding), so
without a token a request must name a loopback host.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from importlib import resources
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Middleware

__all__ = ["COOKIE", "LOGIN", "SECURITY_HEADERS", "guard"]

COOKIE = "heliograph"
LOGIN = "/login"
PUBLIC = ("/page.css", "/icon.svg")
"""What the login form needs."""
ACTIONS = ("/api/test-push",)
WRONG_TOKEN_DELAY = 0.5
HOW_TO_LOG_IN = "send the token of the file page.token as `Authorization: Bearer TOKEN`"
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self';"
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


def guard(token: str | None, action_token: str | None) -> Middleware:
    """Return a middleware that checks access and adds security headers.

    Reading needs the `token` if there is one, an action always the `action_token`.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await _answer(request, handler, token, action_token)
        except web.HTTPException as exc:
            response = web.json_response({"error": exc.reason}, status=exc.status)
            if "Allow" in exc.headers:
                response.headers["Allow"] = exc.headers["Allow"]
        response.headers.update(SECURITY_HEADERS)
        return response

    return middleware


async def _answer(
    request: web.Request, handler: Handler, token: str | None, action_token: str | None
) -> web.StreamResponse:
    if token is None:
        if not _is_loopback(request.host):
            raise web.HTTPForbidden(reason="this page answers to loopback addresses only")
        if request.path in ACTIONS and not (action_token and _has_token(request, action_token)):
            raise web.HTTPUnauthorized(reason=HOW_TO_LOG_IN)
        return await handler(request)
    if request.path in PUBLIC or _has_token(request, token):
        return await handler(request)
    if request.path == LOGIN and request.method == "POST":
        return await _log_in(request, token)
    given = request.query.get("token")
    if given is not None and _same(given, token):
        # The redirect removes the token from the address bar and the browser's history.
        query = {key: value for key, value in request.query.items() if key != "token"}
        # One slash, because two would lead to another host.
        path = f"/{request.path.lstrip('/')}"
        return _with_cookie(request, str(request.rel_url.with_path(path).with_query(query)), token)
    if "text/html" in request.headers.get("Accept", "") and request.method == "GET":
        return _login_form(401 if given is not None else 200)
    raise web.HTTPUnauthorized(reason=HOW_TO_LOG_IN)


def _has_token(request: web.Request, token: str) -> bool:
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return _same(bearer, token) or _same(request.cookies.get(COOKIE, ""), token)


async def _log_in(request: web.Request, token: str) -> web.StreamResponse:
    form = await request.post()
    given = form.get("token")
    if isinstance(given, str) and _same(given.strip(), token):
        return _with_cookie(request, "/", token)
    await asyncio.sleep(WRONG_TOKEN_DELAY)
    return _login_form(401)


def _login_form(status: int) -> web.Response:
    text = (resources.files("heliograph.web") / "static" / "login.html").read_text()
    if status == 401:
        text = text.replace(" hidden>", ">")
    return web.Response(text=text, status=status, content_type="text/html")


def _with_cookie(request: web.Request, location: str, token: str) -> web.Response:
    answer = web.Response(status=303, headers={"Location": location})
    answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=request.secure)
    return answer


def _same(given: str, token: str) -> bool:
    """Compare in constant time; headers may contain bytes that are not text."""
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
