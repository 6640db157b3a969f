from ipaddress import ip_address
from typing import Any

import pytest

from heliograph.journal.events import PushesTimed, RegistrationsCounted, SmpCounted
from heliograph.journal.hashing import Hasher
from heliograph.ntf.observing.traffic import (
    DAY,
    MAX_NETWORKS,
    MAX_SILENT,
    MIN_REGISTRATIONS,
    ServerName,
    TrafficCounts,
    source_of,
)

NOW = 20_000.5 * DAY
NAMES = {1: ServerName("smp://a@one", "one"), 2: ServerName("smp://b@two", None)}


def events(counts: TrafficCounts, now: float = NOW) -> list[Any]:
    return list(counts.events(NAMES.get, now))


def test_messaging_routers_and_providers_are_counted_without_tokens() -> None:
    counts = TrafficCounts()
    counts.received(1, 5)
    counts.received(1, 2)
    counts.server_answered(1, 0.25)
    counts.server_answered(1, 0.75)
    counts.received(2, 1)
    counts.received(3, 9)  # removed meanwhile: nobody knows its address
    counts.provider_answered("apns_prod", 0.1)
    assert events(counts) == [
        SmpCounted(server=b"smp://a@one", own_server=True, smp_host="one", count=7, delay=500_000),
        SmpCounted(server=b"smp://b@two", own_server=False, count=1),
        PushesTimed(provider="apns_prod", count=1, delay=100_000),
    ]


def test_silence_is_recorded_for_a_while() -> None:
    counts = TrafficCounts()
    counts.received(2, 1)
    found = [event.count for _ in range(MAX_SILENT + 3) for event in events(counts)]
    assert found == [1] + [0] * MAX_SILENT


def test_few_registrations_of_a_network_are_not_recorded() -> None:
    counts = TrafficCounts()
    for number in range(MIN_REGISTRATIONS):
        counts.registration(f"192.0.2.{number}")
        counts.registration(f"2001:db8:1:{number:x}::1")
    for _ in range(MIN_REGISTRATIONS - 1):
        counts.registration("198.51.100.7")
    assert [event.count for event in events(counts)] == [MIN_REGISTRATIONS] * 2
    assert events(counts) == []


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.9"])
def test_a_source_is_another_one_every_day(address: str) -> None:
    hashes = Hasher(b"k" * 32).of("source")
    assert hashes is not None
    today, tomorrow = source_of(address, NOW), source_of(address, NOW + DAY)
    assert today == source_of("192.0.2.200", NOW)
    assert hashes[today] != hashes[tomorrow]
    assert address.encode() not in hashes[today].encode()


def test_only_so_many_networks_are_counted() -> None:
    counts = TrafficCounts()
    for number in range(MAX_NETWORKS + 10):
        counts.registration(str(ip_address(number << 8)))
    for _ in range(MIN_REGISTRATIONS):
        counts.registration("203.0.113.1")
        counts.registration("0.0.1.1")
    assert events(counts) == [
        RegistrationsCounted(source=source_of("0.0.1.0", NOW), count=MIN_REGISTRATIONS + 1)
    ]
