"""Every metric and label of the rules and the dashboard is one that the routers really export."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from tests.deploy.promql import used

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
GRAFANA = ROOT / "deploy" / "grafana"
RUNBOOK = ROOT / "docs" / "runbook.md"
TIMEOUT = 40.0
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from heliograph.cli.main import main; sys.exit(main())",
]
OF_PROMETHEUS = frozenset({"up"})
LABELS_OF_PROMETHEUS = frozenset({"job", "instance"})
LATE = ("heliograph_ntf_oldest_pending_push_seconds", "heliograph_smp_notifications_pending")
"""Counted from time to time, not at once."""


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GRAFANA / "dashboard.json").read_text())["panels"]
    return found


RECORDED = {rule["record"] for rule in rules() if "record" in rule}
EXPRESSIONS = [rule["expr"] for rule in rules()] + [
    target["expr"] for panel in panels() for target in panel.get("targets", ())
]


def exported(kind: str, directory: Path) -> dict[str, set[str]]:
    """Names of samples with their labels, from a router's /metrics."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")
    }
    environment[f"HELIOGRAPH_{kind.upper()}_METRICS_PORT"] = "0"
    environment[f"HELIOGRAPH_{kind.upper()}_JOURNAL_PATH"] = "journal"
    environment["HELIOGRAPH_NTF_ACTIONS_TABLE"] = "tables"
    initial = [*COMMAND, kind, "init", "--dir", str(directory), "--port", "0"]
    subprocess.run(initial, check=True, stdout=subprocess.DEVNULL, env=environment)
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [*COMMAND, kind, "start", "--dir", str(directory)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline().startswith("ready "), (directory / "log").read_text()
            reported = re.search(r"http://[^/]+/metrics", (directory / "log").read_text())
            assert reported is not None
            return _scrape_all(reported[0])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT)


def _scrape_all(url: str) -> dict[str, set[str]]:
    deadline = time.monotonic() + TIMEOUT
    while True:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        if any(f"\n{name} " in text for name in LATE) or time.monotonic() > deadline:
            return _names(text)
        time.sleep(0.1)


def _names(text: str) -> dict[str, set[str]]:
    """Names as they are written, which a library's parser would change; with their labels."""
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found.update({f"{name}{suffix}": set() for suffix in suffixes})
    for name, labels in re.findall(r"^([a-z_]+)(\{.*\})? \S+$", text, re.MULTILINE):
        assert name in found, name
        found[name].update(re.findall(r'(\w+)="', labels))
    return found


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    directory = tmp_path_factory.mktemp("routers")
    found: dict[str, set[str]] = {}
    for kind in ("smp", "ntf"):
        for name, labels in exported(kind, directory / kind).items():
            found.setdefault(name, set()).update(labels)
    return found


@pytest.mark.timeout(120)
def test_metrics_exist(metrics: dict[str, set[str]]) -> None:
    assert len(EXPRESSIONS) > 40
    named = set().union(*(used(expression).metrics for expression in EXPRESSIONS))
    # Those of the pipeline are checked in tests/pipeline/test_metrics.py.
    named = {name for name in named if not name.startswith("heliograph_pipeline_")}
    missing = named - metrics.keys() - RECORDED - OF_PROMETHEUS
    assert not missing, missing
    # Metrics whose absence would make this test pass for no reason.
    assert {
        "heliograph_ntf_pending_pushes",
        "simplex_smp_messages_sent",
        "process_open_fds",
    } <= named


@pytest.mark.timeout(120)
def test_metrics_of_the_runbook_exist(metrics: dict[str, set[str]]) -> None:
    pattern = r"\b((?:heliograph|simplex)_(?:ntf|smp)_[a-z_]*[a-z])\b(?!_?\*)"
    named = set(re.findall(pattern, RUNBOOK.read_text()))
    assert len(named) > 10
    assert not named - metrics.keys()


@pytest.mark.timeout(120)
def test_labels_exist(metrics: dict[str, set[str]]) -> None:
    """Where a metric has samples, and so labels, at once."""
    for expression in EXPRESSIONS:
        found = used(expression)
        if any(name.startswith("heliograph_pipeline_") for name in found.metrics):
            continue
        known = set().union(*(metrics.get(name, set()) for name in found.metrics))
        if any(metrics.get(name) == set() for name in found.metrics):
            known |= {"reason", "kind", "status", "provider", "finding"}
        assert found.labels | found.matchers.keys() <= known | LABELS_OF_PROMETHEUS, expression


def test_statuses_exist() -> None:
    statuses = {status.value for status in TokenStatus} | {
        state.value for state in SubscriptionState
    }
    for expression in EXPRESSIONS:
        assert used(expression).matchers.get("status", set()) <= statuses


def test_alerts_say_what_to_do() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    }
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 10
    for rule in alerts:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbook.md"
        assert anchor in anchors, anchor
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_rules_are_well_formed() -> None:
    known = {"alert", "record", "expr", "for", "labels", "annotations"}
    for rule in rules():
        assert rule.keys() <= known
        assert len(rule.keys() & {"alert", "record"}) == 1
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        summary = rule.get("annotations", {}).get("summary", "")
        assert summary.count("{{") == summary.count("}}")
        labels = set(re.findall(r"\$labels\.(\w+)", summary))
        # What an aggregation drops is unknown.
        kept = used(rule["expr"]).labels
        if re.search(r"\b(sum|min|max|avg)\b", rule["expr"]):
            assert labels <= kept, rule
        else:
            assert labels <= kept | LABELS_OF_PROMETHEUS, rule


def test_dashboard_is_current() -> None:
    written = runpy.run_path(str(GRAFANA / "dashboard.py"))["main"]()
    assert (GRAFANA / "dashboard.json").read_text() == written, "run deploy/grafana/dashboard.py"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
