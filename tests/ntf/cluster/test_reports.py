"""What a worker reports to its supervisor."""

import asyncio
import threading
from pathlib import Path

import pytest

from heliograph.ntf.cluster.reports import report
from heliograph.ntf.reference.statslog import NtfStatsLog
from heliograph.runtime.files import write_file
from heliograph.runtime.reference import statslog
from tests.ntf.cluster.support import a_cluster


async def test_the_event_loop_runs_while_statistics_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk must not delay notifications."""
    began, end = threading.Event(), threading.Event()

    def write_slowly(path: Path, data: bytes, mode: int) -> None:
        began.set()
        assert end.wait(10.0)
        write_file(path, data, mode)

    monkeypatch.setattr(statslog, "write_file", write_slowly)
    async with a_cluster(tmp_path, 1) as cluster:
        router = cluster.first.router
        stats = NtfStatsLog(router.stats, tmp_path / "stats.json")
        reporting = asyncio.create_task(report(router, stats))
        await asyncio.to_thread(began.wait, 10.0)
        end.set()
        assert (await reporting)["processes"] == 1
    assert (tmp_path / "stats.json").exists()
