"""Hypothesis profiles: `ci` unless HYPOTHESIS_PROFILE names another.

`ci` is random, so that every run looks at new inputs; a failure prints the blob that reproduces it.
`thorough` is for a nightly run.
"""

import os

from hypothesis import HealthCheck, settings

_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("ci", max_examples=50, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("thorough", max_examples=1000, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
