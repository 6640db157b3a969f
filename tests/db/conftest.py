"""Fixtures of the database's tests: everything is tested with both kinds."""

from pathlib import Path

import pytest

from tests.db.postgres import shared_postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "postgresql":
        return shared_postgres().new_url()
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture
def postgres_url() -> str:
    return shared_postgres().new_url()
