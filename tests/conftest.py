"""Hypothesis profiles: `ci` unless HYPOTHESIS_PROFILE names another.

`ci` is random, so that every run looks at new inputs; a failure prints the blob that reproduces it.
`thorough` is for a nightly run.
"""

import os
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`: the pipeline's tests in one process, since each would start Spark.

    By path, because this pytest does not let xdist add a group to a test's ID.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/pipeline/") else nodeid

    return Scheduling(config, log)
