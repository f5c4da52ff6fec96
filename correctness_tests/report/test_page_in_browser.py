"""The HTML page as people meet it: in a browser, wide and narrow, light and dark, printed, by keyboard, read aloud."""

from __future__ import annotations

import gzip
import math
import re
from pathlib import Path

import pytest
from browser import Opened, chromium
from report_cases import page as page_of
from report_cases import view

from fixtures.report.history import History, Track
from fixtures.report.page.build import render_page

NASTY = "<script>window.planted=1</script><b>&amp;$x$"
CPU_RUN = Path(__file__).with_name("cpu_run.jsonl.gz")
VIEWS = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A page with every figure; one deployment's name is made of markup."""
    track = Track("single_stream/decode_tok_s", "tok/s", (80.0, 81.0, math.nan, 70.0, 70.5, 70.2), {3: "slower"})
    change = ("one single_stream/decode_tok_s", "run3", "80.5", "70.2", "12.8 % worse")
    history = History(tuple(f"run{n}" for n in range(6)), {"one": (track, track)}, (change,), ())
    page = render_page(page_of(view(["one", NASTY], 12, slower=0.2), history))
    path = tmp_path_factory.mktemp("full") / "page.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory, suite):
    """The page that a run on a machine without a GPU gives: its records, judged without a baseline."""
    folder = tmp_path_factory.mktemp("real") / "run"
    folder.mkdir()
    for line in gzip.decompress(CPU_RUN.read_bytes()).decode().splitlines():
        name = re.search(r'"id":"([^"]+)"', line)[1]
        (folder / f"{name}.start.json").write_text(line, encoding="utf-8")
    path = folder / "page.html"
    _, text = suite(
        "-m",
        "perf",
        "--box=cpu",
        f"--html={path}",
        f"--from-results={folder}",
        f"--history={folder.parent}",
        f"--baselines={folder / 'none'}",
    )
    assert path.exists(), text
    return path


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("which", ["full", "real"])
def test_the_page_is_sound(which, width, scheme, browser, request):
    with Opened(browser, request.getfixturevalue(which), width, scheme) as opened:
        assert opened.said == []
        assert opened.asked == []
        assert opened.bad_plots() == []
        assert opened.overflow() <= 0
        assert opened.violations() == []
        opened.open_all()
        assert opened.overflow() <= 0
        assert opened.violations() == []


@pytest.mark.parametrize("which", ["full", "real"])
@pytest.mark.parametrize("unfolded", [False, True])
def test_the_keyboard_reaches_everything(which, unfolded, browser, request):
    with Opened(browser, request.getfixturevalue(which), 400) as opened:
        if unfolded:
            opened.open_all()
        assert opened.unreached() == []


def test_the_skip_link_is_first_and_leads_to_the_verdicts(full, browser):
    with Opened(browser, full) as opened:
        opened.page.keyboard.press("Tab")
        assert opened.page.evaluate("() => document.activeElement.className") == "skip"
        opened.page.keyboard.press("Enter")
        assert opened.page.evaluate("() => document.activeElement.id") == "main"


def test_every_figure_has_its_data_and_a_name(full, browser):
    with Opened(browser, full) as opened:
        figures = opened.page.locator("figure")
        assert figures.count() == 7  # changes, two deployments, steps, all-reduces, acceptance, history
        for number in range(figures.count()):
            figure = figures.nth(number)
            assert figure.locator("details table tbody tr").count() > 0
            plot = figure.locator("svg.plot")
            label = plot.get_attribute("aria-labelledby").split()
            texts = [opened.page.evaluate("id => document.getElementById(id).textContent", name) for name in label]
            assert len(texts) == 2
            assert all(texts)


def test_names_are_text_whatever_is_in_them(full, browser):
    with Opened(browser, full) as opened:
        assert opened.page.evaluate("() => window.planted") is None
        assert NASTY in opened.page.locator("h3").all_inner_texts()
        drawn = opened.page.evaluate("() => [...document.querySelectorAll('svg text')].map(e => e.textContent)")
        assert any(NASTY in text for text in drawn)


def test_the_printed_page_keeps_its_figures(full, browser):
    with Opened(browser, full) as opened:
        opened.page.emulate_media(media="print")
        assert opened.bad_plots() == []
        assert not opened.page.locator("nav").is_visible()


def test_dark_and_light_are_different_and_both_readable(full, browser):
    colours = set()
    for scheme in ("light", "dark"):
        with Opened(browser, full, scheme=scheme) as opened:
            colours.add(opened.page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
            ink = opened.page.evaluate("() => getComputedStyle(document.querySelector('svg text')).fill")
            assert ink not in colours
    assert len(colours) == 2


def planted(path: Path, old: str, new: str, folder: Path, *, without_policy: bool = False) -> Path:
    """The page with one fault."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    text = text.replace(old, new, 1)
    if without_policy:
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    changed = folder / "planted.html"
    changed.write_text(text, encoding="utf-8")
    return changed


def test_planted_faults_are_found(full, browser, tmp_path):
    script = planted(
        full, "</main>", "<script>throw new Error('planted')</script></main>", tmp_path, without_policy=True
    )
    with Opened(browser, script) as opened:
        assert any("planted" in text for text in opened.said)

    blocked = planted(full, "</main>", "<script>window.planted = 1</script></main>", tmp_path)
    with Opened(browser, blocked) as opened:
        assert opened.said  # the page's own policy lets no script run, and says so
        assert opened.page.evaluate("() => window.planted") is None

    image = '<img alt="" src="http://127.0.0.1:9/planted.png"></main>'
    with Opened(browser, planted(full, "</main>", image, tmp_path, without_policy=True)) as opened:
        assert opened.asked == ["http://127.0.0.1:9/planted.png"]

    wide = planted(full, "</main>", '<div style="width: 900px">wide</div></main>', tmp_path)
    with Opened(browser, wide, 400) as opened:
        assert opened.overflow() > 0

    button = planted(full, "</main>", '<button tabindex="-1">planted</button></main>', tmp_path)
    with Opened(browser, button) as opened:
        assert opened.unreached() == ["BUTTON planted"]

    text = full.read_text(encoding="utf-8")
    plot = re.search(r"<svg .*?</svg>", text, re.DOTALL)[0]
    empty = plot[: plot.index(">") + 1] + "</svg>"
    with Opened(browser, planted(full, plot, empty, tmp_path)) as opened:
        assert opened.bad_plots() == ["figure 0: not drawn"]

    unnamed = planted(full, plot, re.sub(r' aria-labelledby="[^"]*"|<title.*?</title>', "", plot), tmp_path)
    with Opened(browser, unnamed) as opened:
        assert any(each.startswith("svg-img-alt") for each in opened.violations())

    pale = planted(full, "--muted: #57606a", "--muted: #c8c8c8", tmp_path)
    with Opened(browser, pale) as opened:
        assert any(each.startswith("color-contrast") for each in opened.violations())
