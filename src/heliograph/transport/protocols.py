"""The two protocols, each as one value: tables, versions, ALPN, layout of a session."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from heliograph.wire import handshakes, versions
from heliograph.wire.addresses import Scheme
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES, NtfCommand, NtfResponse
from heliograph.wire.smp import (
    LNK,
    MSG,
    NEW,
    NSUB,
    SMP_COMMANDS,
    SMP_RESPONSES,
    SUB,
    SmpCommand,
    SmpResponse,
)
from heliograph.wire.table import Table
from heliograph.wire.transmissions import NTF_BLOCK_SIZE, SMP_BLOCK_SIZE, Session
from heliograph.wire.versions import VersionRange

C = TypeVar("C")
R = TypeVar("R")

Response = SmpResponse | NtfResponse
"""Anything that a router sends."""


@dataclass(frozen=True, slots=True)
class Protocol(Generic[C, R]):
    """What one protocol is made of; `C` and `R` are its commands and responses."""

    scheme: Scheme
    alpn: str
    versions: VersionRange
    legacy_versions: VersionRange
    block_size: int
    session: Callable[[bytes, int], Session]
    commands: Table[C]
    responses: Table[R]
    service_commands: frozenset[type]
    """Commands that a service signs too, so that the queue becomes associated with it."""
    bulky_commands: frozenset[type]
    """Commands whose answer may fill a block."""

    def offered(self, alpn: str | None) -> VersionRange:
        """Return the versions to offer: legacy ones to a peer without ALPN, which predates it."""
        return self.legacy_versions if alpn is None else self.versions


AnyProtocol = Protocol[Any, Any]
"""Either: which one is known when a connection is made, and not to the type checker."""

NTF: Protocol[NtfCommand, NtfResponse] = Protocol(
    Scheme.NTF,
    handshakes.NTF_ALPN,
    versions.NTF_VERSIONS,
    versions.NTF_LEGACY_VERSIONS,
    NTF_BLOCK_SIZE,
    Session.ntf,
    NTF_COMMANDS,
    NTF_RESPONSES,
    frozenset(),
    frozenset(),
)
SMP: Protocol[SmpCommand, SmpResponse] = Protocol(
    Scheme.SMP,
    handshakes.SMP_ALPN,
    versions.SMP_VERSIONS,
    versions.SMP_LEGACY_VERSIONS,
    SMP_BLOCK_SIZE,
    Session.smp,
    SMP_COMMANDS,
    SMP_RESPONSES,
    frozenset({NEW, SUB, NSUB}),
    frozenset(
        command.type
        for command in SMP_COMMANDS.messages
        if not command.type.responses.isdisjoint((MSG, LNK))
    ),
)
