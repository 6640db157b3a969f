"""The SimpleX push-notification system: routers, client and data pipeline.

These names are what an application needs first; they are imported when they are first used.

>>> import asyncio
>>> from heliograph import Client
>>> from heliograph.wire import ntf
>>> async def ping(address: str) -> ntf.PONG:
...     async with Client.connect(address) as client:  # "ntf://<fingerprint>@ntf.example.com"
...         return await client.request(ntf.PING())

`Agent` is the client with a store: connections, messages, notification tokens and pushes. `Client`
is one connection to a router; `NtfCommand` and `SmpCommand` are the commands of the two protocols,
which `heliograph.wire.ntf` and `heliograph.wire.smp` define.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph.agent.agent import Agent, AgentSettings
    from heliograph.transport.client import Client, ClientConfig, ClientRequest
    from heliograph.transport.errors import ClientError
    from heliograph.wire.addresses import ServerAddress, decode_address
    from heliograph.wire.errors import WireError
    from heliograph.wire.ntf import NtfCommand, NtfResponse
    from heliograph.wire.smp import SmpCommand, SmpResponse

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentSettings",
    "Client",
    "ClientConfig",
    "ClientError",
    "ClientRequest",
    "NtfCommand",
    "NtfResponse",
    "ServerAddress",
    "SmpCommand",
    "SmpResponse",
    "WireError",
    "decode_address",
]

_MODULES = {
    "Agent": "heliograph.agent.agent",
    "AgentSettings": "heliograph.agent.agent",
    "Client": "heliograph.transport.client",
    "ClientConfig": "heliograph.transport.client",
    "ClientError": "heliograph.transport.errors",
    "ClientRequest": "heliograph.transport.client",
    "NtfCommand": "heliograph.wire.ntf",
    "NtfResponse": "heliograph.wire.ntf",
    "ServerAddress": "heliograph.wire.addresses",
    "SmpCommand": "heliograph.wire.smp",
    "SmpResponse": "heliograph.wire.smp",
    "WireError": "heliograph.wire.errors",
    "decode_address": "heliograph.wire.addresses",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
