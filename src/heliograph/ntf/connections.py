"""What the router asks of its connections to messaging routers, besides requests."""

import socket

from heliograph.transport.client import Client

RECEIVE_BUFFER = 64 * 1024


def hold(client: Client, held: bool) -> None:
    """Stop reading, or go on."""
    connection = client._connection
    connection.hold() if held else connection.unhold()


def abort(client: Client) -> None:
    """Without a farewell: that would say that all that was sent has been taken."""
    client._connection.abort()


async def gone(client: Client) -> None:
    await client._closed.wait()


def limit_received(client: Client) -> None:
    """What waits in the system's buffer has arrived, for the messaging router, and is not safe."""
    transport = client._connection._transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
