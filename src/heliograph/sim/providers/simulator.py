"""A simulated push provider: an HTTP/2 server, its script, its record and its control endpoint.

A `SimulatedService` is what differs between providers; see `apns`, `fcm` and `webpush`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heliograph.runtime.authority import Authority
from heliograph.sim.providers.control import Control
from heliograph.sim.providers.http2 import Act, Http2Server, HttpReply, HttpRequest
from heliograph.sim.providers.record import Record
from heliograph.sim.providers.script import Script, ScriptRule


@dataclass(frozen=True, slots=True)
class Push:
    """A valid request."""

    token: str
    body: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request that the provider would reject, with its status and reason."""

    status: int
    reason: str
    token: str = ""


class SimulatedService(Protocol):
    """One provider: its checks and the format of its answers."""

    name: str

    def set_url(self, url: str, directory: Path) -> None:
        """Set the address before the first request, and write files for clients to `directory`."""

    def check(self, request: HttpRequest) -> Push | Wrong | HttpReply:
        """Return a `HttpReply` for a request that is no push, such as one for an access token."""

    def accept(self) -> HttpReply: ...

    def reject(self, status: int, reason: str | None) -> HttpReply:
        """Return a rejection, with the usual reason for the status if none is given."""


class Simulator:
    def __init__(self, service: SimulatedService, directory: Path, *, record: bool = True) -> None:
        self.service = service
        self.authority = Authority(directory)
        self.record = Record(directory / f"{service.name}.jsonl" if record else None)
        self.script = Script()
        self.url = ""
        self.control_url = ""
        self._directory = directory
        self._names = ("127.0.0.1", "::1", "localhost")
        self.server = Http2Server(self._handle, self.authority.server_context(*self._names))
        self._control = Control(self)

    async def start(self, host: str = "127.0.0.1", port: int = 0, control_port: int = 0) -> None:
        """Listen; the control endpoint is always on loopback."""
        if host not in self._names:
            context = self.authority.server_context(host, *self._names)
            self.server = Http2Server(self._handle, context)
        port = await self.server.start(host, port)
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self.service.set_url(self.url, self._directory)
        self.control_url = await self._control.start(control_port)

    async def close(self) -> None:
        await self._control.close()
        await self.server.close()
        self.record.close()

    def set_script(self, script: Script) -> None:
        self.script = script
        if self.server.max_streams != script.max_streams:
            self.server.max_streams = script.max_streams

    def stats(self) -> Mapping[str, int]:
        return {
            "accepted": self.record.accepted,
            "rejected": self.record.rejected,
            "connections": self.server.accepted,
            "open_connections": len(self.server.connections),
            "most_streams": self.server.most_streams,
            "goaways": self.server.goaways,
            "violations": self.server.violations,
        }

    def _handle(self, request: HttpRequest) -> HttpReply:
        checked = self.service.check(request)
        match checked:
            case HttpReply():
                return checked
            case Wrong():
                body = request.body.decode("utf-8", "replace")
                self._add(request, checked.token, body, checked.status, checked.reason)
                return self.service.reject(checked.status, checked.reason)
        rule = self.script.decide(checked.token)
        reply = self._reply(rule)
        answered = reply.act in (Act.ANSWER, Act.GOAWAY) and reply.status is not None
        reason = rule.reason if rule.status is not None or answered else rule.act.value
        self._add(request, checked.token, checked.body, reply.status if answered else None, reason)
        return reply

    def _reply(self, rule: ScriptRule) -> HttpReply:
        if rule.act is Act.GOAWAY and rule.status is None:
            return HttpReply(None, act=rule.act, delay=rule.delay)
        accepted = rule.status is None or rule.status < 300
        reply = self.service.accept() if accepted else self._rejection(rule)
        return HttpReply(reply.status, reply.headers, reply.body, rule.act, rule.delay)

    def _rejection(self, rule: ScriptRule) -> HttpReply:
        reply = self.service.reject(rule.status or 500, rule.reason)
        if rule.retry_after is None:
            return reply
        headers = {**reply.headers, "retry-after": f"{rule.retry_after:g}"}
        return HttpReply(reply.status, headers, reply.body)

    def _add(
        self, request: HttpRequest, token: str, body: str, status: int | None, reason: str | None
    ) -> None:
        self.record.add(
            time=request.received_at,
            connection=request.connection,
            token=token,
            accepted=status is not None and status < 300,
            status=status,
            reason=reason,
            headers=request.headers,
            body=body,
        )
