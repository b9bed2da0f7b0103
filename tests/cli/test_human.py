"""What a person reads: the number first, what it means, what it assumes, one next thing."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct.interop import DpAccountingRdp
from dpacct.schedules.files import load_schedule
from dpacct_cli import mechanism, render
from tests.cli.conftest import Ran

CALIBRATE = "calibrate --eps 8 --rounds 300 --q 0.1"
UNIFORM = "--noise 2.4 --rounds 200 --sampling uniform --cohort 100 --clients 2000"


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def row(text: str, label: str) -> str:
    found = [line for line in lines(text) if line.startswith(f"  {label}  ")]
    assert len(found) == 1, text
    return found[0]


def test_calibrate_begins_with_the_number_and_its_meaning(dpacct: Any) -> None:
    text = dpacct(CALIBRATE).text
    first = lines(text)[0].split()
    found = library.calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    assert first[:2] == ["noise", "multiplier"]
    assert found.noise_multiplier <= float(first[2]) < found.noise_multiplier * (1 + 1e-5)
    assert "std of the noise on the sum / clip norm" in lines(text)[0]
    assert "proven" in row(text, "epsilon")
    assert "achieved" in row(text, "epsilon")
    assert "at delta 1e-05" in row(text, "epsilon")
    assert row(text, "mechanism").split(maxsplit=1)[1] == (
        "300 rounds, Poisson sampling at rate 0.1, add-remove a client"
    )
    assert row(text, "accountant").split() == ["accountant", "tight"]
    assert "--clip and --clients" in lines(text)[-1]


@pytest.mark.parametrize(
    "words", ["--rounds 300 --q 0.1", "--rounds 300 --sampling full --delta 1e-6"]
)
def test_calibrate_says_how_much_noise_rdp_would_need(dpacct: Any, words: str) -> None:
    text = dpacct("calibrate --eps 8", words).text
    ours = float(dpacct("calibrate --eps 8", words, "-q").text)
    theirs = float(dpacct("calibrate --eps 8", words, "--accountant rdp -q").text)
    need, *more = row(text, "RDP would need").split()[3:]
    assert theirs <= float(need) <= theirs * (1 + 1e-6)
    assert more == [f"{100 * (theirs / ours - 1):.1f}", "%", "more", "noise"]
    renyi = dpacct("calibrate --eps 8", words, "--accountant rdp").text
    assert re.search(r"rdp, order \d+(\.\d+)? won", row(renyi, "accountant"))
    assert "RDP would" not in renyi


@pytest.mark.parametrize(
    "words", ["--noise 1.5 --q 0.1 --solve rounds", "--noise 1.5 --rounds 300 --solve q"]
)
def test_what_is_solved_for_stands_beside_what_rdp_says(dpacct: Any, words: str) -> None:
    found = dpacct("calibrate --eps 8", words, "--json").json
    again = f"--noise 1.5 --rounds {found['rounds']} --q {found['sampling_rate']!r}"
    renyi = float(dpacct("epsilon", again, "--accountant rdp -q").text)
    shown = row(dpacct("calibrate --eps 8", words).text, "RDP would say").split()[3]
    assert renyi <= float(shown) <= 1.001 * renyi


def test_rdp_is_mentioned_only_if_it_says_something_new(
    dpacct: Any, schedule_file: str, tmp_path: Any
) -> None:
    assert "RDP would say" in dpacct(f"calibrate --eps 2 --schedule {schedule_file}").text
    many = tmp_path / "many.csv"
    many.write_text("rounds,noise_multiplier\n" + "".join(f"1,{n}\n" for n in range(1, 10)))
    for command in ("calibrate --eps 2", "epsilon"):
        assert "RDP" not in dpacct(command, "--schedule", str(many)).text
    assert "RDP" not in dpacct("calibrate --advantage 0.1 --rounds 30 --q 0.1").text
    words = "epsilon --noise 1.36 --rounds 300 --q 0.1"
    assert row(dpacct(words).text, "RDP would say").split()[3] == "7.9964"
    assert "RDP would" not in dpacct(words, "--accountant rdp").text
    assert "RDP would say" in dpacct(f"epsilon {UNIFORM} --adjacency add-remove").text


NEAR_AN_ATOM = "--noise 0.75 --rounds 7 --q 2e-7"


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (f"epsilon {NEAR_AN_ATOM} --delta 6e-19", 0),
        ("delta --noise 0.15 --rounds 3800000 --q 4.1e-7 --eps 0.0027", 1),
        (f"delta {NEAR_AN_ATOM} --eps 0.01", 0),
        (f"epsilon {NEAR_AN_ATOM} --delta 6e-19 --accountant rdp", 0),
        ("epsilon --noise 1.36 --rounds 300 --q 0.1", 0),
        # Two pairs of data sets, which another row speaks of.
        (f"epsilon {UNIFORM} --delta 1e-6", 0),
        ("epsilon --noise 2 --rounds 30 --q 0.1 --adjacency replace-one", 0),
    ],
)
def test_a_bracket_that_should_be_narrow_is_worth_a_note(
    dpacct: Any, words: str, noted: int
) -> None:
    result = dpacct(words)
    assert result.code == 0
    assert result.err.count("note:") == result.err.count("\n") == noted
    if noted:
        data = dpacct(words, "--json").json
        found = data[words.split(maxsplit=1)[0]]
        assert found["upper"] - found["lower"] > 1e-6 * found["upper"]
        assert "nearly an atom; the proven side still holds" in result.err
        assert "because at so small a sampling rate the loss" in result.err


@pytest.mark.parametrize(
    ("noise_multiplier", "sampling_rate", "cause"),
    [
        (1.0, 1e-5, ", because at so small a sampling rate the loss of a round is nearly an atom"),
        (0.01, 0.1, ", because at so little noise the loss of a round is nearly an atom"),
        (0.05, 1e-3, ", because at so little noise and so small a sampling rate the loss"),
        (1.0, 0.1, ""),
    ],
)
def test_the_note_on_a_wide_bracket_names_the_option_at_fault(
    noise_multiplier: float, sampling_rate: float, cause: str
) -> None:
    plan = 10 * library.Round(noise_multiplier, library.Poisson(sampling_rate))
    note = mechanism.wide_bracket_note(plan, library.Interval(0.5, 1.0), "tight")
    assert note.startswith(f"the bracket is wider than 1e-6 (relative){cause}")
    assert note.endswith("; the proven side still holds.")
    assert ("because" in note) == bool(cause)


def test_the_word_on_delta_goes_before_that_on_the_bracket(dpacct: Any) -> None:
    result = dpacct(f"epsilon {NEAR_AN_ATOM} --clients 900000000000 --delta 6e-13")
    assert result.err.count("\n") == 1
    assert "0.54 / clients" in result.err


def test_shown_numbers_err_on_the_safe_side(dpacct: Any) -> None:
    words = "epsilon --noise 1.36 --rounds 300 --q 0.1"
    exact = dpacct(words, "--json").json["epsilon"]
    upper, _, lower = row(dpacct(words).text, "epsilon").split()[1:4]
    assert exact["upper"] <= float(upper) < exact["upper"] * 1.001
    assert exact["lower"] * 0.999 < float(lower) <= exact["lower"]


def number_of(dpacct: Any, *words: str) -> float:
    """The number alone."""
    return float(dpacct(*words, "-q").text)


# A question, its first row, and how to type that row's number in again.
FOLLOWED = [
    ("--rounds 300 --q 0.1", "noise multiplier", "--noise {} --rounds 300 --q 0.1"),
    ("--rounds 7 --sampling full", "noise multiplier", "--noise {} --rounds 7 --sampling full"),
    (
        "--rounds 30 --cohort 10 --clients 90 --sampling uniform",
        "noise multiplier",
        "--noise {} --rounds 30 --cohort 10 --clients 90 --sampling uniform",
    ),
    ("--noise 1.5 --q 0.1 --solve rounds", "rounds", "--noise 1.5 --q 0.1 --rounds {}"),
    ("--noise 1.5 --rounds 300 --solve q", "sampling rate", "--noise 1.5 --rounds 300 --q {}"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accountant", ["tight", "rdp"])
@pytest.mark.parametrize(("words", "label", "again"), FOLLOWED, ids=[f[0] for f in FOLLOWED])
def test_what_is_shown_keeps_the_budget_when_it_is_typed_again(
    dpacct: Any, words: str, label: str, again: str, accountant: str
) -> None:
    """2.7 is met only just: a number rounded to the wrong side would exceed it."""
    ask = ["--delta 1e-6", f"--accountant {accountant}"]
    text = dpacct("calibrate --eps 2.7", words, *ask).text
    shown = row(text, label).removeprefix(f"  {label}").split()[0]
    spent = number_of(dpacct, "epsilon", again.format(shown), *ask)
    assert 0.9 * 2.7 < spent <= 2.7
    upper, _, lower = row(text, "epsilon").split()[1:4]
    assert float(lower) <= float(upper)
    assert float(upper) >= spent
    by_renyi = (ask[0], "--accountant rdp")
    if "RDP would say" in text:
        other = row(text, "RDP would say").split()[3]
        assert number_of(dpacct, "epsilon", again.format(shown), *by_renyi) <= float(other)
    if "RDP would need" in text:
        more = row(text, "RDP would need").split()[3]
        assert number_of(dpacct, "epsilon", again.format(more), *by_renyi) <= 2.7
    if label == "sampling rate":
        said = re.search(r"Poisson sampling at rate (\S+),", text)
        assert said is not None
        assert float(said[1]) <= number_of(dpacct, "calibrate --eps 2.7", words, *ask)


def test_a_shown_scale_keeps_the_budget_when_it_is_applied(dpacct: Any, schedule_file: str) -> None:
    text = dpacct(f"calibrate --eps 2 --schedule {schedule_file}").text
    scale = float(row(text, "noise scale").split()[2])
    spent = library.epsilon(load_schedule(schedule_file).scale_noise(scale), delta=1e-5)
    assert spent.upper <= 2


def test_a_shown_delta_keeps_its_epsilon(dpacct: Any) -> None:
    text = dpacct("delta --noise 1.36 --rounds 300 --q 0.1 --eps 7.1").text
    shown = row(text, "delta").split()[1]
    assert number_of(dpacct, f"epsilon --noise 1.36 --rounds 300 --q 0.1 --delta {shown}") <= 7.1


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (render.rate, 0.1, "0.1"),
        (render.rate, 0.12345678, "0.1234567"),
        (render.rate, 1.23456789e-8, "1.234567e-08"),
        (render.rate, 1e-5, "1e-05"),
        (render.rate, 1.0, "1"),
        (render.noise, 1.3, "1.3"),
        (render.noise, 1.23456701, "1.234568"),
        (render.noise, 1e10, "1e+10"),
        (render.shown_delta, 0.00023381, "0.000234"),
        (render.shown_delta, 0.00023301, "0.000234"),
        (render.plain, 0.1, "0.1"),
        (render.plain, 1e-5, "1e-05"),
        (render.plain, 0.1234567890123456, "0.1234567890123456"),
    ],
)
def test_each_quantity_has_its_safe_side(shown: Any, value: float, text: str) -> None:
    assert shown(value) == text


def test_calibrate_with_clip_and_clients_speaks_of_the_mean(dpacct: Any) -> None:
    text = dpacct("calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000 --clip 0.5").text
    noise = dpacct("calibrate --eps 8 --rounds 300 --cohort 100 --clients 1000 -q").text
    found = re.search(r"(\S+) on the sum, (\S+) on the mean of the planned 100 clients", text)
    assert found is not None
    assert float(found[1]) == pytest.approx(0.5 * float(noise), rel=1e-4)
    assert float(found[2]) == pytest.approx(0.005 * float(noise), rel=1e-4)
    assert row(text, "epsilon").endswith("at delta 1e-05")
    assert "dpacct compare" in lines(text)[-1]


def test_noise_without_a_clip_norm_is_in_its_units(dpacct: Any) -> None:
    text = dpacct("epsilon --noise 2.4 --rounds 3 --q 0.05 --clients 2000").text
    expected = "2.4000 x clip norm on the sum, 0.024000 x clip norm on the mean of the planned 100"
    assert expected in row(text, "noise std")


def test_uniform_says_what_a_replaced_client_moves(dpacct: Any) -> None:
    text = dpacct(f"epsilon {UNIFORM} --delta 0.000234").text
    assert row(text, "epsilon").endswith("at delta 0.000234")
    assert "100 of 2000 clients without replacement, replace one client" in text
    assert "2.4000 x clip norm on the sum" in text
    assert "replacing a client moves the sum by up to 2 x clip norm" in text
    assert (
        "promise people the proven one"
        in dpacct(f"epsilon {UNIFORM} --delta 0.000234 --accountant rdp").text
    )
    assert "Renyi by Wang et al. 2019" in row(text, "for comparison")
    assert 6.37 < float(row(text, "for comparison").split()[2]) < 6.39
    assert "proven    2.64" in row(text, "epsilon")
    assert row(text, "epsilon").split()[1].startswith("2.65")
    assert row(text, "accountant") == "  accountant         tight, an adaptive game"
    assert "if the cohorts were Poisson (add-remove)" in text


def test_uniform_says_who_achieves_it_and_what_proves_it(dpacct: Any) -> None:
    """The data sets and the strategy, in words; and where a fixed pair answers, that it does."""
    text = dpacct(f"epsilon {UNIFORM}").text
    told = " ".join(text[text.index("achieved so") :].split())
    assert "all other clients contribute -C; the target contributes +C, or is replaced" in told
    assert "all other clients instead contribute +C, like the target: in each round" in told
    many = "--noise 2.4 --rounds 50000 --sampling uniform --cohort 100 --clients 2000 --delta 1e-5"
    text = dpacct(f"epsilon {many}").text
    assert row(text, "accountant").startswith(
        "  accountant         tight, one fixed pair a round: "
    )
    assert "achieved so" in text
    assert "instead" not in text[text.index("achieved so") :]
    assert "achieved so" not in dpacct("epsilon --noise 2 --rounds 20 --q 0.1").text


def test_uniform_without_numbers_of_clients_invents_none(dpacct: Any) -> None:
    text = dpacct("epsilon --noise 2.4 --rounds 200 --sampling uniform --q 0.05").text
    assert "a fixed share 0.05 without replacement" in row(text, "mechanism")
    assert " of 20 clients" not in text
    assert "replacing a client moves the sum by up to 2 x clip norm" in text


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


def test_solving_for_rounds_and_rate_says_so(dpacct: Any) -> None:
    text = dpacct("calibrate --eps 8 --noise 1.36 --q 0.1 --solve rounds").text
    assert re.match(r"  rounds +\d+ +the most that stay within epsilon 8", lines(text)[0])
    text = dpacct("calibrate --eps 8 --noise 1.36 --rounds 300 --solve q").text
    assert lines(text)[0].startswith("  sampling rate")
    assert "the highest that stays within epsilon 8" in lines(text)[0]


def test_schedule_file_shows_its_phases(dpacct: Any, schedule_file: str, tmp_path: Any) -> None:
    text = dpacct("epsilon", "--schedule", schedule_file).text
    assert "300 rounds in 2 phases, add-remove a client" in row(text, "mechanism")
    assert "100 rounds, noise 1, Poisson sampling at rate 0.1" in text
    assert "200 rounds, noise 0.8, Poisson sampling at rate 0.05" in text
    scaled = dpacct("calibrate", "--eps", "2", "--schedule", schedule_file).text
    assert lines(scaled)[0].startswith("  noise scale")
    many = tmp_path / "many.csv"
    many.write_text("rounds,noise_multiplier\n" + "".join(f"1,{n}\n" for n in range(1, 10)))
    assert "and 3 more phases" in dpacct("epsilon", "--schedule", str(many)).text


def test_delta(dpacct: Any) -> None:
    text = dpacct("delta --noise 1.36 --rounds 300 --q 0.1 --eps 8 --clients 50").text
    assert lines(text)[0].startswith("  delta  ")
    assert "at epsilon 8" in lines(text)[0]
    assert re.search(r"that is \S+ / clients", text)


def test_rdp_is_a_table_of_orders(dpacct: Any) -> None:
    text = dpacct("rdp --noise 1 --q 0.1 --orders 1.5,2,32").text
    assert "1 round, Poisson sampling at rate 0.1, add-remove a client" in text
    header = next(line for line in lines(text) if line.split()[0] == "order")
    assert header.split()[:3] == ["order", "proven", "achieved"]
    orders = [line.split()[0] for line in lines(text)[2:-1]]
    assert orders == ["1.5", "2", "32"]


def test_rdp_of_uniform_sampling_names_both_routes(dpacct: Any) -> None:
    text = dpacct("rdp --noise 2.4 --q 0.05 --sampling uniform --orders 2,4").text
    assert "Wang et al. 2019" in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        f"epsilon {UNIFORM}",
        "calibrate --eps 8 --rounds 30 --q 0.1 --clip 1 --clients 50",
        f"delta {UNIFORM} --eps 3",
        "rdp --noise 1 --q 0.1",
        "compare --noise 5 --rounds 10 --sampling full --delta 1e-6",
    ],
)
def test_the_suggested_command_runs(
    dpacct: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = DpAccountingRdp()
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: (peer,))
    closing = lines(dpacct(words).text)[-1]
    typed = re.match(r" +dpacct ((?:\w+)(?: --\S+ \S+)+)", closing)
    assert typed is not None, closing
    assert dpacct(typed[1]).text


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        ("--clients 50000 --delta 1e-5", 1),
        ("--clients 50000 --delta 1e-6", 0),
        ("--clients 50000 --delta 2e-6", 0),
        ("--delta 1e-4", 0),
    ],
)
def test_a_large_delta_is_worth_one_note(dpacct: Any, words: str, noted: int) -> None:
    result = dpacct("epsilon --noise 1 --rounds 30 --q 0.1", words)
    assert result.code == 0
    assert result.err.count("note:") == result.err.count("\n") == noted
    assert "note:" not in result.out
    if noted:
        assert "delta 1e-05 is high for 50,000 clients (0.5 / clients)." in result.err
        assert "Use --delta 2e-06 or less (0.1 / clients)." in result.err


def test_pipes_get_plain_text(dpacct: Any) -> None:
    for words in (CALIBRATE, "rdp --noise 1 --q 0.1", "--help"):
        assert "\x1b" not in dpacct(words).text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    page = render.Page(
        [render.Row("epsilon", "1.2", "at delta 1e-05"), render.Row("mechanism", "3 rounds")],
        render.Grid(["order", "proven"], [["2", "0.1"]]),
        ["it: because " + 30 * "of this "],
        "What [next].",
    )
    answer = render.Answer({}, "1.2", lambda: page)
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
    assert "\x1b" not in plain + piped
    unstyled = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    for text in (unstyled, plain):
        assert re.findall(r"[\w.\[\]]+", text) == re.findall(r"[\w.\[\]]+", piped)


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


@pytest.mark.parametrize("name", ["rounds 1.toml", "it's\t.toml", "é\x1b[2J.toml"])
def test_a_command_to_paste_names_the_same_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash to paste into")
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("[[phase]]\nrounds = 3\nnoise_multiplier = 2.0\n", "utf-8")
    words = ["epsilon", "--schedule", name]
    closing = lines(Ran(words).text)[-1]
    pasted = re.search(r"dpacct compare (--schedule .*) shows other", closing)
    assert pasted is not None
    read = subprocess.run(
        [bash, "-c", f"printf '%s\\0' {pasted[1]}"], capture_output=True, text=True, check=True
    )
    assert read.stdout.split("\0")[:2] == ["--schedule", name]


@pytest.mark.parametrize(
    ("value", "above", "below"),
    [
        (8.0, "8.0000", "8.0000"),
        (7.99999993, "8.0000", "7.9999"),
        (1.35960912, "1.3597", "1.3596"),
        (0.0, "0", "0"),
        (1e-12, "1.0000e-12", "1.0000e-12"),
        (1.23456e-7, "1.2346e-07", "1.2345e-07"),
        (123456.0, "1.2346e+05", "1.2345e+05"),
        (12345.6, "12346", "12345"),
    ],
)
def test_rounding_for_display(value: float, above: str, below: str) -> None:
    assert float(render.up(value)) >= value * (1 - 1e-15)
    assert float(render.down(value)) <= value * (1 + 1e-15)
    if value != 1e-12:
        assert (render.up(value), render.down(value)) == (above, below)
