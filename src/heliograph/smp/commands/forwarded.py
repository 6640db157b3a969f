"""Commands that proxies forwarded: RFWD is opened here, and its command executed by the router."""

from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.clients.forwarded import ForwardedError, ForwardedSender
from heliograph.smp.observer import SmpObserver
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.requests import Failure, Request
from heliograph.wire.smp import SmpCommand, SmpResponse

ALLOWED = frozenset({smp.SEND, smp.SKEY, smp.LKEY, smp.LGET})
"""Commands that may be forwarded."""


class ForwardedCommands:
    """Commands that proxies forwarded, until the router takes and executes them."""

    def __init__(self, observer: SmpObserver) -> None:
        self._observer = observer
        self._waiting: list[tuple[ForwardedSender, Request[SmpCommand]]] = []

    def rfwd(self, client: SmpClient, request: Request[smp.RFWD], _: None) -> SmpResponse | None:
        self._observer.forwarded_command_received()
        try:
            sender = ForwardedSender(client, request)
        except ForwardedError as exc:
            return smp.ERR(exc.error)
        inner = sender.request
        if isinstance(inner, Failure):
            return sender.seal(inner.corr_id, inner.entity_id, smp.ERR(inner.error))
        if type(inner.command) not in ALLOWED:
            return sender.seal(inner.corr_id, inner.entity_id, smp.ERR(ErrorCode.CMD_PROHIBITED))
        self._waiting.append((sender, inner))
        return None

    def take(self) -> list[tuple[ForwardedSender, Request[SmpCommand]]]:
        waiting, self._waiting = self._waiting, []
        return waiting
