"""The documentation as a site: it builds without a complaint, its links lead somewhere, and it
needs nothing from elsewhere."""

import os
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from heliograph.ntf.lifecycle import Rejected, TokenEvent, TokenTransition, step
from heliograph.wire.ntf.tokens import InvalidReason, TokenStatus
from tests.web.browser import CHROMIUM, tab

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVENTS: dict[str, tuple[TokenEvent, ...]] = {
    "accepted": (TokenTransition.VERIFICATION_ACCEPTED,),
    "code": (TokenTransition.VERIFIED,),
    "rejected": (Rejected(InvalidReason.BAD),),
    "TRPL": (TokenTransition.REPLACED,),
    "TNEW again, TRPL": (TokenTransition.REGISTERED_AGAIN, TokenTransition.REPLACED),
}


class Page(HTMLParser):
    """The links, resources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        for name in ("id", "name"):
            if name in values:
                self.anchors.add(values[name])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "srcset"):
            if name in values:
                self.resources.append(values[name])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "shortcut icon"):
            self.resources.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        file: Page(file.read_text()) for file in target.rglob("*.html") if file.name != "404.html"
    }


def test_every_page_is_there(site: dict[Path, Page]) -> None:
    names = {file.stem for file in site}
    assert {page.stem for page in DOCS.glob("*.md")} | {"cli", "api"} <= names
    assert not any(file.with_suffix(".py").exists() for file in site)


def test_links_lead_somewhere(site: dict[Path, Page]) -> None:
    checked = 0
    for file, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.exists(), (file.name, link)
            if parts.fragment and target in site:
                assert parts.fragment in site[target].anchors, (file.name, link)
            checked += 1
    assert checked > 100


def test_nothing_comes_from_elsewhere(site: dict[Path, Page]) -> None:
    for file, page in site.items():
        for resource in page.resources:
            parts = urlsplit(resource)
            assert not parts.scheme, (file.name, resource)
            assert not parts.netloc, (file.name, resource)
            assert (file.parent / unquote(parts.path)).exists(), (file.name, resource)


# Pictures.


def test_pictures_are_current_and_well_formed() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["main"]()
    assert "system.svg" in drawn
    for name, text in drawn.items():
        assert (DOCS / name).read_text() == text, "run docs/pictures.py"
        root = ET.fromstring(text)
        assert root.find("{http://www.w3.org/2000/svg}title") is not None
        assert "prefers-color-scheme: dark" in text
        assert "href" not in text


def test_pictures_are_used() -> None:
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for picture in DOCS.glob("*.svg"):
        assert f"({picture.name})" in pages
    assert "(docs/system.svg)" in (ROOT / "README.md").read_text()


def test_picture_of_a_token_is_the_machine() -> None:
    """Every arrow is a step, and every step to another state is an arrow."""
    picture = runpy.run_path(str(DOCS / "pictures.py"))["TOKEN"]
    drawn = {
        (arrow.source, event, arrow.target)
        for arrow in picture.arrows
        if arrow.source != "start"
        for event in EVENTS[arrow.label]
    }
    states = {box.name for box in picture.boxes} - {"start"}
    taken = set()
    for status in TokenStatus:
        for event in {event for events in EVENTS.values() for event in events}:
            source, target = _name(status), _name(step(status, event))
            if source in states and source != target:
                taken.add((source, event, target))
    assert drawn == taken


def _name(status: TokenStatus) -> str:
    return "INVALID" if status.is_invalid else status.value


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
async def test_search_works_from_a_disk(site: dict[Path, Page]) -> None:
    home = next(file for file in site if file.name == "index.html")
    async with tab() as page:
        await page.call("Page.navigate", url=f"{home.as_uri()}?q=quarantine")
        await page.until("document.querySelectorAll('.md-search-result__item').length > 0")
        await page.call(
            "Emulation.setDeviceMetricsOverride",
            width=360, height=740, deviceScaleFactor=1, mobile=True,
        )  # fmt: skip
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
async def test_diagrams_are_drawn_without_a_network(site: dict[Path, Page]) -> None:
    device = next(file for file in site if file.name == "device.html")
    async with tab() as page:
        await page.call(
            "Network.emulateNetworkConditions",
            offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip
        await page.call("Page.navigate", url=device.as_uri())
        await page.until("document.querySelectorAll('div.mermaid').length >= 7")
        assert await page.evaluate("document.querySelectorAll('pre.mermaid').length") == 0
