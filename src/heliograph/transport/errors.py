"""What may go wrong on a connection.

Exception
├── ClientError                a request that got no proper answer
│   ├── ConnectFailed          no connection: name, address, proxy, TLS
│   │   └── AddressRefused     the host has only addresses that we do not connect to
│   ├── HandshakeFailed        a peer that is not who it should be, or speaks another version
│   ├── Disconnected           the connection ended before the answer
│   ├── RequestTimeout         no answer in time
│   ├── RequestRefused         ERR; `.error` is what the router said
│   └── UnexpectedReply        an answer that makes no sense
│       └── MalformedReply     an answer that does not parse; `.error` says how
└── SocksError                 the proxy refused (becomes ConnectFailed)
"""

from heliograph.wire.errors import ErrorType, TransportError, encode_error


class ClientError(Exception):
    """A request that got no proper answer."""


class ConnectFailed(ClientError):
    """No connection could be made."""


class AddressRefused(ConnectFailed):
    """The host has only addresses that we do not connect to."""


class HandshakeFailed(ClientError):
    """The peer is not who it should be, or no version suits both."""

    def __init__(self, error: TransportError, reason: str = "") -> None:
        super().__init__(f"{error.value}: {reason}" if reason else error.value)
        self.error = error


class Disconnected(ClientError):
    """The connection ended; whether the request was served is unknown."""


class RequestTimeout(ClientError):
    """No answer in time; whether the request was served is unknown."""


class RequestRefused(ClientError):
    """The router answered ERR."""

    def __init__(self, error: ErrorType) -> None:
        super().__init__(encode_error(error).decode("utf-8", "replace"))
        self.error = error


class UnexpectedReply(ClientError):
    """The router answered something that does not belong to the request."""


class MalformedReply(UnexpectedReply):
    """The router sent an answer that does not parse."""

    def __init__(self, error: ErrorType) -> None:
        super().__init__("the answer is malformed")
        self.error = error


class SocksError(Exception):
    """The SOCKS proxy refused, or does not speak SOCKS 5."""
