"""APNs and FCM are tested with both HTTP clients."""

import pytest

from heliograph.push import connecting
from heliograph.push.h2_client import H2Connections


@pytest.fixture(params=["wreq", "h2"])
def http_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the providers use one client or the other."""
    client: str = request.param
    if client == "h2":
        monkeypatch.setattr(connecting, "Connections", H2Connections)
    return client
