"""When a proxy is used, for every mode, destination and fallback."""

import itertools

import pytest

from heliograph.agent.routing.modes import (
    ProxyFallback,
    ProxyMode,
    RoutingSettings,
    choose_proxy,
    is_protected,
    may_fall_back,
    needs_proxy,
)
from heliograph.transport.socks import SocksMode, SocksProxy
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.errors import (
    PROXY,
    BrokerError,
    ErrorCode,
    ErrorType,
    ProxyFailure,
    ProxyProtocolError,
    TransportError,
)


def server(number: int, host: str | None = None) -> ServerAddress:
    name = decode_host(host or f"smp{number}.example.com")
    return ServerAddress(Scheme.SMP, (name,), "", bytes([number]) * 32)


OWN, OTHER_OWN, FOREIGN = server(1), server(2), server(3)
SERVERS = (OWN, OTHER_OWN)
ONION = server(4, f"{'a' * 56}.onion")


@pytest.mark.parametrize("mode", ProxyMode)
@pytest.mark.parametrize("protected", [True, False])
def test_which_destinations_need_a_proxy(mode: ProxyMode, protected: bool) -> None:
    settings = RoutingSettings(mode, servers=SERVERS)
    needs = {place: needs_proxy(settings, place, protected=protected) for place in (OWN, FOREIGN)}
    foreign = {
        ProxyMode.ALWAYS: True,
        ProxyMode.UNKNOWN: True,
        ProxyMode.UNPROTECTED: not protected,
        ProxyMode.NEVER: False,
    }
    assert needs == {OWN: mode is ProxyMode.ALWAYS, FOREIGN: foreign[mode]}
    assert not needs_proxy(RoutingSettings(mode), FOREIGN, protected=protected), "there is none"


def test_a_host_of_ours_under_another_identity_is_known() -> None:
    settings = RoutingSettings(ProxyMode.UNKNOWN, servers=SERVERS)
    assert not needs_proxy(settings, server(9, "smp1.example.com"), protected=False)


@pytest.mark.parametrize(
    ("host", "needed"),
    [
        ("127.0.0.1", False),
        ("[::1]", False),
        ("192.168.1.7", False),
        ("localhost", False),
        ("8.8.8.8", True),
        ("[2606:4700::1]", True),
    ],
)
def test_a_router_in_our_own_network_needs_none(host: str, needed: bool) -> None:
    destination = server(9, host)
    for mode in (ProxyMode.UNKNOWN, ProxyMode.UNPROTECTED):
        settings = with_mode(mode)
        assert needs_proxy(settings, destination, protected=False) is needed
    assert needs_proxy(with_mode(ProxyMode.ALWAYS), destination, protected=False)


def with_mode(mode: ProxyMode) -> RoutingSettings:
    return RoutingSettings(mode, servers=SERVERS)


def test_the_proxy_is_another_router_than_the_destination() -> None:
    settings = RoutingSettings(ProxyMode.ALWAYS, servers=SERVERS)
    numbers = [number / 100 for number in range(100)]
    assert {choose_proxy(settings, OWN, number) for number in numbers} == {OTHER_OWN}
    assert {choose_proxy(settings, FOREIGN, number) for number in numbers} == set(SERVERS)
    only = RoutingSettings(ProxyMode.ALWAYS, servers=(OWN,))
    assert choose_proxy(only, OWN, 0.99) is OWN
    assert choose_proxy(settings, FOREIGN, 1.0) in SERVERS


@pytest.mark.parametrize(
    ("socks", "destination", "protected"),
    [
        (None, FOREIGN, False),
        (None, ONION, False),
        (SocksProxy("127.0.0.1", 9050, SocksMode.ALWAYS), FOREIGN, True),
        (SocksProxy("127.0.0.1", 9050, SocksMode.ONION), FOREIGN, False),
        (SocksProxy("127.0.0.1", 9050, SocksMode.ONION), ONION, True),
    ],
)
def test_what_hides_our_address(
    socks: SocksProxy | None, destination: ServerAddress, protected: bool
) -> None:
    assert is_protected(destination, socks) is protected


ERRORS: dict[ErrorType, bool] = {
    PROXY(BrokerError("HOST")): True,
    PROXY(BrokerError("TRANSPORT", TransportError.VERSION)): True,
    PROXY(BrokerError("TRANSPORT", TransportError.BLOCK)): False,
    PROXY(BrokerError("NETWORK")): False,
    PROXY(BrokerError("TIMEOUT")): False,
    PROXY(ProxyFailure.BASIC_AUTH): False,
    PROXY(ProxyFailure.NO_SESSION): False,
    PROXY(ProxyProtocolError(ErrorCode.AUTH)): False,
    ErrorCode.CMD_UNKNOWN: False,
    ErrorCode.AUTH: False,
}


@pytest.mark.parametrize(
    ("error", "fallback", "protected"),
    list(itertools.product(ERRORS, ProxyFallback, (True, False))),
)
def test_when_a_direct_connection_replaces_the_proxy(
    error: ErrorType, fallback: ProxyFallback, protected: bool
) -> None:
    settings = RoutingSettings(ProxyMode.UNKNOWN, fallback, SERVERS)
    allowed = {
        ProxyFallback.ALLOW: True,
        ProxyFallback.ALLOW_PROTECTED: protected,
        ProxyFallback.PROHIBIT: False,
    }
    expected = ERRORS[error] and allowed[fallback]
    assert may_fall_back(settings, error, protected=protected) is expected
