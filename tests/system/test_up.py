"""`heliograph up` as an operator uses it: real processes, a real page, a real browser.

With `HELIOGRAPH_PICTURE_SECONDS` the pipeline runs too, and phones send messages that long before
the screenshot, build/artefacts/system.png: docs/page.png is such a one, of some minutes.
"""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from heliograph.system import state
from heliograph.system.layout import Layout
from heliograph.system.state import PartState
from heliograph.web.push_test import PushTest
from tests.waiting import block_until
from tests.web.browser import CHROMIUM, tab

PICTURE_SECONDS = float(os.environ.get("HELIOGRAPH_PICTURE_SECONDS", "0"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + PICTURE_SECONDS)]


def heliograph(*arguments: str | Path, timeout: float = 90) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "heliograph", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


class System:
    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)

    @property
    def status(self) -> state.SystemStatus:
        found = state.read(self.layout.state)
        assert found is not None
        return found

    @property
    def url(self) -> str:
        return self.status.parts["page"].address

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    root = tmp_path_factory.mktemp("system") / "home"
    options = () if PICTURE_SECONDS else ("--no-pipeline",)
    done = heliograph("up", "--dir", root, *options, "--any-port", "--detach")
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:" in done.stdout
    try:
        yield System(root)
    finally:
        done = heliograph("down", "--dir", root)
    assert (done.returncode, done.stdout) == (0, "Stopped.\n")
    assert heliograph("down", "--dir", root).stdout.startswith("Nothing runs")


def test_a_state_that_cannot_be_read(system: System) -> None:
    """It is not taken for a system that does not run."""
    kept = system.layout.state.read_bytes()
    system.layout.state.write_text("{")
    try:
        done = heliograph("status", "--dir", system.layout.root)
    finally:
        system.layout.state.write_bytes(kept)
    assert done.returncode == 1
    assert "a system runs in" in done.stderr
    assert "heliograph down" in done.stderr


def test_status(system: System) -> None:
    done = heliograph("status", "--dir", system.layout.root)
    assert done.returncode == 0, done.stdout
    for name in ("apns", "webpush", "smp", "ntf", "page"):
        assert any(line.startswith(f"{name} ") for line in done.stdout.splitlines())
    assert done.stdout.count(" running ") == 5


def test_push_test(system: System) -> None:
    def test_push(**headers: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{system.url}api/test-push", method="POST", headers=headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            test_push(**headers)
        assert caught.value.code == 401
        assert "page.token" in json.load(caught.value)["error"]
    result = test_push(Authorization=f"Bearer {system.layout.token.read_text().strip()}")
    assert (result["ok"], result["problem"]) == (True, None), result
    assert [step for step in result["steps"] if step["problem"] is not None] == []


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
async def test_the_page_in_a_browser(system: System) -> None:
    """A router that hangs is seen and seen to recover; the test push works by keyboard."""
    pid = system.status.parts["ntf"].pid
    assert pid is not None
    works = "document.getElementById('state').textContent === 'Everything works'"
    async with tab() as page:
        await page.call(
            "Emulation.setDeviceMetricsOverride",
            width=1280, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        await page.call("Page.navigate", url=system.url)
        await page.until(f"document.getElementById('state') !== null && {works}")
        await _send_messages(system, PICTURE_SECONDS)
        await page.until(works)
        await page.save("system")
        os.kill(pid, signal.SIGSTOP)
        try:
            await page.until("document.getElementById('health').className === 'critical'")
            await page.until("document.querySelector('[data-router=ntf].stale') !== null")
        finally:
            os.kill(pid, signal.SIGCONT)
        await page.until(works)
        await page.evaluate("document.getElementById('test-token').focus()")
        await page.call("Input.insertText", text=system.layout.token.read_text().strip())
        await page.key("Enter", 13, "\r")
        await page.until("document.querySelector('#tested .good') !== null")
        assert page.complaints == []


async def _send_messages(system: System, seconds: float) -> None:
    """Send messages to phones, in waves, each through both routers and a push provider."""
    if not seconds:
        return
    smp, ntf = (system.status.parts[name].address for name in ("smp", "ntf"))
    control = system.status.parts["apns"].address.partition(" control ")[2].split()[0]
    for name in ("alice", "bob"):
        phone = system.layout.root.parent / name
        assert heliograph("device", "init", "--dir", phone, "--name", name, "--smp", smp,
                          "--ntf", ntf).returncode == 0  # fmt: skip
        assert heliograph("device", "register", "--dir", phone, "--apns", control).returncode == 0
    probing = PushTest(system.layout)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while (elapsed := loop.time() - begin) < seconds:
        wave = 1 + round(3 * (1 + math.sin(elapsed / 40)))
        results = await asyncio.gather(*(probing.run() for _ in range(wave)))
        assert all(result["ok"] for result in results)
        await asyncio.sleep(0.5)


def test_the_status_of_a_router_that_hangs(system: System) -> None:
    pid = system.status.parts["ntf"].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        done = heliograph("status", "--dir", system.layout.root)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert done.stdout.count("not ready: it does not answer") == 1
    assert heliograph("status", "--dir", system.layout.root).returncode == 0


def test_a_second_instance(system: System) -> None:
    for option in ((), ("--detach",)):
        done = heliograph("up", "--dir", system.layout.root, *option)
        assert done.returncode == 1
        assert "already" in done.stderr


def test_a_host_for_a_system_that_exists(system: System) -> None:
    done = heliograph("up", "--dir", system.layout.root, "--host", "localhost")
    assert done.returncode == 1
    assert "--host is for a new system" in done.stderr


def test_logs(system: System) -> None:
    done = heliograph("logs", "--dir", system.layout.root, "ntf")
    assert done.returncode == 0
    assert "ready" in done.stdout
    assert all(line.startswith("ntf ") for line in done.stdout.splitlines())
    done = heliograph("logs", "--dir", system.layout.root, "nobody")
    assert (done.returncode, "there is ntf" in done.stderr or "ntf" in done.stderr) == (1, True)


def test_addresses_for_phones(system: System) -> None:
    """They are those that the routers print, with the key that an app subscribes with."""
    found = system.get("api/addresses")
    assert found["smp"] == system.status.parts["smp"].address
    done = heliograph("ntf", "address", "--dir", system.layout.root, "--vapid")
    assert found["ntf"] == done.stdout.strip()
    with urllib.request.urlopen(f"{system.url}api/qr?router=ntf", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("image/svg+xml")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(f"{system.url}api/qr?router=nobody", timeout=10)


def test_the_router_works(system: System) -> None:
    done = heliograph("ntf", "probe", "--dir", system.layout.ntf)
    assert done.returncode == 0, done.stdout


def test_a_killed_router_comes_back_under_its_address(system: System) -> None:
    before = system.status.parts["ntf"]
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    after = block_until(
        lambda: (
            system.status.parts["ntf"].pid != before.pid
            and system.status.parts["ntf"].state is PartState.RUNNING
            and system.status.parts["ntf"]
        )
    )
    assert after.address == before.address
    assert after.restarts >= 1


def test_live(system: System) -> None:
    now = block_until(lambda: (found := system.get("api/live"))["state"] == "ok" and found)
    assert {item["name"] for item in now["processes"]} == {"apns", "webpush", "smp", "ntf", "page"}
    assert {provider["name"] for provider in now["providers"]} >= {"apns_test"}
    assert now["pipeline"]["state"] == "off"
    series = block_until(lambda: (found := system.get("api/series?range=10m"))["at"] and found)
    assert len(series["at"]) == len(series["accepted"])


def test_bad_questions(system: System) -> None:
    for path in (
        *("api/history?hours=0", "api/history?hours=x", "api/search", "api/search?id="),
        *("api/series?range=1m", "api/series?since=x"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            system.get(path)
        assert caught.value.code == 400
        assert "must be" in json.load(caught.value)["error"]


def test_search_for_nothing(system: System) -> None:
    for wanted in ("x", "0" * 32, "AAAA"):
        assert system.get(f"api/search?id={wanted}")["kind"] == "nothing"


def test_search_for_a_token(system: System, tmp_path: Path) -> None:
    parts = system.status.parts
    control = parts["apns"].address.split(" control ")[1].split()[0]
    phone = ("--dir", tmp_path / "phone")
    done = heliograph(
        *("device", "init", *phone, "--name", "A"),
        *("--smp", parts["smp"].address, "--ntf", parts["ntf"].address),
    )
    assert done.returncode == 0, done.stderr
    done = heliograph("device", "register", *phone, "--apns", control)
    assert done.returncode == 0, done.stderr
    status = json.loads(heliograph("device", "status", *phone, "--json").stdout)
    found = system.get(f"api/search?id={status['token id']}")
    assert found["kind"] == "token"
    facts = {fact["name"]: fact["value"] for fact in found["facts"]}
    assert (facts["status"], facts["provider"]) == ("ACTIVE", "apns_test")
    assert "No push is pending" in found["summary"]


def test_the_api_is_as_documented(system: System) -> None:
    schema = schemathesis.openapi.from_url(f"{system.url}api/openapi.json")
    schema.config.update(base_url=system.url.rstrip("/"))
    asked = 0
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]

        @given(case=operation.as_strategy())
        @settings(
            max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate()

        ask()
    assert asked > 40


def test_a_broken_configuration(tmp_path: Path) -> None:
    root = tmp_path / "home"
    up = ("up", "--dir", root, "--no-pipeline", "--any-port", "--detach")
    root.mkdir()
    (root / "config.toml").write_text("[page]\nprot = 1\n")
    done = heliograph(*up)
    assert (done.returncode, "prot" in done.stderr) == (1, True)


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        done = heliograph("up", "--dir", place, "--detach")
        assert done.returncode == 1
        assert done.stderr.startswith(f"heliograph up: {tmp_path / 'file'}")


def test_a_taken_port(system: System, tmp_path: Path) -> None:
    root = tmp_path / "home"
    taken = system.status.parts["ntf"].address.rsplit(":", 1)[1]
    root.mkdir()
    environment = {**os.environ, "HELIOGRAPH_NTF_LISTEN_PORT": taken}
    done = subprocess.run(
        [sys.executable, "-m", "heliograph", "up", "--dir", str(root), "--no-pipeline",
         "--any-port", "--detach"],
        capture_output=True, text=True, timeout=90, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ntf did not start" in done.stderr
    assert f"port {taken} of 127.0.0.1 is taken by another program" in done.stderr
    assert heliograph("status", "--dir", root).returncode == 1
