"""Methods as their authors print them: by hand, and never with a finite epsilon."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpacct import Budget, fl
from dpacct.correlated import square_root
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.methods.protocol import Cohort
from dpacct.ledger import Ledger
from tests.fl.problems import (
    cross_entropy,
    federation,
    flat,
    goes_on,
    make_clients,
    perceptron,
    play,
)

# Clients of different sizes, so that the norms of their updates differ.
CLIENTS = make_clients((9, 4, 2, 7, 5, 8))
LOCAL = fl.SGD(lr=0.5, epochs=2, batch_size=3)
FORMS: dict[str, Any] = {
    "dp-fedpgn": fl.DPFedPGN(rho=0.1, beta=0.5, as_printed=True),
    "dp-fedpgn-ls": fl.DPFedPGNLS(rho=0.1, beta=0.5, smoothing=0.1, as_printed=True),
    "dp-fedsam-topk": fl.DPFedSAMTopK(rho=0.1, fraction=0.4, as_printed=True),
    "fed-smp-topk": fl.FedSMPTopK(fraction=0.4, as_printed=True),
    "dp-fed-ls": fl.DPFedLS(smoothing=0.5, as_printed=True),
    "fed-alpha-normec": fl.FedAlphaNormEC(alpha=0.1, beta=0.3, as_printed=True),
    "alpha-normec": fl.AlphaNormEC(alpha=0.1, beta=0.3, as_printed=True),
}
each = pytest.mark.parametrize("method", FORMS.values(), ids=FORMS)


def largest(row: np.ndarray, sizes, share: float) -> np.ndarray:
    """The largest coordinates of each tensor of a row."""
    parts, start = [], 0
    for size in sizes:
        part = row[start : start + size]
        least = np.sort(np.abs(part))[-math.ceil(share * size)]
        parts.append(np.where(np.abs(part) >= least, part, 0.0))
        start += size
    return np.concatenate(parts)


def by_hand(name: str, rows, norms, std: float, clip: float, size: float, sizes, draws):
    """The mean as the paper prints it, from bounded rows, raw norms and standard normal draws."""
    count, width = rows.shape
    if name.startswith("dp-fedpgn"):
        # Each update clipped to the median of all norms, then noise of z times that median.
        median = float(np.median(norms))
        raw = rows * (norms / np.linalg.norm(rows, axis=1))[:, None]
        clipped = [row * min(1.0, median / norm) for row, norm in zip(raw, norms, strict=True)]
        return (np.sum(clipped, axis=0) + std / clip * median * draws[:width]) / size
    if "topk" in name:
        # Each client adds N(0, z^2 C^2 / m) and keeps the largest coordinates of the result.
        noise = draws[: count * width].reshape(count, width) * std / math.sqrt(size)
        kept = [largest(row, sizes, 0.4) for row in rows + noise]
        return np.sum(kept, axis=0) / size
    if name == "dp-fed-ls":
        return (rows.sum(axis=0) + std * draws[:width]) / count
    return (rows.sum(axis=0) + math.sqrt(count) * std * draws[:width]) / size


def cohort(count: int = 5, seed: int = 3) -> tuple[Cohort, np.ndarray]:
    generator = np.random.default_rng(seed)
    raw = generator.normal(size=(count, 11)) * np.linspace(0.1, 2.0, count)[:, None]
    norms = np.linalg.norm(raw, axis=1)
    rows = raw * np.minimum(1.0, 0.7 / np.maximum(norms, 1e-9))[:, None]
    draws = generator.normal(size=1000)
    given = torch.tensor(rows), torch.tensor(norms), 0.9 * 0.7, 0.7, 4.0, (8, 3)
    return Cohort(*given, lambda n: torch.tensor(draws[:n])), draws


@each
@pytest.mark.parametrize("count", [1, 4, 5])
def test_a_release_is_that_of_the_paper(method, count):
    given, draws = cohort(count)
    total, std = method.published(given)
    rows, norms = given.rows.numpy(), given.norms.numpy()
    known = given.std, given.clip_norm, given.size, given.sizes, draws
    expected = by_hand(method.name, rows, norms, *known)
    assert (total / given.size).numpy() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    # The noise that is said is that which a round of zeros has, where none is thinned out.
    if "topk" not in method.name and "pgn" not in method.name:
        zeros = torch.zeros_like(given.rows)
        ones = replace(given, rows=zeros, normals=lambda n: torch.ones(n).double())
        noise, _ = method.published(ones)
        assert noise.numpy() == pytest.approx(std)


@each
def test_nobody_came(method):
    given, _ = cohort(0)
    total, std = method.published(given)
    assert bool(total.isfinite().all())
    # No noise covers an empty cohort, which is one reason why these forms are not private.
    assert float(total.abs().sum()) == std == 0


def collected(run, draw=None):
    run.prepare()
    draw = run.engine.draw() if draw is None else draw
    return run.collect(draw), draw


@each
@pytest.mark.parametrize("sampling", [fl.Poisson(0.6), fl.Uniform(4, 6)], ids=repr)
def test_a_round_of_the_engine_is_that_release(method, sampling):
    """Of the bounded rows of its members, without noise."""
    options = {"method": method, "sampling": sampling, "noise_multiplier": 0, "local": LOCAL}
    options |= {} if method.bound is not None else {"clip_norm": 0.3}
    with federation(perceptron(), CLIENTS, seed=4, **options) as run:
        found, draw = collected(run)
        assert len(draw.members) > 1
        release = run.engine.release(run.state, found)
    rows, norms = torch.cat(found.rows).numpy(), torch.cat(found.norms).numpy()
    assert len(rows) == len(draw.members)
    clip, size = run.bound.clip_norm, run.engine.plan.cohort_size
    sizes, draws = run.engine.layout.sizes, np.zeros(10**4)
    expected = by_hand(method.name, rows, norms, 0.0, clip, size, sizes, draws)
    assert release.mean.vector.numpy() == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_the_median_is_that_of_the_raw_norms():
    """A tiny clip norm has bounded every row, and the printed release undoes that."""
    vectors = []
    for clip in (1e-3, 1e3):
        options = {"method": FORMS["dp-fedpgn"], "clip_norm": clip, "local": LOCAL, "seed": 4}
        with federation(perceptron(), CLIENTS, noise_multiplier=0, **options) as run:
            run.run()
            vectors.append(flat(run.model))
    assert torch.allclose(*vectors, atol=1e-5)
    assert not torch.equal(vectors[0], flat(perceptron()))


def test_the_printed_noise_is_drawn():
    """A round of zeros is noise alone, of the standard deviation that the report says."""
    nobody = [fl.ClientData(d.inputs[:0], d.targets[:0]) for d in CLIENTS]
    for name, factor in (("dp-fed-ls", 1.0), ("fed-alpha-normec", math.sqrt(6))):
        method = FORMS[name]
        if name == "dp-fed-ls":
            method = fl.DPFedLS(smoothing=0, as_printed=True)
        model = torch.nn.Linear(100, 100)
        options = {} if method.bound is not None else {"clip_norm": 0.5}
        example = fl.ClientData(torch.randn(3, 100), torch.randint(100, (3,)))
        with federation(model, nobody, method=method, example=example, rounds=1, **options) as run:
            found, _ = collected(run, run.engine.draw_for(range(6)))
            release = run.engine.release(run.state, found)
            std = factor * run.bound.clip_norm / 6
            assert release.mean.std == pytest.approx(std, rel=1e-9)
            assert float(release.mean.vector.std()) == pytest.approx(std, rel=0.05)
            if name == "fed-alpha-normec":
                assert run.run().noise_std == pytest.approx(6 * std, rel=1e-9)


def test_parts_of_a_round_are_the_whole():
    for method in (FORMS["dp-fedpgn"], FORMS["fed-smp-topk"]):
        options = {"method": method, "noise_multiplier": 0, "clip_norm": 0.3, "seed": 4}
        with federation(perceptron(), CLIENTS, **options) as run:
            whole, draw = collected(run)
            first, second = (run.collect(draw.share(part, 2)) for part in range(2))
            first.merge(second)
            releases = [run.engine.release(run.state, some).mean.vector for some in (whole, first)]
        assert torch.allclose(*releases, atol=1e-7)


@each
def test_epsilon_is_infinite_with_the_reason(method, tmp_path):
    path = tmp_path / "run.ledger"
    options = {"method": method, "rounds": 2, "ledger": path, "noise_multiplier": None}
    options |= {} if method.bound is not None else {"clip_norm": 0.3}
    with federation(perceptron(), CLIENTS, budget=Budget(8, 1e-5), **options) as run:
        assert run.noise_multiplier > 0
        report = play(run, 2)
        assert run.planned_epsilon.upper == run.epsilon.upper == report.epsilon.upper == math.inf
        assert run.not_private_because == f"{method.printed} (as printed)"
        assert method.printed in str(report)
    assert bool(flat(run.model).isfinite().all())
    with Ledger.open(path, read_only=True) as book:
        assert book.epsilon().upper == math.inf
        summary = book.summary()
        assert "as printed" in summary["claim"]
        # The plan fits into the budget as if the noise were that of the private form.
        assert summary["runs"][0]["planned_epsilon"] is None
        assert book.runs[0].planned_epsilon() == math.inf
        assert "whole plan" not in book.report_markdown()
        assert not book.verify().problems


@each
def test_it_goes_on_where_it_stopped_and_never_as_the_private_form(method, tmp_path):
    options = {"sampling": fl.Poisson(0.6), "rounds": 3, "seed": 12, "local": LOCAL}
    options |= {} if method.bound is not None else {"clip_norm": 0.3}

    def build(path):
        return federation(perceptron(), CLIENTS, method=method, checkpoint=path, **options)

    goes_on(build, tmp_path / "run.pt")
    private = federation(
        perceptron(), CLIENTS, method=type(method)(), checkpoint=tmp_path / "run.pt", **options
    )
    with private, pytest.raises(InvalidParameter, match="another setting"):
        private.resume()


@each
def test_it_trains_in_a_loop_of_ones_own_and_takes_no_messages(method):
    options = {"method": method, "rounds": 2, "noise_multiplier": 1.0, "seed": 3, "local": LOCAL}
    options |= {} if method.bound is not None else {"clip_norm": 0.3}
    with fl.Server(perceptron(), len(CLIENTS), sampling=fl.Full(), **options) as run:
        for opened in run:
            with pytest.raises(Unsupported, match="as printed"):
                opened.assignment(0)
            for client in opened.workers:
                steps = run.engine.local.steps or 2
                with opened.local(client, cross_entropy, steps=steps) as local:
                    for _ in range(steps):
                        local.step(CLIENTS[client].inputs, CLIENTS[client].targets)
            report = opened.release()
    assert report.epsilon.upper == math.inf


@each
@pytest.mark.parametrize(
    "options",
    [
        {"secure_noise": True},
        {"noise": fl.NoiseShares(3)},
        {"noise": fl.CorrelatedNoise(square_root(3, 2)), "sampling": fl.Cyclic(2)},
    ],
    ids=["secure", "shares", "correlated"],
)
def test_it_takes_no_other_noise(method, options):
    given = options if method.bound is not None else options | {"clip_norm": 0.3}
    with pytest.raises(InvalidParameter, match="as printed"):
        federation(perceptron(), CLIENTS, method=method, **given)


def test_a_method_of_ones_own_that_publishes_is_never_private():
    class Ours(fl.DPFedAvg):
        as_printed = True

    with federation(perceptron(), CLIENTS, method=Ours()) as run:
        assert run.run().epsilon.upper == math.inf
        assert run.not_private_because == "its release is its own (as printed)"
