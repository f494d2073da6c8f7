"""The HTML pages in headless Chromium: no error, no request, sorted on click, readable on a phone."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import ATTACK, logs, sources  # noqa: F401

from lmms_eval_templates.cli import main

PHONE, DESKTOP = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def pages(logs, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    assert main(["report", *sources(logs), "--with-paper", "-o", str(folder / "report")]) == 0
    files = []
    for source in sources(logs):
        files.append(str(folder / f"{len(files)}.json"))
        assert main(["submit", source, "-o", files[-1]]) == 0
    assert main(["leaderboard", *files, "--with-paper", "-o", str(folder / "leaderboard")]) == 0
    return {name: folder / name / "index.html" for name in ("report", "leaderboard")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs Chromium and chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    switches = "headless no-sandbox disable-gpu disable-dev-shm-usage disable-quic no-first-run disable-sync"
    for switch in [*switches.split(), "disable-background-networking", "disable-component-update"]:
        options.add_argument(f"--{switch}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chromium = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chromium
    chromium.quit()


def show(browser, page: Path, size: tuple[int, int]) -> list[str]:
    """Opens a page; returns the addresses that it asked for."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("name", ["report", "leaderboard"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_no_error_no_request_and_no_sideways_scrolling(browser, pages, name, size):
    asked = show(browser, pages[name], size)
    assert [url for url in asked if not url.startswith(("data:", pages[name].as_uri()))] == []
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.scrollingElement.scrollWidth") <= size[0]
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('p, td, th, li, code')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
    broken = "return [...document.images].filter(i => !i.complete || !i.naturalWidth).length"
    assert browser.execute_script(broken) == 0


def column(browser, table: str, index: int, block: int = 0) -> list[str]:
    """The texts of a column in the rows that name their model, block by block."""
    script = """
        const blocks = [[]];
        for (const body of document.getElementById("table-" + arguments[0]).tBodies) {
            if (body.classList.contains("title")) { if (blocks.at(-1).length) blocks.push([]); }
            else blocks.at(-1).push(body.rows[0].cells[arguments[1]].textContent);
        }
        return blocks[arguments[2]];"""
    return browser.execute_script(script, table, index, block)


def heading(browser, table: str, index: int):
    return browser.find_element("css selector", f"#table-{table} th[data-column='{index}'] button")


def test_tables_sort_on_click_and_by_keyboard(browser, pages):
    show(browser, pages["report"], DESKTOP)
    before = column(browser, "statistics", 4)
    figures = sorted(map(float, before))
    heading(browser, "statistics", 4).click()
    assert list(map(float, column(browser, "statistics", 4))) == figures[::-1]
    heading(browser, "statistics", 4).send_keys("\n")
    assert list(map(float, column(browser, "statistics", 4))) == figures
    th = browser.find_element("css selector", "#table-statistics th[data-column='4']")
    assert th.get_attribute("aria-sort") == "ascending"
    heading(browser, "statistics", 0).click()
    names = column(browser, "statistics", 0)
    assert names == sorted(names)
    assert th.get_attribute("aria-sort") is None
    assert browser.get_log("browser") == []


def test_rows_of_a_model_and_blocks_stay_together(browser, pages):
    show(browser, pages["report"], DESKTOP)
    own, papers = set(column(browser, "table2", 0)), set(column(browser, "table2", 0, block=1))
    last = browser.execute_script("return document.querySelector('#table-table2 tbody.group tr').cells.length") - 1
    heading(browser, "table2", last).click()
    assert set(column(browser, "table2", 0)) == own == {"steady", "fickle", "hostile"}
    assert column(browser, "table2", 0, block=1)[:2] == ["LLaVA-1.5-13B-Base w/ Ours", "LLaVA-1.5-7B-Base w/ Ours"]
    assert set(column(browser, "table2", 0, block=1)) == papers
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#table-table2 tbody.group tr')].map(r => r.cells[1].textContent)"
    )
    assert rows == ["Avg.", "Max-Min"] * 12


def test_what_is_missing_sorts_last(browser, pages):
    show(browser, pages["report"], DESKTOP)
    for _ in range(2):
        heading(browser, "statistics", 3).click()
        assert column(browser, "statistics", 3)[-3:] == ["–"] * 3


def test_a_models_answer_is_text_and_nothing_else(browser, pages):
    page = pages["report"].read_text()
    assert ATTACK.split(" | ")[0] not in page
    show(browser, pages["report"], DESKTOP)
    assert "broken into" not in browser.title
    text = browser.execute_script("return document.getElementById('example').textContent")
    assert ATTACK in text


def test_the_example_shows_its_image_prompts_and_answers(browser, pages):
    show(browser, pages["report"], PHONE)
    images = browser.find_elements("css selector", ".example img")
    assert len(images) == 3
    assert all(image.get_attribute("naturalWidth") == "48" for image in images)  # the drawn scenes
    text = browser.execute_script("return document.getElementById('example').textContent")
    assert re.search(r"fickle: Demo, Complex templates, item \w+_\d+", text)
    assert "The right answer is" in text
    rows = browser.execute_script("return document.querySelectorAll('#table-example-0 tbody.group').length")
    assert rows == 100


def test_pictures_have_words_and_headings_an_order(browser, pages):
    show(browser, pages["report"], DESKTOP)
    alts = browser.execute_script("return [...document.querySelectorAll('figure img')].map(i => i.alt)")
    assert len(alts) == 5
    assert any("fickle Complex" in alt and "mean" in alt for alt in alts)
    levels = browser.execute_script(
        "return [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert max(np.diff(levels)) <= 1
    assert browser.execute_script("return document.documentElement.lang") == "en"
    assert (
        browser.execute_script(
            "const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size"
        )
        == 0
    )


def test_the_leaderboard_ranks_by_avg(browser, pages):
    show(browser, pages["leaderboard"], DESKTOP)
    assert column(browser, "leaderboard", 0) == ["1", "2", "3"]
    averages = list(map(float, column(browser, "leaderboard", 2)))
    assert averages == sorted(averages, reverse=True)
    assert len(column(browser, "leaderboard", 1, block=1)) == 9  # the paper's models, without a rank
    assert os.path.getsize(pages["leaderboard"]) < 200_000
