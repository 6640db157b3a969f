"""When alerts are raised and resolved, and what is sent."""

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from heliograph.runtime.authority import Authority
from heliograph.web.alerts import Alert, AlertRules, Alerts, AlertTarget, Installation, Mail, send
from heliograph.web.health import HealthProblem, Severity

DOWN = HealthProblem("provider:fcm", Severity.CRITICAL, "FCM accepts no pushes.", "See the log.")
LOW = HealthProblem("disk:ntf", Severity.WARNING, "The disk is almost full.", "Add space.")


HERE = Installation(
    "push.example.com",
    "host7",
    "/srv/heliograph",
    {"ntf": "push.example.com:443", "smp": "smp.example.com:5223"},
)
FROM = "From: notification router push.example.com:443, /srv/heliograph on host7"


def keys(alerts: list[Alert]) -> list[tuple[str, bool]]:
    return [(alert.problem.key, alert.is_resolved) for alert in alerts]


def test_raised_once_after_a_while_and_resolved_after_a_while() -> None:
    alerts = Alerts(AlertRules(after=60.0))
    assert alerts.update([DOWN], 0.0) == []
    assert alerts.update([DOWN], 59.0) == []
    assert keys(alerts.update([DOWN], 60.0)) == [("provider:fcm", False)]
    assert alerts.update([DOWN], 500.0) == []
    assert alerts.update([], 510.0) == []
    assert keys(alerts.update([], 570.0)) == [("provider:fcm", True)]
    assert alerts.update([], 999.0) == []


def test_a_problem_that_goes_soon_is_not_reported() -> None:
    alerts = Alerts(AlertRules(after=60.0))
    alerts.update([DOWN], 0.0)
    assert alerts.update([], 30.0) == []
    assert alerts.update([DOWN], 70.0) == []


def test_a_problem_that_comes_and_goes_is_reported_once() -> None:
    alerts = Alerts(AlertRules(after=60.0))
    alerts.update([DOWN], 0.0)
    assert len(alerts.update([DOWN], 60.0)) == 1
    assert [alerts.update(found, at) for found, at in (([], 70.0), ([DOWN], 80.0), ([], 90.0))] == [
        [],
        [],
        [],
    ]


def test_only_critical_ones() -> None:
    alerts = Alerts(AlertRules(after=0.0, severity=Severity.CRITICAL))
    assert keys(alerts.update([LOW, DOWN], 0.0)) == [("provider:fcm", False)]


async def test_webhook_and_ntfy() -> None:
    got: list[tuple[str, Any, str]] = []

    async def take(request: web.Request) -> web.Response:
        title = request.headers.get("Title", "")
        body = await request.json() if request.path == "/hook" else await request.text()
        got.append((request.path, body, title))
        return web.Response()

    app = web.Application()
    app.router.add_post("/{name}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session:
            target = AlertTarget(f"{url}/hook", f"{url}/topic")
            await send(session, target, HERE, Alert(DOWN))
            target = AlertTarget("", f"{url}/topic")
            await send(session, target, HERE, Alert(DOWN, is_resolved=True))
    finally:
        await runner.cleanup()
    by_path = {path: (body, title) for path, body, title in got[:2]}
    assert by_path["/hook"][0] == {
        **DOWN.as_json(),
        "part": "ntf",
        "router": "push.example.com:443",
        "installation": {
            "name": "push.example.com",
            "machine": "host7",
            "directory": "/srv/heliograph",
        },
        "resolved": False,
        "message": f"FCM accepts no pushes. See the log.\n{FROM}",
    }
    assert by_path["/topic"] == (
        f"FCM accepts no pushes. See the log.\n{FROM}",
        "Heliograph push.example.com: critical",
    )
    assert got[2] == (
        "/topic",
        f"Resolved: FCM accepts no pushes.\n{FROM}",
        "Heliograph push.example.com: resolved",
    )


@pytest.mark.parametrize(
    ("key", "part", "place"),
    [
        ("router:smp", "smp", "messaging router smp.example.com:5223, "),
        ("certificate:ntf:server", "ntf", "notification router push.example.com:443, "),
        ("process:page", "page", ""),
        ("providers", "ntf", "notification router push.example.com:443, "),
        ("pending", "ntf", "notification router push.example.com:443, "),
        ("pipeline:lag", "pipeline", ""),
        ("disk:system, smp", "system", ""),
    ],
)
def test_where_it_is_from(key: str, part: str, place: str) -> None:
    problem = HealthProblem(key, Severity.WARNING, "It broke.", "Mend it.")
    assert problem.part == part
    text = Alert(problem).text(HERE)
    assert text == f"It broke. Mend it.\nFrom: {place}/srv/heliograph on host7"


class Inbox:
    """What a mail server received, and how."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []
        self.logins: list[tuple[bytes, bytes]] = []

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=True)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.mails.append(envelope)
        return "250 OK"

    def lines(self) -> list[str]:
        [mail] = self.mails
        assert isinstance(mail.content, bytes)
        return mail.content.decode().splitlines()


@asynccontextmanager
async def mail_server(inbox: Inbox, encryption: str, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Run an SMTP server that takes mail over this kind of connection only; yield its port."""

    def protocol() -> SMTP:
        return SMTP(
            inbox,
            tls_context=context if encryption == "starttls" else None,
            require_starttls=encryption == "starttls",
            authenticator=inbox.authenticate,
            auth_require_tls=encryption == "starttls",
        )

    loop = asyncio.get_running_loop()
    implicit = context if encryption == "tls" else None
    server = await loop.create_server(protocol, "127.0.0.1", 0, ssl=implicit)
    async with server:
        yield server.sockets[0].getsockname()[1]


def mail_to(port: int, encryption: str) -> Mail:
    sender, recipient = "from@example.org", "to@example.org"
    return Mail("127.0.0.1", port, sender, recipient, "ops", "secret", encryption)


@pytest.mark.parametrize("encryption", ["starttls", "tls", "none"])
async def test_mail(encryption: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, inbox = Authority(tmp_path), Inbox()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = authority.server_context("127.0.0.1")
    async with (
        mail_server(inbox, encryption, context) as port,
        aiohttp.ClientSession() as session,
    ):
        await send(session, AlertTarget(mail=mail_to(port, encryption)), HERE, Alert(DOWN))
    lines = inbox.lines()
    assert inbox.logins == [(b"ops", b"secret")]
    assert "Subject: Heliograph push.example.com: critical" in lines
    assert "To: to@example.org" in lines
    for name, text in (("Date", r"\w{3}, \d+ \w{3} \d{4} .*"), ("Message-ID", "<.+@example.org>")):
        assert any(re.fullmatch(f"{name}: {text}", line) for line in lines), name
    assert "FCM accepts no pushes. See the log." in lines
    assert FROM in lines


@pytest.mark.parametrize("encryption", ["starttls", "tls"])
@pytest.mark.parametrize("fault", ["unknown authority", "other name"])
async def test_no_mail_or_password_to_a_server_that_is_not_the_one_named(
    encryption: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    authority, inbox = Authority(tmp_path), Inbox()
    if fault == "other name":
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = authority.server_context("127.0.0.2" if fault == "other name" else "127.0.0.1")
    async with (
        mail_server(inbox, encryption, context) as port,
        aiohttp.ClientSession() as session,
    ):
        await send(session, AlertTarget(mail=mail_to(port, encryption)), HERE, Alert(DOWN))
    assert (inbox.mails, inbox.logins) == ([], [])
    assert "could not be sent by e-mail: SSLCertVerificationError" in caplog.text


async def test_a_target_that_fails_is_logged_without_its_url(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with aiohttp.ClientSession() as session:
        await send(session, AlertTarget("http://127.0.0.1:1/SECRET"), HERE, Alert(DOWN))
    assert "could not be sent by webhook" in caplog.text
    assert "SECRET" not in caplog.text
    assert "SECRET" not in repr(AlertTarget("http://127.0.0.1:1/SECRET"))
