"""The page in a real browser: it loads nothing, runs nothing of anybody else's, and can be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import Page, plan

from gpustate.cli import reports

NASTY = "<script>window.hit=1</script><img src=http://127.0.0.1:9/x onerror=window.hit=1>"
VISIBLE = "[...document.querySelectorAll('details.group')].filter(g => !g.hidden).length"
#: Contrast of text with what is behind it, by WCAG 2.2, for every text of the page.
CONTRASTS = """(() => {
  const part = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const read = text => text.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = read(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
    return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll('body *:not(svg *):not(script)')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(read(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(e.className + ' ' + e.tagName + ' ' + ratio.toFixed(2));
  }
  return [...new Set(found)];
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder: Path = tmp_path_factory.mktemp("browser")
    file = folder / "plan.html"
    names = tuple(f"gpu{number:02}" for number in range(1, 13))
    file.write_text(
        reports.text(plan(NASTY, names), "html", diff=True, whole=False), encoding="utf-8"
    )
    opened = Page(file, folder / "profile")
    yield opened
    opened.close()


def test_it_asks_for_nothing_and_breaks_no_rule_of_its_own(page: Page) -> None:
    asked = [told["request"]["url"] for told in page.told("Network.requestWillBeSent")]
    assert [url.rpartition("/")[2] for url in asked] == ["plan.html"]
    assert page.told("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []


def test_what_nodes_say_is_shown_and_not_run(page: Page) -> None:
    assert page.run("window.hit") is None
    assert page.run("document.images.length") == 0
    assert NASTY in page.run("document.body.textContent")


def test_its_policy_forbids_what_is_not_its_own(page: Page) -> None:
    script = "(e => { e.textContent = 'window.hit=1'; document.body.append(e); e.remove(); })"
    page.run(f"{script}(document.createElement('script'))")
    assert page.run("window.hit") is None
    said = " ".join(told["entry"]["text"] for told in page.told("Log.entryAdded"))
    assert "Content Security Policy" in said
    page.events.clear()


def test_the_filter_leaves_the_groups_that_have_a_node(page: Page) -> None:
    groups = page.run(VISIBLE)
    assert groups == 4
    search = "(t => { let f = document.getElementById('filter'); f.value = t; f.dispatchEvent(new Event('input')); })"
    page.run(f"{search}('gpu07')")
    assert page.run(VISIBLE) == 1
    assert (
        page.run("document.getElementById('shown').textContent") == "1 of 4 groups shown, 12 nodes"
    )
    assert page.run("document.querySelector('.chips .hit').textContent") == "gpu07"
    page.run(f"{search}('no such node')")
    assert page.run(VISIBLE) == 0
    page.run(f"{search}('')")
    assert page.run(VISIBLE) == groups


def test_kinds_of_nodes_can_be_left_out(page: Page) -> None:
    page.run("document.querySelector('button[data-kind=not-planned]').click()")
    assert page.run(VISIBLE) == 2
    assert (
        page.run("document.querySelector('[data-kind=not-planned]').getAttribute('aria-pressed')")
        == "false"
    )
    page.run("document.querySelector('button[data-kind=not-planned]').click()")
    assert page.run(VISIBLE) == 4


def test_groups_unfold_one_by_one_all_at_once_and_on_paper(page: Page) -> None:
    opened = "document.querySelectorAll('details.group[open]').length"
    assert page.run(opened) == 0
    page.run("document.querySelector('details.group summary').click()")
    assert page.run(opened) == 1
    page.run("document.getElementById('open').click()")
    assert page.run(opened) == 4
    page.run("document.getElementById('close').click()")
    assert page.run(opened) == 0
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(opened) == 4
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(opened) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_light_and_dark(page: Page, scheme: str) -> None:
    page.media(scheme=scheme)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.run(CONTRASTS) == []
    page.run("document.querySelectorAll('details').forEach(d => d.open = false)")


def test_on_paper_it_is_black_on_white_without_its_buttons(page: Page) -> None:
    page.media("print", "dark")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    # Without the script, which opens them, everything that is folded is on paper anyway.
    folded = "[...document.querySelectorAll('details:not([open]) > :not(summary)')]"
    assert page.run(f"{folded}.length") > 4
    assert page.run(f"{folded}.every(e => e.getBoundingClientRect().height > 0)")
    assert page.call("Page.printToPDF")["data"].startswith("JVBERi0")
    page.media()


def test_everything_has_a_name_for_those_who_listen(page: Page) -> None:
    assert page.run("document.documentElement.lang") == "en"
    unnamed = "[...document.querySelectorAll('button,input,svg')].filter(e => !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).length"
    assert page.run(unnamed) == 0
    levels = page.run("[...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_nothing_is_wider_than_a_narrow_window(page: Page) -> None:
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=420,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.run("document.documentElement.scrollWidth") <= 420
    page.call("Emulation.clearDeviceMetricsOverride")
