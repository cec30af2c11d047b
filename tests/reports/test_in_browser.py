"""The pages in a real browser: nothing is fetched, nothing fails, everything is there to be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbench.reports.leaderboard import write_leaderboard
from kvbench.reports.page import write_report

pytestmark = pytest.mark.browser

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def missing(what: str) -> Any:
    """A skip on a developer's machine; in CI these tests are not optional."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed; pip install playwright")
    executable = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not executable:
        missing("there is no chromium on the path; install it, or name one with CHROMIUM=/path/to/chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield running
        running.close()


class Opened:
    """A page, and what it logged and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.logged: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.logged.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def measure(self, expression: str) -> Any:
        return self.page.evaluate(expression)


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    all_opened: list[Opened] = []

    def open_page(path: Path, **options: Any) -> Opened:
        all_opened.append(Opened(browser, path, **options))
        return all_opened[-1]

    yield open_page
    for one in all_opened:
        one.context.close()


@pytest.fixture(scope="module")
def report(compared_folder: Path) -> Path:
    return write_report([compared_folder], compared_folder)


@pytest.fixture(scope="module")
def board(compared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_leaderboard([compared_folder], tmp_path_factory.mktemp("board"))


@pytest.fixture(params=["report", "board"])
def any_page(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_page_logs_nothing_and_fetches_nothing(opened, any_page, mode):
    one = opened(any_page, color_scheme=mode)
    one.page.wait_for_load_state("networkidle")
    assert one.logged == []
    # The empty icon is a data address, which leaves nothing.
    assert [url for url in one.asked if not url.startswith("data:")] == [any_page.as_uri()]


def test_the_policy_stops_what_slips_in(opened, report, tmp_path):
    tampered = tmp_path / "tampered.html"
    injected = "<img src='https://example.invalid/x.png'><script>document.title = 'owned'</script><p onclick='x()'>"
    tampered.write_text(report.read_text().replace("<main>", f"<main>{injected}"))
    one = opened(tampered)
    assert one.page.title() != "owned"
    assert any("Content Security Policy" in line for line in one.logged)


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("scripts", [True, False])
def test_no_page_is_wider_than_the_window(opened, any_page, width, scripts):
    one = opened(any_page, viewport={"width": width, "height": 800}, java_script_enabled=scripts)
    assert one.measure(OVERFLOW) == 0


def test_hostile_and_endless_names_keep_the_page_in_its_window(opened, make, folder):
    name = "<script>alert(1)</script>" + "x" * 170
    records = [make.check(name, "s.p", "fail", reason=name * 3), *make.speed(name, 1.0), *make.fragmentation(name)]
    path = folder(*records, environment={"cpu": name * 3})
    for write in (write_report, write_leaderboard):
        one = opened(write([path], path / write.__name__), viewport={"width": 390, "height": 800})
        assert one.measure(OVERFLOW) == 0
        assert one.logged == []


def test_tables_and_drawings_are_there_to_be_seen(opened, report):
    one = opened(report)
    for table in ("table.glance", "table.matrix", "table.environment"):
        assert one.page.locator(table).is_visible()
    boxes = one.measure(
        "[...document.querySelectorAll('svg.chart, svg.timeline')].map(s => s.getBoundingClientRect().toJSON())"
    )
    seen = [box for box in boxes if box["width"] > 100 and box["height"] > 50]
    assert len(seen) == len(boxes) >= 9
    assert one.page.locator("svg.timeline rect.ring").count() == 1


def test_no_text_of_a_drawing_is_cut_off(opened, report):
    one = opened(report)
    outside = one.measure(
        """[...document.querySelectorAll('svg.chart text, svg.timeline text')].filter(text => {
            const own = text.getBoundingClientRect(), all = text.ownerSVGElement.getBoundingClientRect();
            return own.left < all.left - 2 || own.right > all.right + 2 || own.bottom > all.bottom + 2;
        }).map(text => text.textContent)"""
    )
    assert outside == []


@pytest.mark.parametrize("width", [390, 1280])
def test_names_leave_room_for_their_figures(opened, make, folder, width):
    name = "./adapters/mine_with_a_long_name.py:Adapter"
    records = [*make.speed(name, 1.0), make.against(name, 1.31, "no difference larger than 12 %")]
    path = folder(*records, *make.fragmentation(name, policy="power-of-two-buddy"))
    one = opened(write_report([path], path), viewport={"width": width, "height": 800})
    pairs = one.measure(
        """[...document.querySelectorAll('svg.chart .axis')].map(label => {
            let figure = label.nextElementSibling;
            while (figure && !figure.matches('.figure')) figure = figure.nextElementSibling;
            return [label.getBoundingClientRect().right, figure.getBoundingClientRect().left];
        })"""
    )
    assert len(pairs) == 6
    assert all(label < figure for label, figure in pairs), pairs


def test_a_long_timeline_opens_where_it_goes_wrong(opened, make, folder):
    late = type(make.timeline)(12, (make.timeline.steps[0],) * 50 + make.timeline.steps[-1:])
    saved = [("x", make.counterexample("s.p", "a", timeline=late))]
    path = folder(make.check("a", "s.p", "fail", reason="wrong", counterexample="x.json"), counterexamples=saved)
    one = opened(write_report([path], path))
    inside = one.measure(
        """(() => {
            const ring = document.querySelector('svg.timeline .ring');
            const view = ring.closest('.scroll').getBoundingClientRect(), box = ring.getBoundingClientRect();
            return view.left <= box.left && box.right <= view.right;
        })()"""
    )
    assert inside


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_stands_out_from_its_ground(opened, report, mode):
    """WCAG 2 AA: 4.5 to 1, for the page's text colours on its paper."""
    one = opened(report, color_scheme=mode)
    ratios = one.measure(
        """(() => {
            const style = getComputedStyle(document.documentElement);
            const light = name => {
                const hex = style.getPropertyValue(name).trim().slice(1);
                const parts = [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16) / 255);
                const [r, g, b] = parts.map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const pairs = ['--ink', '--soft', '--link', '--good', '--bad', '--unsure'].map(name => [name, '--paper']);
            pairs.push(['--good', '--good-wash'], ['--bad', '--bad-wash']);
            pairs.push(['--unsure', '--unsure-wash'], ['--soft', '--raised']);
            return pairs.map(([a, b]) => {
                const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
                return [a, b, (high + 0.05) / (low + 0.05)];
            });
        })()"""
    )
    assert [pair for pair in ratios if pair[2] < 4.5] == []


def column(one: Opened, table: str, place: int) -> list[str]:
    cells = one.page.locator(f"{table} tbody tr > :nth-child({place})")
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_a_leaderboard_sorts_inside_its_tiers(opened, board):
    one = opened(board)
    assert column(one, "table.board", 2)[-1] == "glacier"
    heads = one.page.locator("table.board thead th")
    decode = heads.all_inner_texts().index("decode") + 1
    button = heads.nth(decode - 1).get_by_role("button")
    button.click()
    assert column(one, "table.board", decode) == ["8.4%", "70.0%", "–", "82.6%"]
    assert heads.nth(decode - 1).get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(one, "table.board", decode) == ["70.0%", "8.4%", "–", "82.6%"]


def test_a_table_sorts_by_value_and_not_by_its_digits(opened, report):
    one = opened(report)
    one.page.locator("#speed details summary").first.click()
    one.page.locator("#speed table thead th").nth(4).get_by_role("button").click()
    values = one.measure(
        "[...document.querySelectorAll('#speed tbody td.number')].map(cell => Number(cell.dataset.value))"
    )
    assert values == sorted(values)
    assert len(values) > 10


def test_the_matrix_can_be_filtered(opened, report):
    one = opened(report)
    one.page.get_by_label("Filter: Checks down, adapters across").fill("fork")
    rows = one.page.locator("table.matrix tbody tr:not(.suite)")
    assert [row.inner_text().split("\t")[0] for row in rows.all() if row.is_visible()] == ["fork"]


def test_everything_is_open_when_printed(opened, report, tmp_path):
    one = opened(report)
    one.measure("dispatchEvent(new Event('beforeprint'))")
    assert one.measure("document.querySelectorAll('details:not([open])').length") == 0
    one.measure("dispatchEvent(new Event('afterprint'))")
    assert one.measure("document.querySelectorAll('details:not([open])').length") > 0


def test_links_inside_the_page_lead_somewhere(opened, report):
    one = opened(report)
    missing_targets = one.measure(
        "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).map(a => a.hash)"
    )
    assert missing_targets == []
    assert one.measure("document.querySelectorAll('a[href^=\"#finding-\"]').length") == 2
