"""Recorded sessions with the reference's routers, replayed."""

from collections import Counter
from pathlib import Path

import pytest

from tests.vectors.files import connections, read_lines, vector_files
from tests.vectors.replay import Replay


def replay(path: Path, connection: str) -> Counter[str]:
    events = [line for line in read_lines(path) if "layer" in line]
    return Replay(events, connection).run()


@pytest.mark.parametrize(
    ("path", "connection"),
    [pytest.param(path, connection, id=name) for name, path, connection in connections()],
)
def test_replay(path: Path, connection: str) -> None:
    counts = replay(path, connection)
    if counts["raw_block"]:
        assert counts["handshake"] in (1, 2, 3)  # garbled, sound, or of a service
        assert counts["raw_block"] >= counts["handshake"]
    else:
        assert counts["apns_request"] or counts["note"] or counts["relayed"]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in vector_files()])
def test_every_line_is_run(path: Path) -> None:
    lines = read_lines(path)
    assert lines
    assert all(("kind" in line) != ("layer" in line) for line in lines)


def test_the_recordings_cover_everything() -> None:
    """So that a recording, or a check, that is skipped by mistake is noticed."""
    total: Counter[str] = Counter()
    for _, path, connection in connections():
        total += replay(path, connection)
    assert total >= Counter(
        tls=43,
        handshake=96,
        signed_key=38,
        identity=43,
        raw_block=840,
        decrypted=55,
        block_content=728,
        transmission=737,
        authorizations=311,
        requests=289,
        failures=72,
        malformed=36,
        replies=389,
        key=68,
        secret=16,
        nmsg_decrypted=6,
        msg_decrypted=6,
        push_decrypted=23,
        apns_request=23,
        link_data=3,
        forwarded=6,
        **{"forwarded replies": 6, "relayed": 7, "relayed replies": 6},
    )
