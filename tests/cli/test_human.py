"""What a person reads: the number first, what it means, what it assumes, one next thing."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct_cli import render
from tests.cli.conftest import Ran

CALIBRATE = "calibrate --eps 8 --rounds 300 --q 0.1"
EPSILON = "epsilon --noise 1.36 --rounds 300 --q 0.1"
UNIFORM = "--noise 2.4 --rounds 200 --sampling uniform --cohort 100 --clients 2000"
SMALL = "--noise 9 --rounds 20 --sampling uniform --cohort 10 --clients 100"
COUNTED = "calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000"
EPOCHS = "--examples 500 --batch 5 --epochs 2"

# A command, what its page says (as patterns, blanks are any white space), and what it does not say.
PAGES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (
        CALIBRATE,
        (
            r"^noise multiplier 1\.286010 std of the noise on the sum / clip norm$",
            r"^epsilon 8\.0000 proven 7\.9999 achieved at delta 1e-05$",
            r"^mechanism 300 rounds, Poisson sampling at rate 0\.1, add-remove a client$",
            r"^accountant tight$",
            r"^RDP would need 1\.359610 5\.7 % more noise$",
            "^dpacct compare .* --delta 1e-05 shows other accountants",
        ),
        (),
    ),
    (f"{CALIBRATE} --accountant rdp", (r"^accountant rdp, order [\d.]+ won$",), ("RDP would",)),
    ("calibrate --advantage 0.1 --rounds 30 --q 0.1", ("of any attack",), ("RDP",)),
    (
        "calibrate --eps 8 --noise 1.36 --q 0.1 --solve rounds",
        (r"^rounds \d+ the most that stay within epsilon 8$", "RDP would say"),
        (),
    ),
    (
        "calibrate --eps 8 --noise 1.36 --rounds 300 --solve q",
        (r"^sampling rate \S+ the highest that stays within epsilon 8$", "RDP would say"),
        (),
    ),
    ("calibrate --eps 2 --schedule rounds.toml", ("^noise scale", "RDP would say"), ()),
    ("calibrate --eps 2 --schedule many.csv", ("and 3 more phases",), ("RDP",)),
    (EPSILON, (r"^RDP would say 7\.9964 for the same rounds$", "dpacct compare"), ()),
    (f"{EPSILON} --accountant rdp", (), ("RDP would",)),
    (
        "epsilon --schedule rounds.toml",
        (
            "^mechanism 300 rounds in 2 phases, add-remove a client$",
            "^100 rounds, noise 1, Poisson sampling at rate 0.1$",
            "^200 rounds, noise 0.8, Poisson sampling at rate 0.05$",
        ),
        (),
    ),
    # Cohorts of fixed size: what is published, what is mistaken, who achieves it.
    (
        f"epsilon {UNIFORM} --delta 0.000234",
        (
            r"^epsilon 2\.65\d+ proven 2\.64\d+ achieved at delta 0\.000234$",
            "100 of 2000 clients without replacement, replace one client",
            "^replacing a client moves the sum by up to 2 x clip norm$",
            r"^for comparison 6\.3[789]\d+ Renyi by Wang et al. 2019$",
            r"if the cohorts were Poisson \(add-remove\)$",
            "^accountant tight, an adaptive game$",
        ),
        (),
    ),
    (f"epsilon {SMALL} --adjacency add-remove", ("an added client displaces another",), ()),
    (
        "epsilon --noise 2.4 --rounds 50000 --sampling uniform --cohort 100 --clients 2000",
        ("^accountant tight, one fixed pair a round: ",),
        (),
    ),
    (
        "epsilon --noise 9 --rounds 20 --sampling uniform --q 0.05",
        ("a fixed fraction 0.05 without replacement", "moves the sum by up to 2 x clip norm"),
        (" of 20 clients",),
    ),
    (
        "delta --noise 1.36 --rounds 300 --q 0.1 --eps 8 --clients 50",
        (r"^delta \S+ proven \S+ achieved at epsilon 8$", r"^that is \S+ / clients$"),
        (),
    ),
    (
        "rdp --noise 1 --q 0.1 --orders 1.5,2,32",
        (
            "1 round, Poisson sampling at rate 0.1, add-remove a client",
            "^order proven achieved",
            r"^1\.5 .*\n2 .*\n32 ",
        ),
        (),
    ),
    ("rdp --noise 2.4 --q 0.05 --sampling uniform --orders 2,4", ("Wang et al. 2019",), ()),
    ("rdp --noise 1 --q 0.05 --sampling uniform --orders 1e7", (r"^\S+ .* -$",), ()),
    # Central training.
    (f"calibrate --eps 3 {EPOCHS}", ("add-remove an example",), ("client",)),
    (f"epsilon --noise 1 {EPOCHS}", ("--epochs 2 --batch 5 --examples 500",), ("client",)),
]  # fmt: skip


@pytest.fixture
def files(schedule_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(schedule_file).parent
    many = "rounds,noise_multiplier\n" + "".join(f"1,{n}\n" for n in range(1, 10))
    (folder / "many.csv").write_text(many, encoding="utf-8")
    monkeypatch.chdir(folder)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("words", "said", "absent"), PAGES, ids=[words for words, *_ in PAGES])
def test_pages(dpacct: Any, words: str, said: tuple[str, ...], absent: tuple[str, ...]) -> None:
    text = dpacct(words).text
    squeezed = "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
    for pattern in said:
        assert re.search(pattern, squeezed, flags=re.MULTILINE), (pattern, text)
    for part in absent:
        assert part not in text


def test_a_comparison_that_fails_is_left_out(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "epsilon --noise 9 --rounds 20 --sampling uniform --q 0.01 --accountant closed-form"
    assert "for comparison" in dpacct(words).text
    exact = library.epsilon

    def refuse_poisson(plan: library.Schedule, **options: Any) -> library.Interval:
        if plan.phases[0].round.sampling.name == "poisson":
            raise library.Unsupported("no closed form applies")
        return exact(plan, **options)

    monkeypatch.setattr("dpacct.epsilon", refuse_poisson)
    assert "for comparison" not in dpacct(words).text


# The screen.

PAGE = render.Page(
    [render.Row("epsilon", "1.2", "at delta 1e-05"), render.Row("mechanism", "3 rounds")],
    [render.Grid(["order", "proven"], [["2", "0.1"]], {1: ["red"]})],
    ["it: because " + 30 * "of this "],
    "What [next].",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = render.Answer({}, "1.2", lambda: PAGE)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown: list[str] = []
    for screen, term in ((io.StringIO(), "xterm"), (Terminal(), "xterm"), (Terminal(), "dumb")):
        monkeypatch.setattr("sys.stdout", screen)
        monkeypatch.setenv("TERM", term)
        render.show(answer, render.Style.HUMAN)
        shown.append(screen.getvalue())
    piped, colored, plain = shown
    assert "\x1b[1" in colored
    assert re.search(r"\x1b\[31m *0\.1", colored)
    assert "\x1b" not in plain + piped
    unstyled = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    for text in (unstyled, plain):
        assert re.findall(r"[\w.\[\]]+", text) == re.findall(r"[\w.\[\]]+", piped)


def test_text_from_options_and_files_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would read colors in brackets, and emoji between colons."""
    words = "dirichlet:a: [red]x[/red] [/]"
    row, grid = render.Row(words, words, words), render.Grid([words], [[words]])
    page = render.Page([row], [grid], [words], words, title=words)
    monkeypatch.setenv("COLUMNS", "200")
    # Rich takes a dumb terminal for 80 columns unless both are known.
    monkeypatch.setenv("LINES", "50")
    monkeypatch.setenv("TERM", "dumb")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    render.show_page(page)
    assert screen.getvalue().count(words) == 8


def test_a_used_budget_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for used, color in ((0.5, "32"), (0.8, "33"), (1.5, "31")):
        screen = Terminal()
        monkeypatch.setattr("sys.stdout", screen)
        page = PAGE._replace(used=used)
        render.show(render.Answer({}, "", lambda page=page: page), render.Style.HUMAN)
        assert re.search(rf"\x1b\[{color}m━+", screen.getvalue())


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("line", [COUNTED, "epsilon --noise 2.4 --rounds 3 --q 0.1 --claim 0.1"])
def test_lines_fit_the_terminal(
    dpacct: Any, line: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dpacct(line).text
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("dpacct_cli.render.on_terminal", lambda: True)
    text = dpacct(line).text
    assert "\x1b[" not in text or sys.stdout.isatty()
    assert all(len(shown) <= columns for shown in text.splitlines() if "dpacct " not in shown)
    figures = {word for word in whole.split() if word[:1].isdigit()}
    assert figures <= set(text.split())


def test_a_name_cannot_write_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    page = render.Page(
        [render.Row("ledger", "\x1b[2J\n.ledger")], remarks=["\x07 of \u202ex"], note="\x9b1m"
    )
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    render.show(render.Answer({}, "", lambda: page), render.Style.HUMAN)
    assert r"\x1b[2J\n.ledger" in out.getvalue()
    assert out.getvalue().replace("\n", "").isprintable()
    assert err.getvalue() == "note: \\x9b1m\n"


@pytest.mark.parametrize("name", ["rounds 1.toml", "it's.toml"])
def test_a_command_to_paste_names_the_same_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash to paste into")
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("[[phase]]\nrounds = 3\nnoise_multiplier = 2.0\n", "utf-8")
    text = Ran(["epsilon", "--schedule", name]).text
    pasted = re.search(r"dpacct compare (--schedule .*) shows other", text)
    assert pasted is not None
    read = subprocess.run(
        [bash, "-c", f"printf '%s\\0' {pasted[1]}"], capture_output=True, text=True, check=True
    )
    assert read.stdout.split("\0")[:2] == ["--schedule", name]


TABLES = [
    "ledger show year.ledger", "claims list", "reproduce", "rdp --noise 1 --q 0.1",
    "risk --noise 1 --rounds 100 --q 0.1", "risk --eps 3 --delta 1e-5",
    "explore --noise 1,2 --rounds 100,200 --q 0.1 --delta 1e-5,1e-7",
    "compare --examples 600 --batch 60 --epochs 1 --noise 4",
]  # fmt: skip


@pytest.mark.parametrize("words", TABLES)
def test_no_word_or_number_of_a_table_is_broken_at_80_columns(
    dpacct: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words == "reproduce":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())
    with library.Ledger.open("year.ledger", library.Budget(8, 1e-5)) as ledger:
        step = library.Round(4.0, library.Poisson(0.1))
        ledger.charge("regional statistics", 20 * step, project="statistics")
        ledger.start_run("second model", 300 * step, project="diagnosis").reserve(step)
    pages: list[render.Page] = []
    show = render.show_page
    monkeypatch.setattr(render, "show_page", lambda page: (pages.append(page), show(page)))
    monkeypatch.setattr("dpacct_cli.render.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    text = dpacct(words).text
    (page,) = pages
    assert page.grids
    shown = set(text.split())
    for grid in page.grids:
        cells = {
            word for line in (grid.header, *grid.lines) for cell in line for word in cell.split()
        }
        assert cells <= shown, cells - shown
    table = text.rpartition("╯")[2].removesuffix(f"{page.closing}\n")
    assert max(map(len, table.splitlines())) <= 80


def test_a_table_that_is_too_wide_breaks_its_widest_words() -> None:
    columns = [["name", "x" * 90], ["epsilon", "1.2345"], ["words", "one two three"]]
    assert render._widths(columns, 80) == ([62, 7, 5], 1)
    assert render._widths(columns, 115) == ([90, 7, 9], 2)
    assert render._widths(columns, 200) == ([90, 7, 13], 2)
