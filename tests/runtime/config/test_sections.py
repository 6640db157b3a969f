from pathlib import Path

import pytest

from heliograph.runtime.config.sections import Clients, JournalOptions, Listen, Store
from heliograph.transport.server import Limits


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", "sqlite:////srv/smp/smp.db"),
        ("sqlite:///other.db", "sqlite:////srv/smp/other.db"),
        ("sqlite:////var/other.db", "sqlite:////var/other.db"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_store_urls(url: str, expected: str) -> None:
    store = Store(url)
    assert list(store.check()) == []
    assert store.url_in(Path("/srv/smp"), "smp.db") == expected


@pytest.mark.parametrize("url", ["mysql://h", "sqlite:///", "sqlite:x", "smp.db"])
def test_not_store_urls(url: str) -> None:
    [(key, _)] = Store(url).check()
    assert key == "url"


def test_listen() -> None:
    listen = Listen("smp.example.com", 1)
    assert [str(host) for host in listen.hosts] == ["smp.example.com"]
    assert listen.bind_address is None
    assert list(listen.check()) == []
    assert [key for key, _ in Listen("a b").check()] == ["host"]


def test_limits() -> None:
    assert Clients(1, 30, 3, 4, 5, 6).limits() == Limits(
        max_connections=1,
        handshake_timeout=4,
        write_timeout=5,
        inactive_after=30,
        check_interval=3,
        max_unanswered=6,
    )
    never = Clients(inactive_after_seconds=0).limits()
    assert (never.inactive_after, never.check_interval) == (None, 10)
    assert Clients(inactive_after_seconds=1).limits().check_interval == 1


def test_journal() -> None:
    assert JournalOptions().path_in(Path("/srv")) is None
    assert JournalOptions("j").path_in(Path("/srv")) == Path("/srv/j")
    assert JournalOptions("/j").path_in(Path("/srv")) == Path("/j")


def test_journal_urls() -> None:
    here = Path("/srv")
    for url in (
        "file:///j/with%20space",
        "file:/j/with%20space",
        "file://localhost/j/with%20space",
    ):
        journal = JournalOptions(url)
        assert journal.path_in(here) == Path("/j/with space")
        assert list(journal.check()) == []
    assert list(JournalOptions("journal").check()) == []
    for url in ("s3a://bucket/journal", "hdfs://host/journal", "file://host/journal", "file:j"):
        [(key, problem)] = JournalOptions(url).check()
        assert key == "path"
        assert "must be" in problem
