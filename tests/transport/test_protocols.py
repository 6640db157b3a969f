"""Tests of `heliograph.transport.protocols`."""

import pytest

from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme
from heliograph.wire.table import PING, PONG
from heliograph.wire.transmissions import Session
from heliograph.wire.versions import VersionRange


@pytest.mark.parametrize(
    ("protocol", "versions", "legacy"),
    [(NTF, VersionRange(1, 3), VersionRange(1, 1)), (SMP, VersionRange(6, 19), VersionRange(6, 6))],
)
def test_no_alpn_means_legacy_versions(
    protocol: AnyProtocol, versions: VersionRange, legacy: VersionRange
) -> None:
    assert protocol.offered(protocol.alpn) == versions
    assert protocol.offered(None) == legacy


def test_facts() -> None:
    assert (NTF.scheme, NTF.alpn, NTF.block_size) == (Scheme.NTF, "ntf/1", 512)
    assert (SMP.scheme, SMP.alpn, SMP.block_size) == (Scheme.SMP, "smp/1", 16384)
    assert NTF.session(b"id", 3) == Session.ntf(b"id", 3)
    assert SMP.session(b"id", 19) == Session.smp(b"id", 19)
    assert NTF.service_commands == frozenset()
    assert SMP.service_commands == {smp.NEW, smp.SUB, smp.NSUB}


@pytest.mark.parametrize("protocol", [NTF, SMP], ids=["ntf", "smp"])
def test_tables_are_the_right_way_round(protocol: AnyProtocol) -> None:
    assert protocol.commands.decode(b"PING", 1) == PING()
    assert protocol.responses.decode(b"PONG", 1) == PONG()
    error = (ntf if protocol is NTF else smp).ERR
    assert type(protocol.responses.decode(b"ERR AUTH", 1)) is error
