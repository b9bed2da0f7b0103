"""Attacks on models with and without privacy: ``python -m evidence.membership.play FOLDER``.

FOLDER holds MNIST. Run r draws 3600 training images with seed r and deals them out to 360 clients.
Of these, 60 train, drawn at random. An attack must not accuse the other clients. Without FOLDER
the tables, the CSV file and the picture are made from the recorded runs.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpacct import Poisson, calibrate, fl
from dpacct.accountant import find_accountant
from dpacct.empirical.roc import Roc
from dpacct.fl.attacks import Attacked, likelihood_attack, loss_attack
from dpacct.fl.data import load
from dpacct.fl.data.partitions import iid
from dpacct.fl.tensors import seed_generators
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import Accusations, accusations
from dpacct.rounds import Round, Schedule
from evidence.pages import add_into, home, markdown, put_tables
from evidence.records import Record, Records, Setting

PAGE, RUNS = "membership/README.md", "membership/runs.jsonl"
CSV, PICTURE = "membership/auc.csv", "membership/roc.png"
CLIENTS, MEMBERS, IMAGES = 360, 60, 10
ROUNDS, CLIP_NORM, REPEATS, SHADOWS = 30, 0.4, 4, 8
LR, EPOCHS = 0.5, 10
SAMPLING, DELTA = Poisson(0.5), MEMBERS**-1.1
# The name of each row: method, and the epsilon that its noise is calibrated to.
METHODS: dict[str, fl.Method] = {
    "non-private": fl.DPFedAvg(),
    "dp-fedavg": fl.DPFedAvg(),
    "dp-fed-ls": fl.DPFedLS(smoothing=1.0),
}
BUDGETS: dict[str, Sequence[float | None]] = {
    "non-private": (None,),
    "dp-fedavg": (8,),
    "dp-fed-ls": (8,),
}
# Non-private: noise and bound that no update notices.
LITTLE_NOISE, WIDE_BOUND = 1e-3, 100.0
GRID = tuple(round(float(rate), 5) for rate in np.geomspace(1e-3, 1.0, 61))
cross_entropy = nn.functional.cross_entropy


def settings() -> list[Setting]:
    """Return all runs."""
    return [
        {"method": method, "epsilon": epsilon, "run": run}
        for run in range(REPEATS)
        for method, budgets in BUDGETS.items()
        for epsilon in budgets
    ]


@lru_cache(maxsize=1)
def people(folder: str, run: int) -> tuple[list[fl.ClientData], list[fl.ClientData]]:
    """Return members and others of a run."""
    data = load("mnist", folder)
    order = np.random.default_rng(run).permutation(len(data.train))[: CLIENTS * IMAGES]
    images = data.train.inputs[torch.as_tensor(order)].float().div(255).reshape(-1, 784)
    targets = data.train.targets[torch.as_tensor(order)]
    deal = iid(len(order), CLIENTS, seed=run)
    # Exactly this number of members, which needs no protection here: the images are public.
    mixed = np.random.default_rng(run).permutation(CLIENTS)
    apart = CLIENTS - MEMBERS
    sides = [
        [fl.ClientData(images[deal[int(one)]], targets[deal[int(one)]]) for one in np.sort(some)]
        for some in (mixed[apart:], mixed[:apart])
    ]
    return sides[0], sides[1]


def noise(epsilon: float | None) -> float:
    """Return the noise multiplier of a row."""
    if epsilon is None:
        return LITTLE_NOISE
    found = calibrate(epsilon=epsilon, delta=DELTA, rounds=ROUNDS, sampling=SAMPLING)
    return found.noise_multiplier


def limit(epsilon: float) -> Accusations:
    """Return the proven limit of all attacks on a row."""
    plan: Schedule = ROUNDS * Round(noise(epsilon), SAMPLING)
    return accusations(Attacks(plan, find_accountant("tight")))


def blank() -> nn.Module:
    """Return logistic regression, weights at zero."""
    model = nn.Linear(784, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def fitted(clients: Sequence[fl.ClientData], number: int) -> nn.Module:
    """Return a shadow model: plain training on all its clients, for as long as a run's clients."""
    seed_generators(number, torch.device("cpu"))
    model = blank()
    inputs = torch.cat([data.tensor for data in clients])
    targets = torch.cat([data.targets for data in clients])
    weights = list(model.parameters())
    for _ in range(round(ROUNDS * SAMPLING.sampling_rate * EPOCHS)):
        order = torch.randperm(len(targets))
        for start in range(0, len(targets), 5 * IMAGES):
            rows = order[start : start + 5 * IMAGES]
            loss = cross_entropy(model(inputs[rows]), targets[rows])
            with torch.no_grad():
                for value, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    value.sub_(LR * slope)
    return model


def play(setting: Setting, folder: str) -> dict[str, Any]:
    """Return one run with both attacks."""
    members, others = people(folder, int(setting["run"] or 0))
    name, epsilon = str(setting["method"]), setting["epsilon"]
    target = None if epsilon is None else float(epsilon)
    model = blank()
    with fl.Federation(
        model,
        cross_entropy,
        members,
        method=METHODS[name],
        clip_norm=WIDE_BOUND if target is None else CLIP_NORM,
        sampling=SAMPLING,
        noise_multiplier=noise(target),
        delta=DELTA,
        rounds=ROUNDS,
        local=fl.SGD(lr=LR, epochs=EPOCHS, batch_size=IMAGES),
        vectorize=True,
    ) as run:
        run.run()
        spent = run.epsilon.upper
    found: dict[str, Any] = {"epsilon": spent}
    for side, data in (("train", members), ("held_out", others)):
        together = fl.ClientData(
            torch.cat([one.tensor for one in data]), torch.cat([one.targets for one in data])
        )
        accuracy = fl.evaluate(model, cross_entropy, together).accuracy
        found[f"{side}_accuracy"] = round(100 * accuracy, 2)
    found["loss"] = _told(loss_attack(model, cross_entropy, members, others))
    # Each shadow model, on three in four of their half, has as many clients as the model.
    some = others[: round(MEMBERS * 2 / 0.75)]
    shadowed = likelihood_attack(model, members, some, fitted, shadows=SHADOWS)
    found["likelihood"] = _told(shadowed)
    return found


def _told(attacked: Attacked) -> dict[str, Any]:
    return {"client": _figures(attacked.clients), "example": _figures(attacked.examples)}


def _figures(roc: Roc) -> dict[str, Any]:
    places = np.searchsorted(roc.fpr, np.asarray(GRID) * (1 + 1e-12), side="right") - 1
    return {
        "auc": [round(value, 5) for value in (roc.auc.value, roc.auc.lower, roc.auc.upper)],
        "advantage": round(roc.advantage.value, 5),
        "tpr_at_1e-2": round(roc.rates[0].tpr.value, 5),
        "tpr": [round(float(roc.tpr[place]), 5) for place in places],
    }


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page."""
    return {"auc": _auc_table(records), "rates": _rates_table(records)}


def rows(records: Records) -> list[tuple[str, float | None, list[Record]]]:
    """Return method, epsilon, and the runs of each row."""
    return [
        (method, epsilon, [r for r in records if r.matches(method=method, epsilon=epsilon)])
        for method, budgets in BUDGETS.items()
        for epsilon in budgets
    ]


def pooled(runs: Sequence[Record], attack: str, unit: str, name: str) -> list[float]:
    """Return one figure of all runs of a row, the value of an AUC."""
    found = [record.result[attack][unit][name] for record in runs]
    return [value[0] if isinstance(value, list) else value for value in found]


def _shown(values: Sequence[float]) -> str:
    """Return mean and its standard error over runs."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ±{error:.3f}"


def _auc_table(records: Records) -> str:
    lines: list[list[str]] = []
    for method, epsilon, runs in rows(records):
        first = runs[0].result["loss"]["client"]["auc"]
        lines.append(
            [
                f"`{method}`",
                "none" if epsilon is None else f"{epsilon:g}",
                *(
                    f"{statistics.mean(r.result[side] for r in runs):.1f}"
                    for side in ("train_accuracy", "held_out_accuracy")
                ),
                *(
                    _shown(pooled(runs, attack, unit, "auc"))
                    for attack in ("loss", "likelihood")
                    for unit in ("client", "example")
                ),
                f"[{first[1]:.2f}, {first[2]:.2f}]",
                "none" if epsilon is None else f"{limit(epsilon).auc:.3f}",
            ]
        )
    header = ["method", "epsilon", "accuracy, members", "others", "AUC: loss, client"]
    header += ["loss, example", "ratio, client", "ratio, example", "95 % of the first run's first"]
    return markdown([*header, "limit"], lines)


def _rates_table(records: Records) -> str:
    lines: list[list[str]] = []
    for method, epsilon, runs in rows(records):
        lines.append(
            [
                f"`{method}`",
                "none" if epsilon is None else f"{epsilon:g}",
                *(
                    _shown(pooled(runs, attack, unit, "tpr_at_1e-2"))
                    for attack in ("loss", "likelihood")
                    for unit in ("client", "example")
                ),
                "none" if epsilon is None else f"{limit(epsilon).tpr(0.01):.3f}",
            ]
        )
    header = ["method", "epsilon", "TPR at FPR 0.01: loss, client", "loss, example"]
    return markdown([*header, "ratio, client", "ratio, example", "limit"], lines)


def write_csv(path: Path, records: Records) -> None:
    """Write every AUC with its interval, one a line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["method", "epsilon", "run", "attack", "unit", "auc", "lower", "upper"])
        for record in records:
            own = record.setting
            for attack in ("loss", "likelihood"):
                for unit in ("client", "example"):
                    auc = record.result[attack][unit]["auc"]
                    epsilon = "" if own["epsilon"] is None else own["epsilon"]
                    lines.writerow([own["method"], epsilon, own["run"], attack, unit, *auc])


def main() -> None:
    """Run the missing settings, then write tables, CSV and picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="with MNIST")
    add_into(parser)
    typed = parser.parse_args()
    place = home(typed.into, PAGE)
    records = Records(place / RUNS)
    if typed.folder is not None:
        records.need(settings(), lambda setting: play(setting, typed.folder))
    put_tables(place / PAGE, tables(records))
    write_csv(place / CSV, records)
    from evidence.membership.picture import draw  # noqa: PLC0415 - needs matplotlib

    draw(place / PICTURE, records)


if __name__ == "__main__":
    main()
