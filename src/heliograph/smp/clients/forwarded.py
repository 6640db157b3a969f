"""The sender of a command that a proxy forwarded: RFWD in, its answer back as RRES.

The command is executed like one of a direct session of the version that the sender chose, with the
proxy's session ID and session key.
"""

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.forwarding import (
    open_command,
    open_forwarded,
    seal_answer,
    seal_response,
)
from heliograph.crypto.keys import box_key
from heliograph.smp.clients.clients import SmpClient
from heliograph.wire import smp
from heliograph.wire.errors import (
    PROXY,
    BrokerError,
    ErrorCode,
    ErrorType,
    TransportError,
    WireError,
)
from heliograph.wire.requests import Failure, Request, decode_requests, encode_reply
from heliograph.wire.smp import (
    SMP_COMMANDS,
    SMP_RESPONSES,
    SmpCommand,
    SmpResponse,
    max_message_length,
)
from heliograph.wire.smp.forwarding import ForwardedResponse
from heliograph.wire.transmissions import Session, pack
from heliograph.wire.versions import SMP_SENDING_PROXY, SMP_VERSIONS

NO_SESSION_KEY = PROXY(BrokerError("TRANSPORT", TransportError.NO_AUTH))


class ForwardedError(Exception):
    """RFWD cannot be executed; `error` answers the proxy."""

    def __init__(self, error: ErrorType) -> None:
        super().__init__()
        self.error = error


class ForwardedSender:
    """The sender of one forwarded command, in place of a connected client."""

    service = None
    service_id = None

    def __init__(self, client: SmpClient, rfwd: Request[smp.RFWD]) -> None:
        """Decrypt RFWD of the proxy `client`. Raises `ForwardedError`."""
        self.client = client
        self.rfwd = rfwd
        established = client.established
        self.session_private = established.session_private
        if established.peer_key is None or self.session_private is None:
            raise ForwardedError(NO_SESSION_KEY)
        try:
            if client.forwarding_key is None:
                client.forwarding_key = box_key(established.peer_key, self.session_private)
            self._proxy_key = client.forwarding_key
            forwarded = open_forwarded(self._proxy_key, rfwd.corr_id, rfwd.command.transmission)
            self._key = box_key(forwarded.key, self.session_private)
            content = open_command(self._key, forwarded.corr_id, forwarded.transmission)
        except CryptoError:
            raise ForwardedError(ErrorCode.CRYPTO) from None
        except WireError as exc:
            raise ForwardedError(exc.error) from None
        self._corr_id = forwarded.corr_id
        version = min(max(forwarded.version, SMP_SENDING_PROXY), SMP_VERSIONS.max)
        self._session = Session.smp(established.session.session_id, version)
        self.max_message_length = max_message_length(version)
        requests = decode_requests(self._session, SMP_COMMANDS, content)
        if len(requests) != 1:
            raise ForwardedError(ErrorCode.BLOCK)
        self.request: Request[SmpCommand] | Failure = requests[0]

    def seal(self, corr_id: bytes, entity_id: bytes, message: SmpResponse) -> SmpResponse:
        """Encrypt the answer for the sender, and that for the proxy."""
        try:
            reply = encode_reply(self._session, SMP_RESPONSES, corr_id, entity_id, message)
            [content] = pack(self._session, [reply])
            response = seal_answer(self._key, self._corr_id, content)
        except (WireError, CryptoError):
            return smp.ERR(ErrorCode.BLOCK)
        forwarded = ForwardedResponse(self._corr_id, response)
        return smp.RRES(seal_response(self._proxy_key, self.rfwd.corr_id, forwarded))
