"""The page in a real browser, in every state an operator may see it in.

The routers behind it are made up, so that each state comes at once: tests/system/test_up.py has
real ones. Screenshots go to `HELIOGRAPH_ARTEFACTS` (build/artefacts).
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from heliograph.system.layout import Layout
from heliograph.web.alerts import Installation
from heliograph.web.machine import machine
from heliograph.web.metrics.sampler import Sampler
from heliograph.web.monitor import Monitor
from heliograph.web.push_test import PushTest
from heliograph.web.server import serve
from tests.web.browser import CHROMIUM, Tab, no_axe_findings, tab

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.timeout(180),
]

MINE = "ab" * 16
NTF_ADDRESS = f"ntf://{'A' * 43}=@ntf.example.com/?vapid={'B' * 87}"
INSTALLATION = Installation("push.example.com", "host7", "/srv/heliograph", {})
ACCEPTED_IN_10_MS, ACCEPTED_IN_100_MS = 30, 12


class FakeRouter:
    """Serves metrics of a router whose counters grow with each request, as under load."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.is_silent = False
        self.ready = (200, "ok\n")
        self.failing = False
        self.step = 0
        self.failed = 0
        self.accepted = 0

    async def metrics(self, _: web.Request) -> web.Response:
        if self.is_silent:
            await asyncio.sleep(60)
        self.step += 1
        if self.failing:
            self.failed += 9
        else:
            self.accepted += ACCEPTED_IN_10_MS + ACCEPTED_IN_100_MS + self.step % 7
        return web.Response(text=self.ntf_metrics() if self.part == "ntf" else self.smp_metrics())

    async def readyz(self, _: web.Request) -> web.Response:
        status, text = self.ready
        return web.Response(text=text, status=status)

    def ntf_metrics(self) -> str:
        quick = int(self.accepted * 0.6)
        return f"""\
# TYPE simplex_ntf_notifications_received counter
simplex_ntf_notifications_received {self.step * 45}
# TYPE heliograph_ntf_tokens gauge
heliograph_ntf_tokens{{status="ACTIVE"}} 1204
heliograph_ntf_tokens{{status="CONFIRMED"}} 17
# TYPE heliograph_ntf_subscriptions gauge
heliograph_ntf_subscriptions{{status="ACTIVE"}} 48211
# TYPE heliograph_ntf_pending_pushes gauge
heliograph_ntf_pending_pushes{{kind="message"}} {self.failed}
# TYPE heliograph_ntf_oldest_pending_push_seconds gauge
heliograph_ntf_oldest_pending_push_seconds {1 if self.failed else 0}
# TYPE heliograph_ntf_provider_accepted_total counter
heliograph_ntf_provider_accepted_total{{provider="apns_prod"}} {self.accepted}
# TYPE heliograph_ntf_provider_failed_total counter
heliograph_ntf_provider_failed_total{{provider="apns_prod"}} {self.failed}
# TYPE heliograph_ntf_push_failures_total counter
heliograph_ntf_push_failures_total{{reason="ServiceUnavailable"}} {self.failed}
# TYPE heliograph_ntf_pushes_in_flight gauge
heliograph_ntf_pushes_in_flight{{provider="apns_prod"}} 3
heliograph_ntf_pushes_in_flight{{provider="webpush"}} 0
# TYPE heliograph_ntf_clients gauge
heliograph_ntf_clients 311
# TYPE heliograph_ntf_push_latency_seconds histogram
heliograph_ntf_push_latency_seconds_bucket{{le="0.01"}} {quick}
heliograph_ntf_push_latency_seconds_bucket{{le="0.1"}} {self.accepted}
heliograph_ntf_push_latency_seconds_bucket{{le="+Inf"}} {self.accepted}
"""

    def smp_metrics(self) -> str:
        return f"""\
# TYPE simplex_smp_queues_total1 gauge
simplex_smp_queues_total1 50122
# TYPE simplex_smp_clients_total gauge
simplex_smp_clients_total 902
# TYPE simplex_smp_messages_sent counter
simplex_smp_messages_sent {self.step * 61}
# TYPE simplex_smp_messages_received counter
simplex_smp_messages_received {self.step * 58}
"""


class FakeSources:
    """A system whose processes, disks and pipeline a test changes."""

    def __init__(self) -> None:
        self.free = 1 << 38
        self.pipeline_state = "complete"
        self.started = time.time() - 3600

    def processes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "state": "running",
                "since": self.started,
                "restarts": 0,
                "address": "",
                "ended": "",
                "cpu_percent": 3.5,
                "memory": 90 << 20,
                "open_files": 40,
            }
            for name in ("smp", "ntf", "page", "pipeline")
        ]

    def machine(self) -> dict[str, Any]:
        return machine()

    def disks(self) -> list[dict[str, Any]]:
        return [{"places": ["system", "smp", "ntf"], "total": 1 << 39, "free": self.free}]

    def pipeline(self) -> dict[str, Any]:
        if self.pipeline_state == "off":
            empty = dict.fromkeys(("lag_seconds", "events", "quarantined", "unaccounted"))
            nothing: dict[str, Any] = {"outcomes": {}, "objectives_until": None, "objectives": []}
            return {"state": "off", **empty, **nothing}
        return {
            "state": "complete",
            "lag_seconds": 1.5,
            "events": 512_000,
            "quarantined": 0,
            "unaccounted": 0,
            "outcomes": {"shown": 20_100, "accepted": 3_020, "coalesced": 411, "expired": 3},
            "objectives_until": time.time(),
            "objectives": [
                {
                    "objective": "99% accepted in 10s",
                    "provider": "all",
                    "state": "met",
                    "percent": 99.73,
                    "budget_left": 0.73,
                    "alerts": [],
                }
            ],
        }

    def history(self, hours: int) -> dict[str, Any]:
        hour = int(time.time()) // 3600 * 3600
        points = [
            {
                "at": hour - back * 3600,
                "notifications": 100 + back,
                "accepted": 95,
                "rejected": 5,
                "p50_ms": 12.0,
                "p99_ms": 80.0,
            }
            for back in range(30, 0, -1)
            if back % 9
        ]
        return {"hours": hours, "points": points, "outcomes": {"accepted": 95}}

    def addresses(self) -> dict[str, str | None]:
        return {"ntf": NTF_ADDRESS, "smp": None}

    def search(self, wanted: str) -> dict[str, Any]:
        if wanted != MINE:
            summary = "Nothing is known by this ID."
            return {"kind": "nothing", "summary": summary, "facts": [], "events": []}
        steps = [
            ("smp", "notification created", 0.0),
            ("ntf", "nmsg stored", 0.02),
            ("ntf", "push accepted, provider apns_prod", 0.05),
            ("device", "device shown", 0.9),
        ]
        return {
            "kind": "notification",
            "summary": "It was shown on the phone.",
            "facts": [{"name": "from first to last event", "value": "0.900 s"}],
            "events": [{"at": 1e9 + at, "part": part, "what": what} for part, what, at in steps],
        }


class World:
    """Fake routers behind a real monitor, server and browser."""

    def __init__(self, page: Tab, url: str, routers: dict[str, FakeRouter], sources: FakeSources):
        self.page, self.url, self.sources = page, url, sources
        self.ntf, self.smp = routers["ntf"], routers["smp"]

    async def open(self, width: int = 1280, scheme: str = "light") -> None:
        await self.resize(width, scheme)
        await self.page.call("Page.navigate", url=self.url)
        await self.page.until("window.uPlot && document.querySelectorAll('.uplot').length === 4")

    async def resize(self, width: int, scheme: str) -> None:
        await self.page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.page.call("Emulation.setEmulatedMedia", features=features)

    async def state(self, text: str) -> None:
        await self.page.until(f"document.getElementById('state').textContent.startsWith('{text}')")

    async def problem(self, text: str) -> None:
        await self.page.until(f"document.getElementById('problems').textContent.includes('{text}')")

    async def save(self, name: str) -> None:
        await self.page.save(f"page-{name}")


@asynccontextmanager
async def fake_router(part: str) -> AsyncIterator[tuple[FakeRouter, str]]:
    router = FakeRouter(part)
    app = web.Application()
    app.router.add_get("/metrics", router.metrics)
    app.router.add_get("/readyz", router.readyz)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield router, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    sources = FakeSources()
    async with fake_router("ntf") as (ntf, ntf_url), fake_router("smp") as (smp, smp_url):
        samplers = {"ntf": Sampler(ntf_url), "smp": Sampler(smp_url)}
        monitor = Monitor(samplers, sources, INSTALLATION)
        push_test = PushTest(Layout(tmp_path))
        async with serve("127.0.0.1", 0, None, monitor, push_test) as url, tab() as page:
            yield World(page, url, {"ntf": ntf, "smp": smp}, sources)


async def test_healthy(world: World) -> None:
    page = world.page
    await world.open()
    await world.state("Everything works")
    await page.until("document.getElementById('k-p50').textContent.endsWith('ms')")
    await page.until("document.querySelectorAll('#processes tbody tr').length === 4")
    labels = "[...document.querySelectorAll('.u-legend .u-label')].map((e) => e.textContent)"
    assert {"accepted", "failed", "p50", "p90", "p99"} <= set(await page.evaluate(labels))
    assert await page.evaluate("document.querySelectorAll('#checks .ok').length") == 8
    await page.until("document.getElementById('version').textContent.length > 2")
    assert await page.evaluate("document.title") == "Heliograph push.example.com"
    assert await page.evaluate("document.getElementById('installation').textContent") == (
        "push.example.com"
    )
    verdict = await page.evaluate("document.getElementById('verdict').textContent")
    assert re.fullmatch(r"Complete: .* accounted for, up to \d\d:\d\d:\d\d\.", verdict)
    await page.until("charts.throughput.data[0].length >= 3")
    await _charts_show_the_range(page)
    await world.save("healthy")
    await _search_by_keyboard(page)
    await world.save("search")
    for width in (1280, 320):
        await world.resize(width, "dark")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await world.save(f"dark-{width}")
    assert page.complaints == []


async def _charts_show_the_range(page: Tab) -> None:
    """A few points are not stretched over the range; the values under the cursor are shown."""
    plot = "charts.throughput.plot"
    scale = f"{plot}.scales.x"
    assert await page.evaluate(f"{scale}.max - {scale}.min") == pytest.approx(600, abs=1)
    await page.evaluate(f"{plot}.setCursor({{left: {plot}.over.clientWidth - 2, top: 9}})")
    tip = await page.evaluate("document.querySelector('#chart-throughput .tip').innerText")
    assert "accepted" in tip
    assert await page.evaluate("document.querySelector('#chart-latency .tip').hidden")
    await page.evaluate(f"{plot}.setCursor({{left: -10, top: -10}})")


async def _search_by_keyboard(page: Tab) -> None:
    await page.key("/", 191)
    await page.until("document.activeElement.id === 'wanted'")
    await page.call("Input.insertText", text="<b>nobody</b>")
    await page.key("Enter", 13, "\r")
    await page.until("document.getElementById('found').textContent.startsWith('Nothing')")
    await page.evaluate("document.getElementById('wanted').value = ''")
    await page.call("Input.insertText", text=MINE)
    await page.key("Enter", 13, "\r")
    await page.until("document.querySelectorAll('#found .timeline circle').length === 4")
    assert await page.evaluate("document.querySelectorAll('#found .events li').length") == 4


async def test_history_has_gaps(world: World) -> None:
    await world.open()
    await world.page.evaluate("document.querySelector('[data-hours=\"168\"]').click()")
    await world.page.until("charts.throughput.data[0].length === 168")
    values = await world.page.evaluate("charts.throughput.data[2].slice(-30)")
    assert values.count(None) >= 3
    assert 95 in values
    assert await world.page.evaluate("charts.latency.data[2].includes(80)")


async def test_a_router_that_hangs_and_comes_back(world: World) -> None:
    await world.open()
    await world.state("Everything works")
    world.ntf.is_silent = True
    await world.state("Not working")
    await world.problem("The notification router does not answer")
    await world.page.until("document.querySelectorAll('.stale[data-router=ntf]').length > 3")
    assert (
        await world.page.evaluate("document.querySelectorAll('.stale[data-router=smp]').length")
        == 0
    )
    unknown = "[...document.querySelectorAll('#checks .unknown b')].map((e) => e.textContent)"
    assert await world.page.evaluate(unknown) == [
        "Push providers",
        "Pending pushes",
        "Certificates",
    ], "nothing is called good that is not known"
    await world.save("router-stopped")
    world.ntf.is_silent = False
    await world.state("Everything works")
    await world.page.until("document.querySelectorAll('.stale').length === 0")
    assert await world.page.evaluate("charts.throughput.data[1].includes(null)"), "a gap is drawn"


async def test_a_provider_that_fails_and_recovers(world: World) -> None:
    await world.open()
    await world.state("Everything works")
    world.ntf.failing = True
    await world.problem("The push provider apns_prod")
    await world.page.until("document.querySelector('#failures').textContent.includes('Service')")
    await world.save("provider-failing")
    world.ntf.failing = False
    await world.state("Everything works")


async def test_a_full_disk(world: World) -> None:
    await world.open()
    await world.state("Everything works")
    world.sources.free = 10 << 20
    world.ntf.ready = (503, "not ready: the store fails: database or disk is full\n")
    await world.problem("Only 10 MB of disk space is free")
    await world.problem("the store fails")
    await world.save("disk-full")


async def test_no_pipeline(world: World) -> None:
    world.sources.pipeline_state = "off"
    await world.open()
    await world.state("Everything works")
    await world.page.until("document.getElementById('verdict').textContent.startsWith('Off')")
    assert "lag" not in await world.page.evaluate(
        "document.getElementById('h-pipeline').parentElement.textContent"
    )


async def test_an_idle_system_says_what_to_do(world: World) -> None:
    world.ntf.ntf_metrics = lambda: "heliograph_ntf_clients 0\n"  # type: ignore[method-assign]
    await world.open()
    await world.state("Working, with warnings")
    await world.problem("No push provider is configured")
    await world.page.until("document.getElementById('tokens').textContent.includes('heliograph')")
    await world.save("idle")


async def test_a_page_without_its_server(world: World) -> None:
    await world.open()
    await world.state("Everything works")
    await world.page.call(
        "Network.emulateNetworkConditions",
        offline=True, latency=0, downloadThroughput=0, uploadThroughput=0,
    )  # fmt: skip
    await world.state("This page has lost its server")
    assert await world.page.evaluate("document.body.classList.contains('disconnected')")
    assert await world.page.evaluate("document.getElementById('checks').children.length") == 0
    await world.save("disconnected")
    await world.page.call(
        "Network.emulateNetworkConditions",
        offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1,
    )  # fmt: skip
    await world.state("Everything works")


async def test_pairing(world: World) -> None:
    """A phone scans the addresses; a router that does not run is named."""
    page = world.page
    await world.resize(320, "dark")
    await page.call("Page.navigate", url=f"{world.url}pair")
    await page.until("document.querySelector('[data-part=ntf] img')?.naturalWidth > 0")
    assert await page.evaluate("document.querySelector('.address').textContent") == NTF_ADDRESS
    assert "heliograph up" in await page.evaluate(
        "document.querySelector('[data-part=smp] .code').textContent"
    )
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    await no_axe_findings(page)
    await world.save("pair")
    assert page.complaints == []


async def test_login(world: World, tmp_path: Path) -> None:
    push_test = PushTest(Layout(tmp_path))
    monitor = Monitor({"ntf": Sampler(None), "smp": Sampler(None)}, world.sources, INSTALLATION)
    async with serve("127.0.0.1", 0, "the-token", monitor, push_test) as url:
        page = world.page
        await page.call("Page.navigate", url=url)
        await page.until("document.activeElement?.id === 'token'")
        await no_axe_findings(page)
        await page.call("Input.insertText", text="wrong")
        await page.key("Enter", 13, "\r")
        await page.until("document.querySelector('[role=alert]:not([hidden])') !== null")
        await world.save("login")
        await page.evaluate("document.getElementById('token').focus()")
        await page.call("Input.insertText", text="the-token")
        await page.key("Enter", 13, "\r")
        await page.until("document.getElementById('state') !== null")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessible(world: World, scheme: str) -> None:
    await world.open(scheme=scheme)
    await world.state("Everything works")
    await world.page.until("document.querySelectorAll('#processes tbody tr').length === 4")
    world.sources.free = 10 << 20
    await world.problem("disk space")
    await no_axe_findings(world.page)
