"""The page in a real browser: `pip install --group app-test`, with an installed Chromium."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import Any

import pytest

import dpacct
from dpacct import Budget, Ledger, Poisson, Round

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("shiny")
CHROMIUM = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
RUN = Round(1.6, Poisson(0.03))
NAME = "<script>document.title = 'read'</script>"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("app") / "registry.ledger"
    with Ledger.open(file, Budget(2, 1e-5), unit="person") as opened:
        opened.charge(NAME, 100 * RUN, project="<b>a</b>")
        opened.charge("second", 20 * RUN, project="b")
    with Ledger.open(file.with_name("unnamed.ledger"), Budget(99, 1e-5)):
        pass
    return file


@pytest.fixture(scope="module")
def address(ledger: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "dpacct_cli", "app", "--no-open", str(ledger)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2]
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page after its first number. It asks nothing of another place, and logs no error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    opened, wrong = context.new_page(), list[str]()
    opened.on("request", lambda sent: wrong.append(sent.url) if address not in sent.url else None)
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.goto(address)
    opened.wait_for_selector("#headline strong")
    yield opened
    assert [url for url in wrong if not url.startswith(("data:", "blob:"))] == []
    context.close()


def number(page: Any, place: str = "#headline") -> float:
    return float(page.locator(f"{place} strong").inner_text().replace(",", ""))


def changed(page: Any, act: Any, place: str = "#headline") -> float:
    """The number after an act that changes it."""
    before = page.locator(f"{place} strong").inner_text()
    act()
    waits = "([place, old]) => document.querySelector(place + ' strong')?.innerText !== old"
    page.wait_for_function(waits, arg=[place, before])
    return number(page, place)


def field(page: Any, label: str) -> Any:
    return page.locator("#calculator").get_by_label(label, exact=True)


def show(page: Any, tab: str) -> None:
    page.get_by_role("tab", name=tab).click()


def epsilon(noise: float) -> float:
    plan = 1000 * Round(noise, Poisson(0.01), "zero-out")
    return float(dpacct.display.up(dpacct.epsilon(plan, delta=1e-6).upper))


def test_the_slider_and_its_arrow_keys_give_the_epsilon_of_the_library(page: Any):
    assert number(page) == epsilon(1.0)
    slider = page.get_by_role("slider", name="Noise multiplier, slider")
    assert changed(page, lambda: slider.fill("1.4")) == epsilon(1.4)
    assert field(page, "Noise multiplier").input_value() == "1.4"
    assert changed(page, lambda: slider.press("ArrowRight")) == epsilon(1.41)
    field(page, "Noise multiplier").fill("2")
    page.wait_for_function(
        f"() => document.querySelector('#headline').innerText.includes({epsilon(2.0)})"
    )
    assert slider.input_value() == "2"


def test_noise_and_duration_are_solved_for(page: Any):
    noise = changed(page, lambda: page.get_by_role("radio", name="noise").check())
    assert epsilon(noise) <= 3 < epsilon(noise * 0.999)
    assert not field(page, "Noise multiplier").is_visible()
    rounds = changed(page, lambda: page.get_by_role("radio", name="duration").check())
    plan = Round(1.0, Poisson(0.01), "zero-out")
    found = dpacct.calibrate(epsilon=3, delta=1e-6, schedule=1 * plan, solve="rounds")
    assert rounds == found.rounds


def test_an_empty_field_is_named(page: Any):
    examples = field(page, "Examples")
    examples.fill("")
    page.wait_for_selector("#headline [role=alert]")
    assert page.locator("#headline").inner_text() == "Examples is empty."
    examples.fill("60000")
    page.wait_for_selector("#headline strong")


def test_four_samplings_fill_in(page: Any):
    field(page, "Examples").fill("200")
    field(page, "Batch size").fill("20")
    page.get_by_text("The smallest epsilon is").wait_for(timeout=120_000)
    assert page.locator("#ways table tr").count() == 5
    # Pictures are loaded, in spite of the page's policy.
    wide = "() => [...document.querySelectorAll('#curve img, #ways img')].map(i => i.naturalWidth)"
    assert min(page.evaluate(wide)) > 100
    assert page.locator("#curve img").get_attribute("alt")
    assert len(re.findall("[●○]", page.inner_text("#risk .dots"))) == 100


def test_it_is_a_page_for_everyone(page: Any):
    assert page.locator("main").count() == page.locator("h1").count() == 1
    assert page.locator("#headline").get_attribute("aria-live") == "polite"
    page.get_by_role("tab", name="Calculator").press("ArrowRight")
    assert page.get_by_role("tab", name="Ledgers").get_attribute("aria-selected") == "true"
    unnamed = "document.querySelectorAll('input:not([type=hidden]), select')"
    script = f"[...{unnamed}].filter(e => !e.labels.length && !e.ariaLabel).map(e => e.outerHTML)"
    assert page.evaluate(script) == []
    page.set_viewport_size({"width": 390, "height": 844})
    for tab in ("Calculator", "Ledgers", "Sweep"):
        show(page, tab)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("tab", ["Calculator", "Ledgers", "Sweep"])
def test_axe_finds_nothing_serious(page: Any, tab: str):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    show(page, tab)
    ready = {"Calculator": "#risk .dots", "Ledgers": "#timeline img", "Sweep": "#heat img"}
    page.wait_for_selector(ready[tab], state="attached")
    found = axe.Axe().run(page).response["violations"]
    bad = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in bad] == []


def test_a_ledger_is_shown_and_not_touched(page: Any, ledger: Path):
    before = {file: sha256(file.read_bytes()).digest() for file in ledger.parent.iterdir()}
    show(page, "Ledgers")
    page.wait_for_selector("#runs table")
    with Ledger.open(ledger, read_only=True) as opened:
        total, after = opened.upper_epsilon(), opened.would_read(20 * RUN).upper
    assert number(page, "#spent") == float(dpacct.display.up(total, 4))
    assert f"would read epsilon {dpacct.display.up(after, 4)}" in page.inner_text("#verdict")
    page.locator("#ledgers-panel").get_by_label("Rounds").fill("100000")
    page.wait_for_selector("#verdict .wrong")
    assert page.inner_text("#verdict").startswith("No. At most ")
    assert NAME in page.inner_text("#runs")
    assert page.title() == "dpacct"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the report").click()
    report = download.value.path().read_text(encoding="utf-8")
    assert download.value.suggested_filename == "registry-report.html"
    assert "<h1>" in report
    assert NAME not in report
    assert before == {file: sha256(file.read_bytes()).digest() for file in ledger.parent.iterdir()}


def test_a_ledger_that_was_not_named_is_refused(page: Any, ledger: Path):
    show(page, "Ledgers")
    page.wait_for_selector("#spent strong")
    for wrong in ("1", str(ledger.with_name("unnamed.ledger")), str(ledger)):
        fields = "Object.fromEntries(new FormData(document.getElementById('ledgers')))"
        page.evaluate(
            f"wrong => Shiny.setInputValue('ledgers', {{...{fields}, ledger: wrong}})", wrong
        )
        page.wait_for_selector("#spent [role=alert]")
        assert "not one of those" in page.inner_text("#spent")
        assert "99" not in page.inner_text("#spent")


def test_a_sweep_is_a_map_and_a_file(page: Any, tmp_path: Path):
    show(page, "Sweep")
    page.get_by_label("Noise multipliers").fill("0.8,1.2")
    page.get_by_label("Batch sizes").fill("300,600")
    page.get_by_text("of 4 settings are within").wait_for(timeout=60_000)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
    file = tmp_path / "typed.csv"
    typed = page.inner_text("#heat pre").replace("sweep.csv", str(file)).split()[1:]
    subprocess.run([sys.executable, "-m", "dpacct_cli", *typed], check=True)
    assert download.value.path().read_bytes() == file.read_bytes()


def test_other_places_get_nothing(address: str):
    host = address.split("/")[2]
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip

    def status(path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection(host, timeout=30)
        connection.request("GET", path, headers={"Host": host, **headers})
        with closing(connection):
            return connection.getresponse().status

    own = f"http://{host}"
    assert status("/") == 200
    assert status("/websocket/", **upgrade, Origin=own) == 101
    for foreign in (
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ):
        for path in ("/", "/app.js", "/session/x/download/report"):
            assert status(path, **foreign) == 403
        assert status("/websocket/", **{**upgrade, "Origin": own, **foreign}) == 403
    assert status("/websocket/", **upgrade) == 403


def test_a_page_of_another_place_cannot_open_a_socket(browser: Any, address: str):
    page = browser.new_page()
    page.goto("data:text/html,<title>other</title>")
    opened = page.evaluate(
        """url => new Promise(done => {
            const socket = new WebSocket(url);
            socket.onopen = () => done("open");
            socket.onerror = () => done("refused");
        })""",
        re.sub("^http", "ws", address) + "websocket/",
    )
    assert opened == "refused"
    page.close()
