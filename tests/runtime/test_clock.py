"""Steps of the system's clock."""

from heliograph.runtime.clock import ADOPT_AFTER, SteadyClock

START = 1_000_000.0


class System:
    def __init__(self) -> None:
        self.elapsed = 0.0
        self.error = 0.0
        self.clock = SteadyClock(lambda: START + self.elapsed + self.error, lambda: self.elapsed)

    def wait(self, seconds: float) -> float:
        """Let time pass, and return how wrong the steady clock is."""
        self.elapsed += seconds
        return self.clock.now() - (START + self.elapsed)


def test_it_follows_small_corrections() -> None:
    system = System()
    for _ in range(10):
        system.error += 1.5
        assert system.wait(5.0) == system.error


def test_a_short_step_changes_nothing() -> None:
    for error in (3600.0, -3600.0, 4 * 86_400.0):
        system = System()
        assert system.wait(5.0) == 0
        system.error = error
        for _ in range(4):
            assert system.wait(1.0) == 0
        system.error = 0.0
        assert system.wait(1.0) == 0
        assert system.clock.steps == 0


def test_a_step_that_lasts_is_adopted() -> None:
    system = System()
    system.error = 3600.0
    assert system.wait(1.0) == 0
    assert system.wait(ADOPT_AFTER - 1) == 0
    assert system.wait(2.0) == 3600.0
    assert system.clock.steps == 1
    assert system.wait(1.0) == 3600.0


def test_each_step_lasts_by_itself() -> None:
    system = System()
    for turn in range(10):
        system.error = 3600.0 if turn % 2 else -3600.0
        assert system.wait(ADOPT_AFTER / 2) == 0
