"""Settings that papers print: bounds, local optimizers, precision, and several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import dpacct as library
from dpacct import fl
from dpacct_cli.train.job import LOCAL, build_job
from dpacct_cli.train.options import OPTIMIZERS, PRECISIONS
from dpacct_cli.train.settings import check_unchanged, combine

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

RUN = "train dp-fedavg --rounds 3 --clients 40 --q 0.5 --local-epochs 1 --noise 1.5"


@pytest.mark.parametrize(
    ("typed", "bound", "local"),
    [
        ({}, fl.Clip(1), {}),
        ({"clip_norm": "0.5,2"}, fl.PerLayerClip((0.5, 2.0)), {}),
        ({"adaptive_clip": "0.3", "clip_norm": "2"}, fl.AdaptiveClip(2, 0.3), {}),
        ({"momentum": "0.3", "precision": "bfloat16"}, fl.Clip(1),
         {"momentum": 0.3, "precision": "bfloat16"}),
        ({"max_grad_norm": "3"}, fl.Clip(1), {"max_grad_norm": 3.0}),
        ({"local_optimizer": "adam"}, fl.Clip(1), {"lr": fl.LocalAdam().lr}),
        ({"local_optimizer": "adam", "local_lr": "0.1"}, fl.Clip(1), {"lr": 0.1}),
    ],
)  # fmt: skip
def test_options_are_the_arguments_of_the_library(typed, bound, local):
    settings = combine("dp-fedavg", typed)
    found = build_job(settings).keywords
    assert found["bound"] == bound
    assert type(found["local"]) is LOCAL[typed.get("local_optimizer", "sgd")]
    for name, value in local.items():
        assert getattr(found["local"], name) == value
    check_unchanged(settings, settings)
    assert (tuple(LOCAL), PRECISIONS[0]) == (OPTIMIZERS, fl.SGD().precision)


def test_an_adaptive_norm_is_printed_at_its_ends_and_charged_within_the_noise(dpacct):
    words = f"{RUN.replace('40', '60')} --hold-out 0.3 --adaptive-clip 0.5 --clip-norm 8"
    data = dpacct(words, "--json").json
    assert data["bound"].startswith("AdaptiveClip(clip_norm=8.0, quantile=0.5")
    assert data["clip_norm"] < 8
    plan = 3 * library.Round(1.5, library.Poisson(0.5), "zero-out")
    spent = library.epsilon(plan, delta=1e-5)
    assert data["epsilon"]["upper"] == pytest.approx(spent.upper, rel=1e-9)
    [*_, last] = Path(data["report"]).read_text(encoding="utf-8").splitlines()
    assert json.loads(last)["noise_std"] > 1.5 * json.loads(last)["clip_norm"]
    text = dpacct(words).text
    assert "clip norm          8 to " in text
    assert "what the clip norm learns" in text
    assert dpacct("attack dp-fedavg-digits.checkpoint").code == 0


def test_a_stopped_run_keeps_its_list_of_norms():
    saved = combine("dp-fedavg", {"clip_norm": "0.5,2"})
    check_unchanged(saved, combine("dp-fedavg", {"clip_norm": "0.5,2"}))
    with pytest.raises(library.DpacctError, match="contradicts --resume"):
        check_unchanged(saved, combine("dp-fedavg", {"clip_norm": "0.5,3"}))


def test_a_method_with_a_bound_of_its_own_takes_no_other(dpacct):
    for words in ("--clip-norm 1", "--adaptive-clip 0.5"):
        ran = dpacct(f"train fed-alpha-normec {words}")
        assert ran.code == 2
        assert "SmoothedNormalization bounds the updates already" in ran.err


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_the_first_one_writes(dpacct):
    words = f"{RUN} --seed 3 --vectorize no --json"
    one = dpacct(words, "--ledger one.ledger").json
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    line = [
        *torchrun,
        "-m",
        "dpacct_cli",
        *words.split(),
        "--distributed",
        "--ledger",
        "two.ledger",
    ]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    two = json.loads(ran.stdout)
    for key in ("rounds", "test_accuracy", "epsilon", "clip_norm"):
        assert one[key] == two[key]
    assert len(Path("two.report.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    assert dpacct("ledger show two.ledger --json").json["rounds"] == 3
