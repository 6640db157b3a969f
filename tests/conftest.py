"""Hypothesis profiles, and fixtures for every test.

`HYPOTHESIS_PROFILE` names the profile. `ci`, the default, tries the same inputs in every run, so
that a run can be repeated. `fuzz` (`make fuzz`) tries new ones: keep what it finds as `@example`.
"""

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("fuzz", max_examples=2000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Commands start Java often, for a few seconds: to optimize fully costs more than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Set a umask that takes no permission away: modes come from the code under test alone."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def umask_is_unchanged() -> Iterator[None]:
    """Fail a test after which this process has another umask: later tests would inherit it."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    after = os.umask(before)
    assert after == before, f"the umask was changed to {after:03o}"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore the logging setup, which commands that run in this process change."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(False)


SHARING = ("tests/e2e/", "tests/system/", "tests/doctor/", "tests/docs/", "tests/deploy/")
"""Their files have one system, or one expensive thing, for all of their tests."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`: what shares a Spark or a running system is in one process.

    By path, because this pytest does not let xdist add a group to a test's ID.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped, unused-ignore]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/pipeline/"):
                return "spark"
            file = nodeid.partition("::")[0]
            return file if file.startswith(SHARING) else nodeid

    return Scheduling(config, log)
