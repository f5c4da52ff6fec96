"""A page in headless Chromium, and what can be wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",  # containers run as root, where Chromium's sandbox does not start
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_INTERACTIVE = "a[href], button, input, select, textarea, summary, [tabindex='0'], [onclick]"
_NUMBER = f"""() => {{
  const shown = [...document.querySelectorAll("{_INTERACTIVE}")].filter(e => e.checkVisibility());
  shown.forEach((element, number) => element.dataset.number = number);
  return shown.map(e => `${{e.tagName}} ${{(e.getAttribute("aria-label") || e.textContent).trim().slice(0, 60)}}`);
}}"""
_PLOTS = """() => [...document.querySelectorAll("figure")].map(figure => {
  const plot = figure.querySelector("svg.plot");
  if (!plot) return "no plot";
  const size = plot.getBoundingClientRect();
  const marks = [...plot.querySelectorAll("path, use")].filter(mark => {
    const box = mark.getBoundingClientRect();
    return mark.closest("defs") === null && box.width + box.height > 0 &&
      box.right > size.left && box.left < size.right && box.bottom > size.top && box.top < size.bottom;
  });
  return size.width > 200 && size.height > 40 && marks.length > 2 && plot.querySelector("text") ? "" : "not drawn";
}).map((fault, number) => fault && `figure ${number}: ${fault}`).filter(Boolean)"""


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser. Skips the test, with the reason, where it or its driver is not installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install --group report_tests"
    )
    pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install --group report_tests")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on PATH: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """One page in a context of its own; collects what it says on the console and asks of the network."""

    def __init__(self, browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_load_state("networkidle")
        self.asked = [url for url in self.asked if not url.startswith(("file:", "data:"))]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def open_all(self) -> None:
        """Unfold everything."""
        self.page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")

    def bad_plots(self) -> list[str]:
        """Figures whose picture is missing, empty or outside its frame."""
        return self.page.evaluate(_PLOTS)

    def unreached(self) -> list[str]:
        """Visible interactive elements that the Tab key does not reach."""
        names = self.page.evaluate(_NUMBER)
        self.page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0); }")
        reached = set()
        for _ in range(len(names) + 5):
            self.page.keyboard.press("Tab")
            reached.add(self.page.evaluate("() => document.activeElement.dataset.number"))
        return [name for number, name in enumerate(names) if str(number) not in reached]

    def violations(self) -> list[str]:
        """What axe-core finds serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
