"""The two protocols, each as one value: tables, versions, ALPN, layout of a session."""

from collections.abc import Callable
from dataclasses import dataclass

from heliograph.wire import handshakes, versions
from heliograph.wire.addresses import Scheme
from heliograph.wire.ntf import NTF_COMMANDS, NTF_RESPONSES
from heliograph.wire.smp import NEW, NSUB, SMP_COMMANDS, SMP_RESPONSES, SUB
from heliograph.wire.table import Table
from heliograph.wire.transmissions import NTF_BLOCK_SIZE, SMP_BLOCK_SIZE, Session
from heliograph.wire.versions import VersionRange


@dataclass(frozen=True, slots=True)
class Protocol:
    scheme: Scheme
    alpn: str
    versions: VersionRange
    legacy_versions: VersionRange
    block_size: int
    session: Callable[[bytes, int], Session]
    commands: Table
    responses: Table
    service_commands: frozenset[type]
    """Commands that a service signs too, so that the queue becomes associated with it."""

    def offered(self, alpn: str | None) -> VersionRange:
        """A peer without ALPN predates it, and gets only the legacy versions."""
        return self.legacy_versions if alpn is None else self.versions


NTF = Protocol(
    Scheme.NTF,
    handshakes.NTF_ALPN,
    versions.NTF_VERSIONS,
    versions.NTF_LEGACY_VERSIONS,
    NTF_BLOCK_SIZE,
    Session.ntf,
    NTF_COMMANDS,
    NTF_RESPONSES,
    frozenset(),
)
SMP = Protocol(
    Scheme.SMP,
    handshakes.SMP_ALPN,
    versions.SMP_VERSIONS,
    versions.SMP_LEGACY_VERSIONS,
    SMP_BLOCK_SIZE,
    Session.smp,
    SMP_COMMANDS,
    SMP_RESPONSES,
    frozenset({NEW, SUB, NSUB}),
)
