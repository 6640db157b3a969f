"""Which segments are readable, damaged, or not to be read by this user."""

import os
from pathlib import Path

import pytest

from heliograph.pipeline.ingesting.reading import sort_out
from heliograph.pipeline.source import list_segments
from tests.pipeline.support import Scribe, write_segment


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_this_user_may_not_read_is_not_damaged(tmp_path: Path) -> None:
    ntf = Scribe()
    ntf.nmsg(1, 0.0)
    good, bad, hidden, gone = (
        write_segment(tmp_path, f"ntf/1000-{number:08}", ntf.events) for number in range(1, 5)
    )
    bad.write_bytes(good.read_bytes()[:50])
    hidden.chmod(0)
    found = list_segments(str(tmp_path), None)
    gone.unlink()
    readable, broken, denied = sort_out(found)
    assert [item.url for item in readable] == [str(good)]
    assert [*broken] == ["ntf/1000-00000002.parquet"]
    assert [item.url for item in denied] == [str(hidden)]
