"""Bad input: exit code 2, one line on stderr that names the option, nothing on stdout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger, Poisson, Round, validate
from dpacct.errors import InvalidParameter
from dpacct_cli import errors
from dpacct_cli.app import ENTRIES, load
from tests.cli.conftest import Ran

# What is typed => what the line holds: the option, the value, the range or the way out. A bad value
# comes before what is missing or contradicts it. The exit code is 2 unless it stands in front.
REFUSED = """
calibrate --eps 8 --rounds 20 --best-of abc => --best-of is 'abc'; | poisson:10
calibrate --eps 8 --rounds 20 --q 0.1 --best-of geometric:0.5 => --best-of is 0.5; | lies in [1,
calibrate --eps 8 --q 0.1 --noise 1 --solve rounds --best-of poisson:3 => --best-of poisson:3 contradicts --solve rounds
calibrate --eps 8 --rounds 9 --noise 1 --solve q --best-of poisson:3 => --best-of poisson:3 contradicts --solve q
calibrate --eps 8 --rounds 20 --q 0.1 --separation 5 => --separation 5 needs --correlated
calibrate --eps 8 --rounds 20 --correlated square-root => --correlated needs --separation
calibrate --eps 8 --rounds 20 --correlated square-rot --separation 5 => Did you mean square-root?
calibrate --eps 8 --rounds 20 --correlated square-root --separation x => --separation is 'x' | not a number
calibrate --eps 8 --rounds 20 --correlated square-root --separation 5 --bands 21 => --bands is 21; | 1 to 20
calibrate --eps 8 --rounds 20 --q 0.1 --participations 2 => --participations 2 needs --correlated
calibrate --eps 8 --rounds 20 --correlated square-root --separation 5 --participations 9 => --participations is 9; | at most 4
calibrate --eps 8 --rounds 20 --correlated independent --separation 5 --bands 2 => --bands is 2; | takes no
calibrate --eps 8 --rounds 20 --correlated square-root --separation 5 --bands 6 --q 0.1 => bands is 6; | 5 groups
calibrate --eps 8 --rounds 20 --correlated square-root --separation 5 --cohort 3 --clients 20 => --cohort 3 contradicts --correlated square-root
calibrate --eps 8 --noise 2 --correlated square-root --separation 5 --solve rounds => --correlated square-root contradicts --solve rounds
calibrate --eps 8 --rounds 3 --q 0.1 --solve nois => Did you mean noise?
calibrate --eps 8 --rounds 300 --q 10 => --q is 10; | Did you mean 0.1 (10 %)?
calibrate --eps 0 --rounds 3 --q 0.1 => --eps is 0; | above 0
calibrate --rounds 3 --q 0.1 => --eps is missing; | above 0
calibrate --eps 8 --q 0.1 => --rounds is missing; | whole number from 1
calibrate --eps 8 --rounds 3 => --q is missing; | --cohort | --sampling full
calibrate --eps 8 --rounds 3 --q 0.1 --delta 1 => --delta is 1; | (0, 1)
calibrate --eps 8 --rounds 3 --q 0.1 --solve eps => --solve is 'eps'; | noise, rounds, q
calibrate --rounds 3 --q 0.1 --by-theorem => --by-theorem needs --eps
calibrate --eps 8 --solve q --rounds 3 --noise 1 --by-theorem => --by-theorem needs --eps
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --best-of poisson:10 => --best-of contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --one-sample 0.5 => --one-sample contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --adjacency zero-out => --adjacency contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --laplace 3 => --laplace contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --records 3 => --records contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --separation 3 => --separation contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --fixed x.toml => --fixed contradicts --by-theorem
calibrate --eps 6 --delta 1e-3 --rounds 30 --q 0.05 --by-theorem --accountant rdp => --accountant contradicts --by-theorem
calibrate --eps 8 --rounds 3 --q 0.1 --noise 1 => --noise 1 contradicts --solve noise
calibrate --eps 8 --rounds 3 --noise 1 --q 1 --solve rounds => --rounds 3 | --solve r
calibrate --eps 8 --noise 1 --rounds 3 --cohort 3 --clients 9 --solve q => --cohort 3
calibrate --eps 8 --noise 1 --rounds 3 --solve q --sampling full => --sampling full
calibrate --eps 8 --noise 1 --rounds 3 --solve q --sampling uniform => --clients
calibrate --eps 8 --schedule x.toml --solve q => --solve q | --schedule x.toml
calibrate --eps 8 --fixed x.toml --rounds 9 --q 0.1 => --fixed is 'x.toml'; | read
calibrate --eps 8 --noise 1 --laplace 0.1 --solve q => --laplace 0.1 | --solve q
calibrate --zzz 8 => --zzz is not an option of dpacct calibrate. dpacct calib
calibrate --eps => --eps needs a value.
calibrate --eps --rounds 3 => --eps needs a value; --rounds is an option.
calibrate --eps 8 --eps 9 => --eps 9 contradicts --eps 8.
calibrate --eps 3 --noise 1 --epochs 20 --solve rounds => (it is the value to solve for
calibrate --eps 3 --noise 1 --epochs 20 --solve q => (their rounds depend on the rate)
calibrate --advantage 2 --rounds 3 --q 0.1 => --advantage is 2; | (0, 1)
calibrate --tpr 0.1 --rounds 3 --q 0.1 => --fpr is missing; | (0, 1)
calibrate --tpr 0.1 --fpr 0.2 --rounds 3 --q 0.1 => --tpr is 0.1; | (0.2, 1)
calibrate --eps 8 --advantage 0.1 --rounds 3 => --advantage 0.1 contradicts --eps 8
calibrate --fpr 0.1 --rounds 3 --q 0.1 => --fpr 0.1 needs --tpr
epsilon --noise 1 --epochs 0 --steps 5 => --epochs is 0; the number of epochs is
epsilon --noise 1 --sampling allocation --steps 0 => --steps is 0; the number of steps
epsilon --noise 1 --rounds 3 --q 0.1 --records x => --records is 'x', which is not a
epsilon --noise 1 --rounds 3 --q 0.1 --sampling posson => Did you mean poisson?
epsilon --noise 1 --rounds 3 --q 0.1 --adjacency add_remove => Did you mean add-remove?
epsilon --noise 1 --rounds 3 --q 0.1 --accountant closed => Did you mean closed-form?
epsilon --noise 0 --rounds 3 --q 0.1 => --noise is 0; | lies in [
epsilon --noise 1 --q 0.1 => --rounds is missing; | whole number
epsilon --noise 1 --rounds 3 --sampling full --q 1 => --q 1 contradicts --sampling full
epsilon --noise 1 --sampling allocation --steps 5 --cohort 3 => --cohort 3 needs --clients
epsilon --noise 1 --rounds 3 --q 0.1 --max-cohort 9 => --max-cohort 9 needs --clients.
epsilon --noise 1 --rounds 3 --q 0.1 --passes 9 => --passes 9 needs --sampling allocation.
epsilon --noise 1 --rounds 3 --q 0.1 --times 2 => --times 2 needs --release or --lap
epsilon --laplace 0.1 --q 0.1 => --q 0.1 contradicts --laplace 0.1 (it says what runs)
epsilon --release laplace:epsilon=-1 => --release: epsilon is -1; | lies in [
epsilon --release laplce:epsilon=1 => --release: mechanism is 'laplce'; | laplace
epsilon --release zcdp:rho=1,q=2 => --release is 'zcdp:rho=1,q=2'; the key 'q' is not one of | rho
epsilon --noise 1 --rounds 3 --sampling uniform => --q is missing | --cohort with
epsilon --noise 1 --rounds 3 --cohort 30 --clients 9 => --cohort is 30; | clients (9)
epsilon --noise 1 --rounds 3 --cohort 3 => --cohort 3 | --clients
epsilon --noise 1 --rounds 3 --q 0.1 --cohort 3 --clients 9 => --q 0.1 | --cohort 3
epsilon --noise 1 --rounds 3 --q 0.05 --clients 50 --sampling uniform => --q is 0.05; | --clients 50 | 2.5 | --cohort 3
epsilon --noise 1 --rounds 3 --q 0.1 --claim 8 -q => --claim 8 contradicts -q | verdict
epsilon --schedule nowhere.toml => --schedule is 'nowhere.toml'; | read
epsilon --schedule rounds.txt => --schedule is 'rounds.txt'; | .toml
epsilon --json=3 => --json takes no value.
epsilon -q --json => -q contradicts --json.
epsilon --noise 1 --sampling allocation --epochs 3 => allocation needs --steps
epsilon --noise 1 --sampling allocation --steps 10 --rounds 30 => say how long
epsilon --noise 1 --sampling allocation --steps 10 --adjacency replace-one => zero-out or add-remove
epsilon --noise 1 --sampling shuffle --steps 10 --adjacency add-remove => Choose zero-out
epsilon --noise 1 --sampling shuffle --steps 9 --examples 100 --batch 10 => they take 10 steps
epsilon --noise 1 --steps 10 --q 0.1 --rounds 10 => allocation or shuffle
epsilon --noise 1 --records 3 --q 0.1 --rounds 3 --adjacency replace-one => Choose add-remove
epsilon --noise 1 --examples 50000 --batch 256 --epochs 20 --rounds 3 => --epochs 20 contradicts --rounds 3 (both say how long)
epsilon --noise 1 --batch 256 --epochs 20 => --batch 256 needs --examples, the popul
epsilon --noise 1 --examples 50000 --epochs 20 => Give it, or --batch with --examples
epsilon --noise 1 --examples 10 --batch 20 --epochs 2 => as there are examples (10)
epsilon --noise 1 --q 0.1 --epochs 1e12 => is 10000000000000; the number of rounds is
epsilon --noise 1 --examples 50000 --batch 256 --epochs 20 --q 0.1 => --q 0.1 contradicts --batch 256 (both set the rate)
epsilon --noise 1 --examples 50000 --batch 256 --epochs 20 --clients 7 => --clients 7 contradicts --examples 50000
epsilon --noise 1 --examples 50000 --batch 256 --epochs 20 --cohort 7 => --cohort 7 contradicts --batch 256
epsilon --schedule '' => --schedule is empty; it takes FILE.
epsilon --from '' => --from is empty;
epsilon --noise 1 --rounds 3 --q 0.1 -o '' => -o is not an option
epsilon --noise 1 --rounds 3 --q 0.1 --claim 0 => --claim is 0; a stated epsilon
risk --eps 8 --rounds 3 --q 0.1 --sampling uniform --records 3 => --records 3 contradicts --sampling uniform (it belongs to --sampling poisson)
risk --eps 8 --clients 9 => --clients 9 changes nothing
risk --noise 1 --rounds 3 --q 0.1 --fpr 0 => --fpr is 0; | (0, 1)
risk --noise 1 --rounds 3 --q 0.1 --fpr 0.1,,0.2 => which is not a number; | (0, 1)
risk --noise 1 --rounds 3 --q 0.1 --prior 1 => --prior is 1; | (0, 1)
risk --noise 1 --rounds 3 --q 0.1 --delta 1e-6 => --delta 1e-6 needs --eps
rdp --noise 1 --q 0.1 --examples 9 => --examples 9 changes nothing | --batch
rdp --noise 1 --q 0.1 --orders 1 => --orders is 1; | (1,
rdp --noise 1 --q 0.1 --orders 2,,3 => --orders is '2,,3', which is not a number;
delta --noise 1 --rounds 3 --q 0.1 => --eps is missing; | at least 0
--zzz => --zzz is not an option of dpacct.
train --clip 1 --clip-norm 2 => --clip-norm 2 contradicts --clip 1.
train dp-fedavg --data '' => --data is empty; give it a value
train dp-fedavg --schema no.toml => --schema is 'no.toml'; it cannot be read
train dp-fedsam --set rho=1 --set rho=2 => --set rho=2 contradicts --set rho=1.
report --noise 1 --rounds 3 --q 0.1 -o '' => -o is empty;
report --noise 1 --rounds 3 --q 0.1 -o no/x.html => -o is 'no/x.html' | no folder no.
report nowhere => FILE is 'nowhere'; | no such file
report census.ledger --noise 1 => --noise 1 contradicts census.ledger
report census.ledger -o a.doc => -o is 'a.doc'; | .html | --format
report census.ledger --format doc => --format is 'doc'; | html, pdf, md, json
report census.ledger --format pdf => a PDF goes to a file
report census.ledger --json --format md => --format md contradicts --json
report census.ledger -o census.ledger --format md => it is a ledger
ledger show . => FILE is '.'; it is a folder
ledger show nowhere => FILE is 'nowhere' | no such file
ledger show text.md => text.md | not a ledger
ledger show LONG => FILE is 'xxx | no such file
[1] ledger init LONG --eps 3 => no ledger can be opened | too long
ledger export census.ledger -o LONG => -o is 'xxx | too long
ledger init x => --eps is missing
ledger init x --eps 1 --adjacency y => --adjacency is 'y' | replace-one
ledger init nowhere/x --eps 1 => nowhere | no such folder
ledger report census.ledger -o page.txt => -o is 'page.txt' | .html
ledger remaining census.ledger --noise 1 --q 0.1 --adjacency replace-one => --adjacency is 'replace-one' | add-remove
ledger verify census.ledger --head 00 => --head is '00'; | 64 hexadecimal digits
[1] ledger verify census.ledger --head ZEROS => 0 is not in the chain
ledger show census.ledger --json -q => -q | --json
[1] ledger charge census.ledger --noise 9 --rounds 1e6 --q 0.1 => the plan of 1,000,000 rounds does not fit
ledger charge census.ledger --noise 9 --rounds 1 --q 0.1 --name ' ' => --name is ' '
ledger charge census.ledger --noise 9 --rounds 1 --q 0.1 --adjacency replace-one => --adjacency is 'replace-one' | add-remove
ledger charge census.ledger --laplace 0.1,scale=9 => 0.1,scale=9
ledger charge census.ledger --laplace 1 --release x => --release x contradicts --laplace 1
ledger finish census.ledger => --run is missing
ledger finish census.ledger --run 2 => --run is 2 | runs are 1 to 1
audit dp-fedavg --canaries x => --canaries is 'x', which is not a number;
plot eps --noise 1, --rounds 3 --q 0.1 => which is not a number; a noise multipl
plot delta --orders 2 => --orders is not an option of dpacct plot delta.
plot eps --noise 1 --rounds 30 --q 0.1 -o a.gif => -o is 'a.gif'; a picture ends in .png, .svg, .pdf
plot eps --noise 1,x --rounds 3 --q 0.1 => --noise is 'x', which is not a number
plot eps --noise 1,2,3,4,5,6,7 --rounds 3 --q 0.1 => that is 7 settings, and a picture
plot eps --noise 1 --rounds 3 --q 0.1 --accountant tigt => --accountant is 'tigt'
plot tradeoff --noise 1 --rounds 30 --q 0.1 --fpr 2 => --fpr is 2; a false positive rate lies in
plot ledger none.ledger => FILE is 'none.ledger'; there is no such file
plot train none.jsonl => FILE is 'none.jsonl'; it cannot be read
plot tradeof => Did you mean dpacct plot tradeoff?
explore --noise 1,0 --rounds 9 --q 0.1 => --noise is 0; | lies in [
explore --noise 1 --rounds 9,2.5 --q 0.1 => --rounds is 2.5; | whole number
explore --noise 1 --rounds 9 --q 0.1, => --q is '0.1,', which is not a number
explore --noise 2..1 --rounds 9 --q 0.1 => --noise is '2..1'; a range goes up:
explore --noise 1 --rounds 9 --q 0.1 -o a.txt => -o is 'a.txt'; | .csv | .png
explore --noise 1 --rounds 9 --q 0.1 -o a.png => 1 to 8 curves | 1 of 1. | .csv
explore --noise 1..9 --rounds 1..9 --q 0.1,0.2 -o a.png => 1 to 8 curves | 18 of 9.
explore --noise 1 --rounds 9 --q 0.1 -o a.csv --json => --json contradicts -o a.csv
explore --noise 1..100 --rounds 1..2000 --q 0.1 => 200,000 rows | at most 100,000
claims check => FILE is missing
claims check none.toml => FILE is 'none.toml'; it cannot be read
"""  # noqa: E501 - a row is a line
ROWS = [row.partition(" => ")[::2] for row in REFUSED.strip().splitlines()]

# A value that is no number, what it is called, and what was meant.
NO_NUMBERS = [
    ("--noise", "1,5", "'1,5', which is not a number",
     "Did you mean 1.5? Decimals follow a point."),
    ("--noise", "", "'', which is not a number", "[0.001, 1e+10]."),
    ("--noise", "one", "'one', which is not a number", "[0.001, 1e+10]."),
    ("--noise", "10%", "'10%', which is not a number", "[0.001, 1e+10]."),
    ("--q", "10%", "'10%', which is not a number", "Did you mean 0.1 (10 %)?"),
    ("--q", "12,5 %", "'12,5 %', which is not a number", "(0, 1]."),
    ("--rounds", "1,000", "'1,000', which is not a number", "a whole number from 1 to 1e+12."),
    ("--noise", "1\x1b[31m", "'1\\x1b[31m', which is not a number", "[0.001, 1e+10]."),
    ("--noise", 100 * "x", "'xxxxxxxxxxxxxxxxxxxx'... (100 characters), which is not", "1e+10]."),
    # Numbers, as they were typed.
    ("--noise", "1e-4", "1e-4;", "[0.001, 1e+10]."),
    ("--noise", "-0", "-0;", "[0.001, 1e+10]."),
    ("--noise", "nan", "nan;", "[0.001, 1e+10]."),
    ("--noise", "Infinity", "Infinity;", "[0.001, 1e+10]."),
    ("--q", "٣", "٣;", "Did you mean 0.03 (3 %)?"),
    ("--rounds", 10**5 * "9", "99999999999999999999... (100000 characters)", "to 1e+12."),
    ("--noise", "1e999", "1e999;", "1e+10]."),
    ("--q", "1e-400", "1e-400;", "(0, 1]."),
    ("--q", "0e5", "0e5;", "(0, 1]."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "text", "called", "end"),
    NO_NUMBERS,
    ids=[f"{o}={t[:9]!a}" for o, t, *_ in NO_NUMBERS],
)
def test_a_value_is_called_what_it_is(option: str, text: str, called: str, end: str) -> None:
    given = {"--noise": "1", "--rounds": "3", "--q": "0.1"} | {option: text}
    ran = Ran(["epsilon", *(word for pair in given.items() for word in pair)])
    assert_refused(ran, f"dpacct: {option} is {called}")
    assert ran.err.endswith(f"{end}\n")


# What is typed for an option or a command that does not exist, and what is suggested.
MEANT = [
    ("calibrate --sampling_rate 0.1", "Did you mean --q?"),
    ("calibrate --sampling-rate=0.1", "Did you mean --q?"),
    ("calibrate --epsilon 8", "Did you mean --eps?"),
    ("calibrate --Eps 8", "Did you mean --eps?"),
    ("calibrate -eps 8", "-eps is not an option of dpacct calibrate. Did you mean --eps?"),
    ("epsilon --noise_multiplier 1", "Did you mean --noise?"),
    ("epsilon --sigma 1", "Did you mean --noise?"),
    ("epsilon --iterations 9", "Did you mean --rounds?"),
    ("epsilon --num-epochs 9", "Did you mean --epochs?"),
    ("epsilon --num_clients 9", "Did you mean --clients?"),
    ("train dp-fedavg --epochs 9", "--local-epochs are a client's own"),
    ("train dp-fedavg --clipping 9", "Did you mean --clip-norm?"),
    ("rdp --alphas 9", "Did you mean --orders?"),
    ("ledger verfy", "Did you mean dpacct ledger verify?"),
    ("plot epsilon", "Did you mean dpacct plot eps?"),
    ("plot traedoff", "Did you mean dpacct plot tradeoff?"),
    # Nothing is near.
    ("zebra", "'zebra' is not a command of dpacct. dpacct --help lists all commands."),
    ("ledger zebra", "of dpacct ledger. dpacct ledger --help lists all commands."),
    ("calibrate 8", "'8' stands where dpacct calibrate expects an option."),
    ("ledger show a b", "'b' stands where dpacct ledger show expects an option."),
    ("risk --orders 8", "--orders is not an option of dpacct risk. dpacct risk --help lists"),
    ("--eps 8", "--eps is not an option of dpacct. dpacct --help lists all options."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "part"), MEANT, ids=[words for words, _ in MEANT])
def test_what_no_command_knows_is_a_synonym_or_none(dpacct: Any, words: str, part: str) -> None:
    ran = dpacct(words)
    assert_refused(ran, part)
    assert ran.err.count("?") == part.count("?")


def test_every_synonym_leads_to_an_option_that_exists() -> None:
    loaded = {name: load(name, entry) for name, entry in ENTRIES.items()}
    groups = {name: loaded.pop(name).commands for name in ("ledger", "claims", "plot")}
    commands = [*loaded.values(), *groups["ledger"].values()]
    known = {name for command in commands for param in command.params for name in param.opts}
    assert {*errors.MEANINGS.values()} <= known


def test_no_screen_is_written_on_by_what_was_typed(dpacct: Any) -> None:
    for words in (
        "$'calibrate' '--eps' '\x1b[2J'",
        "'cali\x1b[2Jbrate'",
        "calibrate '--e\x1b[2J' 8",
        "calibrate '\x1b[2J'",
        "epsilon --noise 1 --rounds 3 --cohort '3' --q '0.1\x0b' --clients 9",
        "epsilon --noise 1 --rounds 3 --q 0.1 --accountant '\u202etight'",
        "epsilon --schedule '\x1b[2J.toml'",
    ):
        assert_refused(dpacct(words))
        assert dpacct(words).err[:-1].isprintable()


def assert_refused(result: Any, *parts: str, code: int = 2) -> None:
    assert result.code == code, result.out + result.err
    assert result.out == "" or code == 1
    assert result.err.startswith("dpacct: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for part in parts:
        assert part in result.err


@pytest.fixture
def ledger_and_text(folder: Path) -> None:
    with Ledger.open("census.ledger", Budget(8, 1e-5)) as ledger:
        ledger.start_run("training").reserve(Round(1.3, Poisson(0.1))).commit()
    (folder / "text.md").write_text("# a text\n", encoding="utf-8")


@pytest.mark.usefixtures("ledger_and_text")
@pytest.mark.parametrize(("words", "parts"), ROWS, ids=[words[:60] for words, _ in ROWS])
def test_one_line_names_option_value_and_range(dpacct: Any, words: str, parts: str) -> None:
    code, before = 1 if words.startswith("[1]") else 2, sorted(Path().iterdir())
    words = words.removeprefix("[1] ").replace("LONG", 300 * "x").replace("ZEROS", 64 * "0")
    assert_refused(dpacct(words), *parts.split(" | "), code=code)
    assert sorted(Path().iterdir()) == before


def test_bad_schedule_file(dpacct: Any, folder: Path) -> None:
    (folder / "bad.toml").write_text("[[phase]]\nrounds = 3\nnoise = 1\n", encoding="utf-8")
    for words in ("epsilon", "calibrate --eps 8", "rdp", "compare"):
        ran = dpacct(words, "--schedule bad.toml")
        assert_refused(ran, "--schedule is 'bad.toml'; in phase 1 the key 'noise'")


def test_line_breaks_in_values_stay_in_the_line(dpacct: Any) -> None:
    assert_refused(dpacct("calibrate --eps '8\n9' --rounds 3"), "--eps is '8\\n9'")
    assert_refused(dpacct("calibrate '--e\np' 8"))
    assert_refused(dpacct("'cali\nbrate'"))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--noise 1 --rounds 3 --q 0.1", "gdp"),
        ("--noise 0.5 --rounds 3 --q 0.5", "closed-form"),
        ("--noise 1 --rounds 3 --q 0.1 --records 3", "closed-form"),
        ("--noise 1 --sampling allocation --steps 5", "closed-form"),
    ],
)
def test_an_accountant_that_does_not_fit_is_bad_input(dpacct: Any, words: str, name: str) -> None:
    refused = dpacct(f"epsilon {words} --accountant {name}")
    assert_refused(refused, f"--accountant is '{name}'", "Use tight")


def test_reserved_names_of_ledgers_are_bad_input(dpacct: Any) -> None:
    refused = dpacct("ledger init x.ledger.witness --eps 3")
    assert_refused(refused, "are reserved", "Choose another name, e.g. x.ledger")


def test_installed_entry_point_behaves_likewise() -> None:
    words = ["calibrate", "--eps", "8", "--rounds", "3", "--q", "10"]
    ran = subprocess.run(
        [sys.executable, "-m", "dpacct_cli", *words], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    with pytest.raises(InvalidParameter) as refused:
        validate.sampling_rate(10)
    assert ran.stderr == f"dpacct: {refused.value.describe('--q')}\n"
