"""When an alert is raised and resolved, and how it is sent: webhook, ntfy or e-mail."""

import asyncio
import logging
import smtplib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import localtime, make_msgid

import aiohttp

from heliograph.documents import JsonObject
from heliograph.system.config import STARTTLS, TLS
from heliograph.web.health import TITLES, HealthProblem, Severity

__all__ = ["Alert", "AlertRules", "AlertTarget", "Alerts", "Installation", "Mail", "send"]

logger = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_MAIL_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Installation:
    """Which system an alert or a page is of. `routers` has the host and port of each."""

    name: str
    machine: str
    directory: str
    routers: Mapping[str, str]

    def as_json(self) -> JsonObject:
        return {"name": self.name, "machine": self.machine, "directory": self.directory}

    def describe(self, part: str) -> str:
        """Return where a part is: which router, in which directory of which machine."""
        router = f"{TITLES[part]} {self.routers[part]}, " if part in self.routers else ""
        return f"{router}{self.directory} on {self.machine}"


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that lasted, or one that is over."""

    problem: HealthProblem
    is_resolved: bool = False

    def title(self, origin: Installation) -> str:
        state = "resolved" if self.is_resolved else self.problem.severity.value
        return f"Heliograph {origin.name}: {state}"

    def text(self, origin: Installation) -> str:
        what = f"{self.problem.text} {self.problem.action}"
        if self.is_resolved:
            what = f"Resolved: {self.problem.text}"
        return f"{what}\nFrom: {origin.describe(self.problem.part)}"

    def as_json(self, origin: Installation) -> JsonObject:
        return {
            **self.problem.as_json(),
            "part": self.problem.part,
            "router": origin.routers.get(self.problem.part),
            "installation": origin.as_json(),
            "resolved": self.is_resolved,
            "message": self.text(origin),
        }


@dataclass(frozen=True, slots=True)
class AlertRules:
    """Which problems become alerts: those this bad that last this many seconds."""

    after: float = 60.0
    severity: Severity = Severity.WARNING


class Alerts:
    """Which problems there are, since when, and which were reported. Pure."""

    def __init__(self, rules: AlertRules) -> None:
        self._rules = rules
        self._since: dict[str, float] = {}
        self._raised: dict[str, HealthProblem] = {}
        self._gone: dict[str, float] = {}

    def update(self, problems: Iterable[HealthProblem], now: float) -> list[Alert]:
        """Return the alerts to send now. A problem that comes and goes is reported once."""
        found = {problem.key: problem for problem in problems if self._matters(problem)}
        self._since = {key: self._since.get(key, now) for key in found}
        alerts = []
        for key, problem in found.items():
            self._gone.pop(key, None)
            if key not in self._raised and now - self._since[key] >= self._rules.after:
                self._raised[key] = problem
                alerts.append(Alert(problem))
        for key in [key for key in self._raised if key not in found]:
            if now - self._gone.setdefault(key, now) >= self._rules.after:
                del self._gone[key]
                alerts.append(Alert(self._raised.pop(key), is_resolved=True))
        return alerts

    def _matters(self, problem: HealthProblem) -> bool:
        return (
            problem.severity is Severity.CRITICAL or self._rules.severity is not Severity.CRITICAL
        )


@dataclass(frozen=True, slots=True)
class Mail:
    """An SMTP server, and from whom to whom."""

    host: str
    port: int
    sender: str
    recipient: str
    user: str = ""
    password: str = field(default="", repr=False)
    encryption: str = STARTTLS


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """Where alerts go. An empty URL is none."""

    webhook: str = field(default="", repr=False)
    ntfy: str = field(default="", repr=False)
    mail: Mail | None = None

    def __bool__(self) -> bool:
        return bool(self.webhook or self.ntfy or self.mail)


async def send(
    session: aiohttp.ClientSession, target: AlertTarget, origin: Installation, alert: Alert
) -> None:
    """Send an alert everywhere; what fails is logged, without URLs, which may hold secrets."""
    ways = {
        "webhook": _webhook(session, target.webhook, origin, alert) if target.webhook else None,
        "ntfy": _ntfy(session, target.ntfy, origin, alert) if target.ntfy else None,
        "e-mail": asyncio.to_thread(_mail, target.mail, origin, alert) if target.mail else None,
    }
    used = {name: way for name, way in ways.items() if way is not None}
    results = await asyncio.gather(*used.values(), return_exceptions=True)
    for name, result in zip(used, results, strict=True):
        if isinstance(result, BaseException):
            logger.warning("an alert could not be sent by %s: %s", name, type(result).__name__)


async def _webhook(
    session: aiohttp.ClientSession, url: str, origin: Installation, alert: Alert
) -> None:
    async with session.post(url, json=alert.as_json(origin), timeout=_TIMEOUT) as answer:
        answer.raise_for_status()


async def _ntfy(
    session: aiohttp.ClientSession, url: str, origin: Installation, alert: Alert
) -> None:
    is_urgent = alert.problem.severity is Severity.CRITICAL and not alert.is_resolved
    headers = {"Title": alert.title(origin), "Priority": "urgent" if is_urgent else "default"}
    async with session.post(
        url, data=alert.text(origin), headers=headers, timeout=_TIMEOUT
    ) as answer:
        answer.raise_for_status()


def _mail(mail: Mail, origin: Installation, alert: Alert) -> None:
    message = EmailMessage()
    message["Subject"], message["From"] = alert.title(origin), mail.sender
    message["To"], message["Date"] = mail.recipient, localtime()
    message["Message-ID"] = make_msgid(domain=mail.sender.rpartition("@")[2] or None)
    message.set_content(alert.text(origin))
    with _connect(mail) as server:
        if mail.user:
            server.login(mail.user, mail.password)
        server.send_message(message)


def _connect(mail: Mail) -> smtplib.SMTP:
    """Connect to the mail server, whose certificate must be valid unless nothing is encrypted."""
    if mail.encryption == TLS:
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(mail.host, mail.port, timeout=_MAIL_TIMEOUT, context=context)
    server = smtplib.SMTP(mail.host, mail.port, timeout=_MAIL_TIMEOUT)
    if mail.encryption == STARTTLS:
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server
