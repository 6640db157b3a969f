"""The command line, mostly without Spark; `test_kill` and `test_cluster` run the rest."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from heliograph.cli.main import main
from heliograph.cli.pipeline.ingesting import EXIT_CODES
from heliograph.cli.pipeline.opening import (
    log_directory,
    objective_settings,
    outcome_settings,
)
from heliograph.pipeline.jobs.outcomes import OutcomeSettings
from heliograph.pipeline.jobs.reach import MAX_AGE
from heliograph.pipeline.objectives.budget import Objectives, WindowCount, judge
from heliograph.pipeline.objectives.objective import Objective, parse_objective
from heliograph.pipeline.source import list_segments
from heliograph.pipeline.spark import submit
from heliograph.pipeline.spark.failures import FAILURES, advice, cause
from heliograph.pipeline.status import status
from heliograph.pipeline.tables.offsets import Offsets, write_account
from heliograph.pipeline.tables.storage import Storage
from heliograph.pipeline.tables.tables import list_files, open_tables
from heliograph.runtime.errors import StartError
from tests.pipeline.objectives.test_describing import stored
from tests.pipeline.support import Scribe, pipeline, write_journal
from tests.pipeline.tables.test_tables import put


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "--help"])
    said = capsys.readouterr().out
    commands = (
        "run",
        "once",
        "report",
        "status",
        "backfill",
        "compact",
        "requeue",
        "retire",
        "submit",
    )
    for command in commands:
        assert f"\n    {command} " in said
    assert "heliograph pipeline once --journal" in said


def test_status_before_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scribe = Scribe()
    scribe("router_stopped")
    journal = write_journal(tmp_path / "journal", scribe)
    words = ["pipeline", "status", "--dir", str(tmp_path / "tables"), "--journal", str(journal)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "nothing was ingested yet" in said
    assert "waiting         1 segments" in said


def test_status_lists_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gap of 20 sequence numbers, and one of the 25 events that a `journal_lost` counts."""
    routers = {
        name: {"part": name, "boots": {"1000": {"last_at": 1_000_000}}} for name in ("ntf", "smp")
    }
    seen = {"ntf/1000": [(1, 5), (26, 40)], "smp/1000": [(1, 9), (35, 36)]}
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda _: Offsets(seen=seen, routers=routers))
    write_account(tmp_path, {"at": 0.0, "verdict": "gaps", "outcomes": {"accepted": 3}})
    assert main(["pipeline", "status", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "gap             20 events of ntf (ntf) since 1970-01-01" in said
    assert "gap             25 events of smp (smp) since 1970-01-01" in said
    assert "verdict         gaps" in said


def test_status_after_a_segment_was_quarantined(tmp_path: Path) -> None:
    """The last account was made before, and its verdict is no longer that of now."""
    write_account(tmp_path, {"at": 0.0, "verdict": "complete", "outcomes": {}})
    for quarantined, expected in ((0, "complete"), (1, "gaps")):
        with open_tables(tmp_path) as tables:
            counts = {"quarantined": quarantined}
            tables.commit("events", offsets=lambda _, counts=counts: Offsets(counts=counts))  # type: ignore[misc]
        assert status(tmp_path, (), 0.0).verdict == expected


def test_no_report_of_tables_that_lack_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would say that all is complete."""
    with open_tables(tmp_path) as tables:
        for _ in range(2):
            tables.commit("events", put(tables), offsets=lambda offsets: offsets)
    DeltaTable(tmp_path / "events").restore(1)
    assert main(["pipeline", "report", "--dir", str(tmp_path)]) == 1
    assert "/events after version 2: restore version 2" in capsys.readouterr().err


def test_a_report_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of tables which this user may only read is not one."""
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda offsets: offsets)
    (tmp_path / "report").touch()
    assert main(["pipeline", "report", "--dir", str(tmp_path)]) == 1
    said = f"{tmp_path}/report cannot be written: name another folder with --out\n"
    assert capsys.readouterr().err.endswith(said)


def test_status_without_spark_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tables(tmp_path) as tables:
        facts = {"last_at": 1_000_000, "stopped_at": 1_000_000}
        routers = {"r": {"part": "ntf", "boots": {"1": facts}}}
        tables.commit("events", offsets=lambda _: Offsets(counts={"events": 12}, routers=routers))
    write_account(tmp_path, {"at": 5.0, "outcomes": {"shown": 7}})
    without_spark(monkeypatch)
    assert main(["pipeline", "status", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "events          12" in said
    assert "shown 7" in said
    assert "nothing is unaccounted for" in said


def test_status_of_an_old_account_is_lagging(tmp_path: Path) -> None:
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda offsets: offsets)
    write_account(tmp_path, {"verdict": "complete", "heads": {"at": 1000.0}})
    assert status(tmp_path, (), 1000.0 + MAX_AGE).verdict == "complete"
    old = status(tmp_path, (), 1001.0 + MAX_AGE)
    assert (old.verdict, [lag.what for lag in old.lags]) == ("lagging", ["all journals"])
    document = {"verdict": "lagging", "heads": {"at": 1000.0}, "lags": [asdict(old.lags[0])]}
    write_account(tmp_path, document)
    assert status(tmp_path, (), 1001.0 + MAX_AGE).lags == old.lags


def test_objectives_are_shown_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tables(tmp_path) as tables:
        tables.commit("events", offsets=lambda offsets: offsets)
    write_account(tmp_path, {"at": 5.0, "outcomes": {}, "objectives": stored()})
    without_spark(monkeypatch)
    assert main(["pipeline", "objectives", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "99% accepted in 10s    all          missed           60.000%" in said
    assert "not complete: 3d, 30d: events are known of 2 days only" in said
    assert main(["pipeline", "status", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "99% accepted in 10s: missed, 60.000%, -3900.0% of the error budget left" in said
    few = (judge(Objective(999_000), None, {"30d": WindowCount(5, 0)}, {}),)
    objectives = asdict(Objectives(86_400.0, few, {}))
    write_account(tmp_path, {"at": 5.0, "outcomes": {}, "objectives": objectives})
    assert main(["pipeline", "status", "--dir", str(tmp_path)]) == 0
    assert "99.9% accepted: not enough data, 100.000%\n" in capsys.readouterr().out


def test_objectives_are_those_given_or_those_of_the_last_account(tmp_path: Path) -> None:
    def asked(*given: str) -> list[str]:
        objectives = [parse_objective(text) for text in given] or None
        found = objective_settings(Namespace(dir=tmp_path, objective=objectives))
        return [item.text for item in found]

    assert asked() == ["99% accepted in 10s", "99.9% accepted"]
    assert asked("95% accepted", "95.0% accepted") == ["95% accepted"]
    write_account(tmp_path, {"asked_objectives": ["98% accepted in 60s"]})
    assert asked() == ["98% accepted in 60s"]


def test_a_wrong_objective_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "once", "--journal", "j", "--objective", "99% accepted in 7s"])
    assert "the time must be one of 1, 2, 5" in capsys.readouterr().err


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("pyspark", "heliograph.pipeline")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)


def test_a_missing_spark_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    words = ["pipeline", "once", "--dir", str(tmp_path / "t"), "--journal", str(tmp_path)]
    assert main(words) == 1
    assert "pip install 'heliograph[pipeline]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["backfill", "--from", "2026-01-05", "--to", "2026-01-05"],
        ["compact"],
        ["expire"],
        ["requeue", "--journal", "."],
        ["retire", "ntf"],
    ],
)
def test_a_wrong_directory_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """What works on tables needs some: a mistyped --dir would be an empty success."""
    assert main(["pipeline", *command, "--dir", str(tmp_path / "typo")]) == 1
    assert "run `heliograph pipeline once`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_second_writer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_tables(tmp_path):
        words = ["pipeline", "once", "--dir", str(tmp_path), "--journal", str(tmp_path)]
        assert main(words) == 1
    assert "another pipeline is at work" in capsys.readouterr().err


def test_days_are_days(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "backfill", "--from", "monday", "--to", "2026-01-01"])
    assert "is not a day such as" in capsys.readouterr().err


def test_submit_prints_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "submit", "--print", "--dir", str(tmp_path / "pack")]
    words += ["--master", "spark://head:7077", "--", "once", "--dir", "D", "--journal", "J"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "spark-submit --master spark://head:7077 --deploy-mode client" in said
    assert said.rstrip().endswith("pipeline once --dir D --journal J --master spark://head:7077")
    assert not list(tmp_path.iterdir())


def test_submit_passes_on_what_is_given_before_the_dashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "submit", "--print", "--dir", str(tmp_path), "--memory", "5g"]
    words += ["--conf", "a.b=c", "--master", "yarn", "--", "once", "--dir", "D", "--journal", "J"]
    assert main(words) == 0
    said = capsys.readouterr().out.rstrip()
    assert said.endswith("--master yarn --memory 5g --conf a.b=c")


def test_a_url_makes_no_folder_of_that_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "status", "--dir", "s4a://b/t"]) == 1
    assert "name a directory, or a URL" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file:/tables", "s3:/bucket/tables"])
def test_a_url_with_one_slash_makes_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as failed:
        main(["pipeline", "once", "--dir", place, "--journal", "journal"])
    assert failed.value.code == 2
    assert f"{place} is neither a URL" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_report_uses_the_settings_of_the_last_account(tmp_path: Path) -> None:
    options = Namespace(dir=tmp_path)
    assert outcome_settings(options) == OutcomeSettings()
    write_account(tmp_path, {"settings": asdict(OutcomeSettings(push_ttl=7 * 86_400.0))})
    assert outcome_settings(options) == OutcomeSettings(push_ttl=7 * 86_400.0)
    assert outcome_settings(Namespace(dir=tmp_path, push_ttl=1.0)).push_ttl == 86_400.0


def test_a_report_without_spark_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    assert main(["pipeline", "report", "--dir", str(tmp_path)]) == 1
    assert "pip install 'heliograph[pipeline]'" in capsys.readouterr().err


def test_causes_are_named_with_what_helps() -> None:
    text = cause(PySparkException("\n  java.io.IOException: No space left on device\n at x"))
    assert text == "java.io.IOException: No space left on device"
    assert "make room" in str(advice(text))
    assert advice("something else") is None


class JavaFailure:
    """What py4j shows of an exception."""

    def __init__(self, text: str, cause: "JavaFailure | None" = None) -> None:
        self._text = text
        self._cause = cause

    def toString(self) -> str:
        return self._text

    def getCause(self) -> "JavaFailure | None":
        return self._cause


def test_the_innermost_cause_is_named_in_one_line() -> None:
    inner = JavaFailure(
        "java.nio.file.AccessDeniedException: s3a://b/t: Permission denied\n\tat org.x.Y(Z.java:1)"
    )
    exc = PySparkException("An error occurred while calling o66.getFileSystem")
    exc.java_exception = JavaFailure("SparkException: Job aborted", inner)  # type: ignore[attr-defined]
    text = cause(exc)
    assert text == "java.nio.file.AccessDeniedException: s3a://b/t: Permission denied"
    assert "move" not in str(advice(text))
    assert advice(text) == "let this user read and write there"
    circle = JavaFailure("a")
    circle._cause = circle
    exc.java_exception = circle  # type: ignore[attr-defined]
    assert cause(exc) == "a"


def test_a_url_of_an_unknown_kind_names_the_package(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(FAILURES) as raised:
        list_segments("s4a://bucket/journal", spark)
    assert 'No FileSystem for scheme "s4a"' in cause(raised.value)
    assert "spark.jars.packages" in str(advice(cause(raised.value)))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_java_process_that_is_killed(tmp_path: Path) -> None:
    """It is one line with what to do, and not what py4j says about its sockets."""
    scribe = Scribe()
    scribe("router_stopped")
    journal = write_journal(tmp_path / "journal", scribe)
    log = tmp_path / "tables" / "spark.log"
    words = ["pipeline", "once", "--dir", str(log.parent), "--journal", str(journal)]
    running = subprocess.Popen(
        [sys.executable, "-m", "heliograph", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (log.exists() and "Setting Spark log level" in log.read_text()):
            assert running.poll() is None
            time.sleep(0.05)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
        os.kill(int(children.split()[0]), signal.SIGKILL)
        _, said = running.communicate(timeout=200)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 1
    lines = [line for line in said.splitlines() if line.startswith("heliograph pipeline once: ")]
    assert "the Java process of Spark ended, killed or out of memory" in lines[0]
    assert str(log) in lines[1]
    assert "Traceback" not in said


def test_permission_denied_is_no_reason_to_move_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with open_tables(tmp_path):
        pass
    monkeypatch.setattr(Storage, "files", denied)
    assert main(["pipeline", "status", "--dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    words = f"heliograph pipeline status: {tmp_path}: cannot be read: Permission denied: run "
    assert said.startswith(words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_tables_that_cannot_be_written_have_their_log_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tables = tmp_path / "tables"
    tables.mkdir()
    options = Namespace(dir=tables)
    assert log_directory(options) == tables
    tables.chmod(0o500)
    assert log_directory(options).is_relative_to(tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    command = [sys.executable, "-m", "heliograph", "pipeline", "once", "--memory", "300m"]
    command += ["--dir", str(tmp_path / "t"), "--journal", str(tmp_path / "journal")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("heliograph pipeline once: Spark does not start on local[*]: ")
    assert first.endswith(": give it at least --memory 512m")
    assert second == f"heliograph pipeline once: {tmp_path}/t/spark.log has what Spark said"


def test_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "--help"])
    said = capsys.readouterr().out
    assert "exit codes:" in said
    for verdict, code in EXIT_CODES.items():
        assert f"\n  {code}    " in said, verdict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["everything"], "everything: after -- comes one of run, once,"),
        (["submit", "--", "once"], "submit: after -- comes one of"),
        (["once"], "the following arguments are required: --journal"),
        (["once", "--journal", "J", "--bogus"], "unrecognized arguments: --bogus"),
        (["backfill", "--from", "monday", "--to", "2026-01-01"], "is not a day such as"),
        (["expire", "--keep-events", "-1"], "-1 is not a number of days"),
        (["once", "--journal", "J", "--grace", "nan"], "nan is not a number of seconds"),
        (["report", "--grace", "inf"], "inf is not a number of seconds"),
        (["run", "--journal", "J", "--account", "nan"], "nan is not a number of seconds"),
        (["run", "--journal", "J", "--every=-5"], "-5 is not a number of seconds"),
    ],
)
def test_submit_refuses_what_the_cluster_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    words = ["pipeline", "submit", "--print", "--dir", str(tmp_path / "pack"), "--", *arguments]
    try:
        code = main(words)
    except SystemExit as exc:
        code = int(str(exc.code))
    assert code in (1, 2)
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out
    assert not list(tmp_path.iterdir())


def test_submit_packs_what_it_names(tmp_path: Path) -> None:
    words = submit.command("spark://head:7077", ["once"], tmp_path / "pack")
    submit.pack(tmp_path / "pack")
    code = words[words.index("--py-files") + 1]
    with zipfile.ZipFile(code) as archive:
        assert "heliograph/cli/main.py" in archive.namelist()
    assert Path(words[-3]).read_text().startswith("import sys\n")
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="must be where files can be written"):
        submit.pack(tmp_path / "file" / "pack")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_expire_is_a_command_and_spark_is_quiet(spark: Any, tmp_path: Path) -> None:
    scribe = Scribe()
    scribe("router_stopped")
    with open_tables(tmp_path / "tables") as tables:
        made = pipeline(spark, tables, write_journal(tmp_path / "journal", scribe))
        assert made.ingester.ingest_batch() is not None
    command = [sys.executable, "-m", "heliograph", "pipeline", "expire", "--keep-events", "0"]
    command += ["--dir", str(tmp_path / "tables"), "--master", "local[1]", "--memory", "1g"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 files count no more, 0 removed\n"
    assert (tmp_path / "tables" / "spark.log").read_text()
    assert not list_files(tmp_path / "tables", "events")
    assert list_files(tmp_path / "tables", "counts")


def test_a_damaged_log_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "events" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("rubbish")
    assert main(["pipeline", "status", "--dir", str(tmp_path)]) == 1
    assert "move the directory away" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nan", "-1", "101", "many"])
def test_a_cap_is_a_percentage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "decide", "--anomalies", "--max-percent", text])
    assert f"{text} is not a number from 0 to 100" in capsys.readouterr().err
