"""Commands of senders to their proxy: PRXY, PFWD."""

import hmac
from collections import Counter

from heliograph.runtime.limits import is_loopback, network_of
from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.context import CommandContext
from heliograph.smp.counters import RelayOutcome
from heliograph.smp.relays import HOST, NETWORK, TIMEOUT, VERSION, Relay, RelayError, Relays
from heliograph.tasks import TaskScope
from heliograph.wire import smp
from heliograph.wire.addresses import ServerAddress
from heliograph.wire.errors import PROXY, ErrorType, ProxyFailure, ProxyProtocolError
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse

MAX_CONNECTING = 32
"""Sessions that the clients of one address may be waiting for."""

Origin = SmpClient | str
"""Whom a client is counted as: its address, or itself on this machine, as behind a Tor daemon."""


class ProxyCommands:
    def __init__(self, context: CommandContext, relays: Relays, tasks: TaskScope) -> None:
        self._context = context
        self._relays = relays
        self._tasks = tasks
        self._connecting: Counter[Origin] = Counter()
        self._in_flight: Counter[Origin] = Counter()

    def prxy(self, client: SmpClient, request: Request[smp.PRXY], _: None) -> SmpResponse | None:
        command = request.command
        if not self._may_relay(command):
            return smp.ERR(PROXY(ProxyFailure.BASIC_AUTH))
        relay = self._relays.connected(command.server)
        if relay is not None:
            self._session_requested(command.server, None)
            return relay.pkey
        origin = _origin(client)
        if self._connecting[origin] >= MAX_CONNECTING:
            self._session_requested(command.server, TIMEOUT)
            return smp.ERR(TIMEOUT)
        self._connecting[origin] += 1
        connecting = self._tasks.spawn(self._connect(client, request), name="connect for a sender")
        connecting.add_done_callback(lambda _: _uncount(self._connecting, origin))
        return None

    def pfwd(self, client: SmpClient, request: Request[smp.PFWD], _: None) -> SmpResponse | None:
        observer = self._context.observer
        relay = self._relays.find(request.entity_id)
        if relay is None:
            observer.command_relayed(RelayOutcome.CONNECT, own=False)
            return smp.ERR(PROXY(ProxyFailure.NO_SESSION))
        origin = _origin(client)
        has_share = self._in_flight[origin] < self._relays.settings.max_in_flight_of_one
        if not (has_share and self._relays.has_room(relay)):
            observer.command_relayed(RelayOutcome.OTHER, own=self._is_own(relay.address))
            return smp.ERR(TIMEOUT)
        self._in_flight[origin] += 1
        forwarding = self._tasks.spawn(
            self._forward(client, request, relay), name="forward a command"
        )
        forwarding.add_done_callback(lambda _: _uncount(self._in_flight, origin))
        return None

    async def _connect(self, client: SmpClient, request: Request[smp.PRXY]) -> None:
        server = request.command.server
        answer: SmpResponse
        try:
            answer = (await self._relays.connect(server)).pkey
            self._session_requested(server, None)
        except RelayError as exc:
            self._session_requested(server, exc.error)
            answer = smp.ERR(exc.error)
        self._answer(client, request, answer)

    async def _forward(self, client: SmpClient, request: Request[smp.PFWD], relay: Relay) -> None:
        answer: SmpResponse
        outcome = RelayOutcome.SUCCESS
        try:
            answer = await self._relays.forward(relay, request.corr_id, request.command)
        except RelayError as exc:
            answer = smp.ERR(exc.error)
            match exc.error:
                case PROXY(ProxyProtocolError()):
                    pass  # the destination answered
                case _:
                    outcome = RelayOutcome.OTHER
        self._context.observer.command_relayed(outcome, own=self._is_own(relay.address))
        self._answer(client, request, answer)

    def _answer(
        self,
        client: SmpClient,
        request: Request[smp.PRXY] | Request[smp.PFWD],
        answer: SmpResponse,
    ) -> None:
        self._context.outgoing.answer(client, request, answer)
        self._context.outgoing.flush()

    def _may_relay(self, command: smp.PRXY) -> bool:
        password = self._context.rules.password
        return self._relays.settings.enabled and (
            password is None or hmac.compare_digest(command.password or b"", password)
        )

    def _session_requested(self, server: ServerAddress, error: ErrorType | None) -> None:
        if error is None:
            outcome = RelayOutcome.SUCCESS
        elif error == VERSION:
            outcome = RelayOutcome.COMPAT
        elif error in (NETWORK, TIMEOUT, HOST):
            outcome = RelayOutcome.CONNECT
        else:
            outcome = RelayOutcome.OTHER
        self._context.observer.relay_requested(outcome, own=self._is_own(server))

    def _is_own(self, server: ServerAddress) -> bool:
        domains = self._relays.settings.own_domains
        return any(
            host.text == domain or host.text.endswith(f".{domain}")
            for host in server.hosts
            for domain in domains
        )


def _origin(client: SmpClient) -> Origin:
    return client if is_loopback(client.address) else network_of(client.address)


def _uncount(counter: Counter[Origin], origin: Origin) -> None:
    counter[origin] -= 1
    if not counter[origin]:
        del counter[origin]
