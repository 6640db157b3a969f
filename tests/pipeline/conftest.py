"""One Spark session for all tests of the pipeline, which `--dist loadgroup` keeps together."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heliograph.pipeline.spark.session import open_session
from tests.pipeline.support import SPARK_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """To start Spark takes longer than a test: those that use it have time."""
    for item in items:
        uses = item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ())
        if uses and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    session = open_session("local[2]", "heliograph tests", SPARK_SETTINGS)
    yield session
    session.stop()
