"""A control port: operators on this machine query the router, in the reference's format.

A connection has a role, given by the password of `auth`. It listens on the loopback only.
"""

import asyncio
import contextlib
import hmac
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum

from heliograph.runtime.errors import StartError
from heliograph.runtime.listening import refused

__all__ = ["ControlPort", "Passwords", "Role"]

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_LINE = 1024
MAX_CONNECTIONS = 16
IDLE_TIMEOUT = 600.0
WRONG_PASSWORD_DELAY = 1.0


class Role(Enum):
    """A role; the value is the reference's name for it."""

    NONE = "CPRNone"
    USER = "CPRUser"
    ADMIN = "CPRAdmin"


@dataclass(frozen=True, slots=True)
class Passwords:
    """Passwords by role; None admits nobody."""

    admin: bytes | None = field(default=None, repr=False)
    user: bytes | None = field(default=None, repr=False)

    def role(self, password: bytes) -> Role:
        for known, role in ((self.admin, Role.ADMIN), (self.user, Role.USER)):
            if known is not None and hmac.compare_digest(known, password):
                return role
        return Role.NONE


class ControlPort(ABC):
    """Listens and authenticates; a subclass answers the commands of its router."""

    title: str
    """The first line that a client gets."""
    help: str

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._server: asyncio.Server | None = None
        # Not a TaskScope: asyncio's server starts these tasks.
        self._connections: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def answer(self, role: Role, words: list[str]) -> list[str]:
        """Return the lines that answer a command, which is at least one word."""

    async def start(self, port: int) -> int:
        """Listen, and return the port, which matters if 0 was given."""
        try:
            self._server = await asyncio.start_server(
                self._connected, HOST, port, limit=MAX_LINE, start_serving=True
            )
        except OSError as exc:
            raise StartError(refused(exc, HOST, port, "[control]")) from exc
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        role = Role.NONE
        lines = [self.title, "'help' for supported commands"]
        while True:
            writer.write("".join(f"{line}\n" for line in lines).encode())
            await writer.drain()
            async with asyncio.timeout(IDLE_TIMEOUT):
                received = await reader.readline()
            words = received.decode("utf-8", "replace").split()
            if not received or words == ["quit"]:
                return
            match words:
                case []:
                    lines = []
                case ["auth", *_]:
                    role, lines = await self._authenticate(role, words)
                case ["help"]:
                    lines = [self.help]
                case _:
                    lines = await self.answer(role, words)

    async def _authenticate(self, role: Role, words: list[str]) -> tuple[Role, list[str]]:
        if len(words) != 2:
            return role, ["error: auth needs a password"]
        wanted = self._passwords.role(words[1].encode())
        if wanted is Role.NONE:
            logger.warning("control port: a wrong password")
            await asyncio.sleep(WRONG_PASSWORD_DELAY)
        if role is Role.NONE:
            return wanted, [f"Current role is {wanted.value}"]
        change = "" if role is wanted else ", start new session to change."
        return role, [f"Current role is {role.value}{change}"]

    def unknown(self) -> list[str]:
        """Return the answer to a command that does not exist."""
        return [f"error: no such command; {self.help}"]


def is_allowed(role: Role, needed: Role, command: str) -> bool:
    """Return whether a role may use a command, and log the command."""
    if role is Role.ADMIN or role is needed:
        logger.info("control port: %s", command)
        return True
    logger.warning("control port: %s without the password it needs", command)
    return False
