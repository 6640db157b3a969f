import json
import shutil
import time
import urllib.request
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from heliograph.journal.heads import Head, write_head
from heliograph.pipeline.metrics import PipelineCollector, served
from heliograph.pipeline.tables.offsets import Offsets, write_account
from heliograph.pipeline.tables.tables import open_tables
from heliograph.runtime.errors import StartError
from tests.deploy.promql import used
from tests.pipeline.objectives.test_describing import stored
from tests.pipeline.support import Scribe, write_journal

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "dashboard.json"


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_what_is_missing_is_exported(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe("router_stopped")
    journal = write_journal(tmp_path / "journal", scribe)
    facts = {"part": "ntf", "boots": {"1000": {"last_at": 1_000_000}}}
    offsets = Offsets(
        seen={"old/1000": [(1, 5), (11, 20)]},
        counts={"events": 15, "quarantined": 2},
        routers={"old": facts},
    )
    with open_tables(tmp_path / "tables") as tables:
        tables.commit("events", offsets=lambda _: offsets)
    account = {"at": 7, "verdict": "gaps", "outcomes": {"unaccounted": 3}, "objectives": stored()}
    write_account(tmp_path / "tables", account)
    collector = PipelineCollector(tmp_path / "tables", [str(journal)])
    collector.batch_seconds = 0.5
    with served(collector, "127.0.0.1:0") as url:
        found = scrape(url)
        with pytest.raises(OSError, match="404"):
            scrape(url.replace("metrics", "secrets"))
    assert found["heliograph_pipeline_events"] == 15
    assert found["heliograph_pipeline_missing_events"] == 5
    assert found["heliograph_pipeline_quarantined"] == 2
    assert found["heliograph_pipeline_unaccounted_notifications"] == 3
    assert found["heliograph_pipeline_segments_waiting"] == 1
    assert found["heliograph_pipeline_lag_seconds"] >= 0
    assert found['heliograph_pipeline_router_lag_seconds{router="ntf"}'] >= 0
    assert found['heliograph_pipeline_router_lag_seconds{router="old"}'] == 0
    assert found['heliograph_pipeline_router_missing_events{router="old"}'] == 5
    assert found["heliograph_pipeline_account_timestamp_seconds"] == 7
    assert found["heliograph_pipeline_committed_timestamp_seconds"] > 7
    assert found["heliograph_pipeline_batch_seconds"] == 0.5
    assert found['heliograph_pipeline_verdict{verdict="gaps"}'] == 1
    assert found['heliograph_pipeline_verdict{verdict="complete"}'] == 0
    prefix, labels = (
        "heliograph_pipeline_objective",
        'objective="99% accepted in 10s",provider="all"',
    )
    assert found[f"{prefix}s_timestamp_seconds"] == 86_400
    assert found[f'{prefix}_state{{{labels},state="missed"}}'] == 1
    assert found[f'{prefix}_state{{{labels},state="met"}}'] == 0
    assert found[f"{prefix}_budget_left_ratio{{{labels}}}"] == pytest.approx(-39)
    assert found[f'{prefix}_burn_rate{{{labels},window="5m"}}'] == pytest.approx(40)
    assert not any(name.startswith(f"{prefix}_burn_rate") and "fcm" in name for name in found)
    names = {name.partition("{")[0] for name in found}
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in panels for target in panel.get("targets", ())]
    named = set().union(*(used(expression).metrics for expression in expressions))
    of_pipeline = {name for name in named if name.startswith("heliograph_pipeline_")}
    assert of_pipeline
    assert of_pipeline <= names


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_said(tmp_path: Path, address: str) -> None:
    with (
        pytest.raises(StartError, match="name HOST:PORT"),
        served(PipelineCollector(tmp_path, []), address),
    ):
        pass


def test_a_silent_router_is_exported(tmp_path: Path) -> None:
    """Though the last account was complete, and no segment came since."""
    scribe = Scribe()
    scribe("router_started")
    journal = write_journal(tmp_path / "journal", scribe)
    facts = {"part": "ntf", "boots": {"1000": {"last_at": 1_000_000}}}
    offsets = Offsets(
        seen={"ntf/1000": [(1, 1)]}, segments={"ntf/1000": [(1, 1)]}, routers={"ntf": facts}
    )
    with open_tables(tmp_path / "tables") as tables:
        tables.commit("events", offsets=lambda _: offsets)
    write_account(tmp_path / "tables", {"at": 7, "verdict": "complete", "outcomes": {}})

    def verdict() -> tuple[float, float, float]:
        with served(PipelineCollector(tmp_path / "tables", [str(journal)]), "127.0.0.1:0") as url:
            found = scrape(url)
        names = ('verdict{verdict="complete"}', 'verdict{verdict="lagging"}', "lagging")
        complete, lagging, count = (found[f"heliograph_pipeline_{name}"] for name in names)
        return complete, lagging, count

    assert verdict() == (1, 0, 0)
    write_head(journal, Head("ntf", 1000, "ntf", 1, 1, 1_000_000))
    assert verdict() == (0, 1, 1)
    write_head(journal, Head("ntf", 1000, "ntf", 1, 1, int(time.time() * 1e6)))
    assert verdict() == (1, 0, 0)
    shutil.rmtree(journal)
    journal.mkdir()
    assert verdict() == (0, 1, 2)
