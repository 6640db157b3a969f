"""Wake phones of a real router: select them on Spark, write the wake, apply it, see what came."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import ActionKind
from heliograph.actions.signing import KEY_FILE
from heliograph.actions.table import read_actions
from heliograph.cli.fleet import command
from heliograph.cli.main import main
from heliograph.pipeline.runner import Pipeline, RunSettings
from heliograph.pipeline.schedule import once
from heliograph.pipeline.tables.tables import Tables
from heliograph.wire.ntf.push import CheckMessagesPush
from heliograph.wire.primitives import b64encode
from tests.actions.support import ROUTER, SIGNER
from tests.ntf.actions.support import a_runner, cap
from tests.ntf.support import SETTINGS, NtfWorld, Phone, a_world
from tests.pipeline.support import (
    BOOT,
    START,
    Scribe,
    end_run,
    pipeline as pipeline_of,
    write_segment,
)
from tests.waiting import until

HOST = "127.0.0.1"
OWN = f"smp_host = '{HOST}'"


class Station:
    """A pipeline over the journal of a router, with the command line."""

    def __init__(self, world: NtfWorld, spark: Any, directory: Path) -> None:
        self.world, self.spark, self.directory = world, spark, directory
        self.tables = directory / "tables"
        self.tables.mkdir()
        (self.tables / KEY_FILE).write_text(f"{b64encode(SIGNER.private)}\n")
        self._segments, self._events = 0, 0

    async def ingest(self) -> None:
        """Take over what the router has journaled since the last time."""
        await until(lambda: self.world.router.outbox.in_flight == 0)
        scribe, journal = Scribe(ROUTER), self.directory / "journal"
        for event in self.world.events:
            scribe(event.kind, event.at - START.timestamp(), **event.columns)
        self._segments += 1
        name = f"{ROUTER}/{BOOT}-{self._segments:08d}"
        write_segment(journal, name, scribe.events[self._events :])
        self._events = len(scribe.events)
        end_run(journal, scribe, self._segments)
        once(pipeline_of(self.spark, Tables(self.tables), journal))

    @contextmanager
    def open_reader(self, options: Any) -> Iterator[Pipeline]:
        """Read the tables as the command does, in the session of the tests."""
        journal = str(self.directory / "journal")
        yield Pipeline(self.spark, Tables(options.dir).pinned(), RunSettings((journal,)))

    def run(self, *words: str) -> int:
        return main(["fleet", words[0], "--dir", str(self.tables), *words[1:]])


def woken(world: NtfWorld, phones: list[Phone]) -> list[int]:
    return [
        sum(isinstance(push, CheckMessagesPush) for push in world.apns.accepted(phone.device))
        for phone in phones
    ]


async def test_a_fleet_is_woken_and_nobody_else(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = replace(SETTINGS, own_domains=(HOST,))
    async with a_world(f"sqlite:///{tmp_path}/ntf.db", tmp_path, settings) as world:
        station = Station(world, spark, tmp_path)
        monkeypatch.setattr(command, "open_reader", station.open_reader)
        chosen = [await world.registered() for _ in range(3)]
        others = [await world.registered() for _ in range(2)]
        for phone in chosen:
            await phone.subscribe(await world.queue())
        await station.ingest()

        # A condition that is none, and more than was meant.
        assert station.run("wake", "--where", "host = 'x'", "--rate", "50/s") == 1
        assert "smp_host       host of an own messaging router" in capsys.readouterr().err
        assert station.run("wake", "--where", "token = 'x'", "--rate", "50/s") == 1
        assert station.run("wake", "--where", OWN, "--rate", "50/s") == 0
        said = capsys.readouterr().out
        assert f"{ROUTER}: 3 of 5 tokens, 50 a second, 1 s" in said
        assert "Nothing was written" in said
        assert read_actions(station.tables) == []
        nobody = ("--where", "smp_host = 'elsewhere'", "--rate", "50/s", "--write")
        assert station.run("wake", *nobody) == 0
        assert (
            f"No token meets the condition. Own messaging routers that are known: {HOST}"
            in capsys.readouterr().out
        )

        assert station.run("wake", "--where", OWN, "--rate", "50/s", "--write") == 0
        [row] = read_actions(station.tables)
        assert row["kind"] == ActionKind.WAKE_FLEET.value
        assert row["subject"] in capsys.readouterr().out
        assert station.run("status") == 0
        assert f"{row['subject']}  " in capsys.readouterr().out
        assert station.run("status", row["subject"]) == 0
        assert "waiting, 0 of 3 tokens woken, 0 accepted" in capsys.readouterr().out

        runner = a_runner(world, station.tables, cap=cap(10))
        await runner.apply_automatic()
        await until(lambda: woken(world, chosen) == [1, 1, 1], 20.0)
        assert woken(world, others) == [0, 0]
        await until(
            lambda: any(
                event.kind == "wake_progressed" and event["status"] == "done"
                for event in world.events
            ),
            10.0,
        )
        await station.ingest()
        assert station.run("status", row["subject"]) == 0
        assert f"{ROUTER}: done, 3 of 3 tokens woken, 3 accepted" in capsys.readouterr().out

        # What is over cannot be controlled any more; the router says so.
        for word in ("pause", "resume", "abort"):
            assert station.run(word, row["subject"]) == 0
        await runner.apply_automatic()
        refused = [event for event in world.events if event.kind == "action_refused"]
        assert len(refused) == 3


def test_errors_are_said_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--dir", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["fleet", "wake", *place, "--where", "true", "--rate", "fast"])
    assert "must be as 2000/s" in capsys.readouterr().err
    for word in ("status", "pause", "resume", "abort"):
        assert main(["fleet", word, *place, "ab" * 16]) == 1
        assert "there is no wake" in capsys.readouterr().err
    assert main(["fleet", "status", *place]) == 0
    assert "There are no wakes." in capsys.readouterr().out
    words = ("--where", "true", "--rate", "1/s", "--valid", "200")
    assert main(["fleet", "wake", *place, *words]) == 1
    assert "at most 168 hours" in capsys.readouterr().err
