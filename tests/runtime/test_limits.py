import pytest

from heliograph.runtime.limits import AddressLimit, Allowance, RateLimit, allowance_for

HERE, THERE = "127.0.0.1", "192.0.2.1"


def test_options() -> None:
    assert RateLimit.of(None, 5) == RateLimit(5, applies_to_loopback=False)
    assert RateLimit.of(0, 5) is None
    assert RateLimit.of(3, 5) == RateLimit(3)


@pytest.mark.parametrize("address", [HERE, "::1"])
def test_connections_from_this_machine_may_be_exempt(address: str) -> None:
    default, chosen = RateLimit.of(None, 1), RateLimit.of(1, 1)
    assert allowance_for(default, address, 0) is None
    assert allowance_for(default, THERE, 0) is not None
    assert allowance_for(default, "unknown", 0) is not None
    assert allowance_for(chosen, address, 0) is not None
    assert allowance_for(None, THERE, 0) is None


def test_commands_of_one_connection() -> None:
    one = Allowance(5, 1000.0)
    for now in (1000.0, 1001.0, 4600.0):
        assert [one.take(now) for _ in range(6)] == [True] * 5 + [False]
        assert one.wait == pytest.approx(0.2)
    assert one.take(4600.2001)


def test_less_than_one_command_a_second() -> None:
    one = Allowance(0.01, 0.0)
    assert one.take(0.0)
    assert not one.take(0.0)
    assert one.wait == pytest.approx(100)
    assert one.take(101.0)
    assert one.wait == pytest.approx(100)


def test_requests_from_one_address() -> None:
    limit = AddressLimit(RateLimit(2))
    for now in (1000.0, 1061.0):
        assert [limit.take(THERE, now) for _ in range(3)] == [True, True, False]
    assert limit.take("192.0.2.2", 1061.0)


def test_a_refused_request_does_not_count() -> None:
    limit = AddressLimit(RateLimit(1))
    assert limit.take(THERE, 0.0)
    assert not limit.take(THERE, 59.0)
    assert limit.take(THERE, 61.0)


def test_no_limit() -> None:
    unlimited, local = AddressLimit(None), AddressLimit(RateLimit.of(None, 1))
    assert all(unlimited.take(THERE, 0.0) and local.take(HERE, 0.0) for _ in range(100))
    assert not len(unlimited)
    assert not len(local)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
    ],
)
def test_one_customer_has_many_ipv6_addresses(one: str, other: str, together: bool) -> None:
    limit = AddressLimit(RateLimit(1))
    assert limit.take(one, 0.0)
    assert limit.take(other, 0.0) is not together


def test_addresses_are_forgotten() -> None:
    limit = AddressLimit(RateLimit(1))
    assert all(limit.take(str(number), 0.0) for number in range(10_000))
    assert limit.take("one more", 61.0)
    assert limit.take("and another", 61.0)
    assert len(limit) == 2
    assert not limit.take("one more", 61.0)
