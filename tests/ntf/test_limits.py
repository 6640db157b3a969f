import pytest

from heliograph.ntf import limits
from heliograph.ntf.limits import ClientState, Limits, RateLimits


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits, "time", clock)
    return clock


def client(address: str = "192.0.2.1") -> ClientState:
    return ClientState(None, address)


def test_off_by_default(clock: Clock) -> None:
    rates, one = RateLimits(Limits()), client()
    assert all(rates.may_command(one) and rates.may_register(one) for _ in range(10_000))


def test_commands_of_one_connection(clock: Clock) -> None:
    rates, one, other = RateLimits(Limits(commands_per_second=5)), client(), client()
    assert [rates.may_command(one) for _ in range(51)] == [True] * 50 + [False]
    assert rates.may_command(other)
    clock.now += 1
    assert [rates.may_command(one) for _ in range(6)] == [True] * 5 + [False]
    clock.now += 3600
    assert [rates.may_command(one) for _ in range(51)] == [True] * 50 + [False]


def test_less_than_one_command_a_second(clock: Clock) -> None:
    rates, one = RateLimits(Limits(commands_per_second=0.01)), client()
    assert rates.may_command(one)
    assert not rates.may_command(one)
    clock.now += 101
    assert rates.may_command(one)


def test_registrations_from_one_address(clock: Clock) -> None:
    rates = RateLimits(Limits(new_tokens_per_minute=2))
    assert [rates.may_register(client()) for _ in range(3)] == [True, True, False]
    assert rates.may_register(client("192.0.2.2"))
    clock.now += 61
    assert [rates.may_register(client()) for _ in range(3)] == [True, True, False]


def test_a_refused_registration_does_not_count(clock: Clock) -> None:
    rates = RateLimits(Limits(new_tokens_per_minute=1))
    assert rates.may_register(client())
    clock.now += 59
    assert not rates.may_register(client())
    clock.now += 2
    assert rates.may_register(client())


def test_addresses_are_forgotten(clock: Clock) -> None:
    rates = RateLimits(Limits(new_tokens_per_minute=1))
    for number in range(10_000):
        assert rates.may_register(client(str(number)))
    clock.now += 61
    assert rates.may_register(client("one more"))
    assert rates.may_register(client("and another"))
    assert len(rates._registrations) <= 2
    assert not rates.may_register(client("one more"))
