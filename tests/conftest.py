"""Hypothesis profiles: `ci` unless HYPOTHESIS_PROFILE names another.

`ci` is random, so that every run looks at new inputs; a failure prints the blob that reproduces it.
`thorough` is for a nightly run.
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
settings.register_profile("ci", max_examples=50, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("thorough", max_examples=1000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that run in this process set up its logs; the next test shall not notice."""
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
