"""Opacus with our accountant or a ledger: what a neighboring data set may change, and mistakes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, Ledger, Poisson, Round
from dpacct.errors import InvalidParameter, LedgerError, Unsupported

opacus = pytest.importorskip("opacus", reason="opacus is not installed")
torch = pytest.importorskip("torch")
plug_in = pytest.importorskip("dpacct.interop.opacus")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - needs torch

pytestmark = pytest.mark.filterwarnings("ignore")

DELTA = 1e-5


def private(
    examples: int = 40, batch: int = 4, engine: Any = None, outputs: int = 2, **settings: Any
) -> tuple[Any, ...]:
    """What `make_private` returns, and its engine."""
    engine = opacus.PrivacyEngine(accountant="dpacct") if engine is None else engine
    module = torch.nn.Linear(5, outputs)
    data = TensorDataset(torch.ones(examples, 5), torch.zeros(examples, dtype=torch.long))
    given = {"data_loader": DataLoader(data, batch), "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    made = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        **(given | settings),
    )
    return (*made, engine)


def step(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "l.ledger", Budget(50, DELTA)) as opened:
        yield opened


@pytest.mark.parametrize(("examples", "batch"), [(2000, 50), (2001, 50), (2000, 64), (41, 40)])
def test_a_public_size_hides_the_number_of_examples(
    ledger: Ledger, examples: int, batch: int
) -> None:
    """Neighbors have one noise on the mean, one divisor, one rate and one number of batches."""
    seen: list[Any] = []
    for number in (examples, examples - 1):
        # Without examples in a batch, the step is its noise.
        model, optimizer, loader, _ = private(number, batch, outputs=2000, noise_multiplier=3.0)
        loader = plug_in.attach_ledger(
            loader, optimizer, ledger.start_run("neighbors"), public_size=2000
        )
        assert loader.round == Round(3.0, Poisson(batch / 2000), "add-remove")
        inputs, targets = next(iter(loader))
        before = [p.detach().clone() for p in optimizer.params]
        step(model, optimizer, (inputs[:0], targets[:0]))
        moved = torch.cat(
            [(p - b).flatten() for p, b in zip(optimizer.params, before, strict=True)]
        )
        std = float(moved.double().square().mean().sqrt())
        # 12,000 draws: six standard errors.
        assert std == pytest.approx(3.0 / batch, rel=0.04)
        seen.append((optimizer.expected_batch_size, loader.sample_rate, len(loader)))
    assert seen[0] == seen[1] == (batch, batch / 2000, math.ceil(2000 / batch))


def test_without_a_public_size_the_relation_is_zero_out(ledger: Ledger) -> None:
    _, optimizer, loader, _ = private()
    plan = 10 * Round(1.0, Poisson(0.1))
    for asked in ({"adjacency": "add-remove"}, {}):
        run = ledger.start_run("hidden", None if asked else plan)
        with pytest.raises(InvalidParameter, match="from the number of examples"):
            plug_in.attach_ledger(loader, optimizer, run, **asked)
        run.finish()
    with pytest.raises(InvalidParameter, match="together with public_size"):
        plug_in.attach_ledger(loader, optimizer, ledger.start_run("b"), batch_size=4)


def test_zero_out_is_what_is_charged_without_one(ledger: Ledger) -> None:
    _, optimizer, loader, _ = private()
    attached = plug_in.attach_ledger(loader, optimizer, ledger.start_run("public number"))
    next(iter(attached))
    assert str(ledger.adjacency) == "zero-out"
    assert (attached.sample_rate, optimizer.expected_batch_size) == (0.1, 4)


def test_a_public_size_needs_a_batch_size(ledger: Ledger) -> None:
    data = TensorDataset(torch.ones(40, 5), torch.zeros(40, dtype=torch.long))
    sampler = torch.utils.data.BatchSampler(range(40), 4, drop_last=False)
    _, optimizer, loader, _ = private(data_loader=DataLoader(data, batch_sampler=sampler))
    run = ledger.start_run("sampler")
    loader.stated_batch_size = None
    with pytest.raises(InvalidParameter, match="batch_size"):
        plug_in.attach_ledger(loader, optimizer, run, public_size=40)
    attached = plug_in.attach_ledger(loader, optimizer, run, public_size=40, batch_size=8)
    assert attached.sample_rate == 0.2


@pytest.mark.parametrize("engines", [1, 2])
def test_two_optimizers_on_the_same_batches_are_refused(engines: int) -> None:
    """On one batch both are one Gaussian of noise multiplier 1 / sqrt(2): 3.42, not 1.64."""
    first, one, loader, engine = private()
    second, two, _, _ = private(engine=engine if engines == 1 else None)
    batch = next(iter(loader))
    step(first, one, batch)
    before = two.params[0].clone()
    with pytest.raises(LedgerError, match="a step without a batch"):
        step(second, two, batch)
    assert torch.equal(before, two.params[0])


def test_two_optimizers_with_batches_of_their_own_add_up() -> None:
    first, one, mine, engine = private()
    second, two, theirs, _ = private(engine=engine)
    for batch, other in zip(mine, theirs, strict=True):
        step(first, one, batch)
        step(second, two, other)
    expected = dpacct.epsilon(20 * Round(1.0, Poisson(0.1)), delta=DELTA).upper
    assert engine.get_epsilon(DELTA) == expected


def test_a_second_step_on_a_batch_is_refused_without_a_ledger_too() -> None:
    model, optimizer, loader, engine = private()
    for batch in loader:
        step(model, optimizer, batch)
        with pytest.raises(LedgerError, match="a step without a batch"):
            step(model, optimizer, batch)
    assert len(engine.accountant) == 10


def test_hooks_on_loaders_of_ones_own_know_their_optimizer() -> None:
    accountant = plug_in.TightAccountant()
    made = [private(engine=opacus.PrivacyEngine()) for _ in range(2)]
    for _, optimizer, _, _ in made:
        optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(0.1))
    (model, optimizer, loader, _), (other, stranger, _, _) = made
    for batch in loader:
        step(model, optimizer, batch)
    assert len(accountant) == 10
    with pytest.raises(Unsupported, match="a second optimizer steps"):
        step(other, stranger, batch)


@pytest.mark.parametrize("accountant", ["prv", "dpacct"])
def test_an_optimizer_beside_the_attached_one_is_refused(ledger: Ledger, accountant: str) -> None:
    model, optimizer, loader, _ = private()
    other, stranger, own, _ = private(engine=opacus.PrivacyEngine(accountant=accountant))
    loader = plug_in.attach_ledger(loader, optimizer, ledger.start_run("one"))
    weights = [p.detach().clone() for p in stranger.params]
    for batch in loader:
        step(model, optimizer, batch)
        with pytest.raises((Unsupported, LedgerError), match="a s"):
            step(other, stranger, batch)
    assert all(torch.equal(p, w) for p, w in zip(stranger.params, weights, strict=True))
    # A public model trains as it likes, and the other one once the loop is over.
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    plain.step()
    stranger.zero_grad()
    for batch in own:
        step(other, stranger, batch)


def test_batches_that_are_no_poisson_samples_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"dpacct\.Full\(\)"):
        private(poisson_sampling=False)


def test_less_than_float32_is_refused_without_a_ledger_too() -> None:
    model, optimizer, loader, engine = private()
    inputs, targets = next(iter(loader))
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    with pytest.raises(Unsupported, match="without autocast"):
        optimizer.step()
    assert len(engine.accountant) == 0


@pytest.mark.parametrize("where", ["noise", "loader", "replaced", "none"])
def test_without_secret_noise_epsilon_is_infinite(where: str) -> None:
    known = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.ones(40, 5), torch.zeros(40, dtype=torch.long))
    settings = {
        "noise": {"noise_generator": known},
        "loader": {"data_loader": DataLoader(data, 4, generator=known)},
        "replaced": {},
        "none": {"noise_multiplier": 0.0},
    }[where]
    model, optimizer, loader, engine = private(**settings)
    if where == "replaced":
        optimizer.generator = known
    step(model, optimizer, next(iter(loader)))
    assert engine.get_epsilon(DELTA) == math.inf
    other = plug_in.TightAccountant()
    other.load_state_dict(engine.accountant.state_dict())
    assert other.get_epsilon(DELTA) == math.inf


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_generator_that_is_put_in_later_is_seen(ledger: Ledger, mode: str) -> None:
    module = torch.nn.Linear(5, 2)
    data = TensorDataset(torch.ones(40, 5), torch.zeros(40, dtype=torch.long))
    made = opacus.PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        data_loader=DataLoader(data, 4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    model, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()
    run = ledger.start_run("replaced")
    batches = iter(plug_in.attach_ledger(made[-1], optimizer, run))
    for seeded in (False, True):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        if not seeded:
            optimizer.step()
            continue
        optimizer.generator = torch.Generator().manual_seed(3)
        with pytest.raises(InvalidParameter, match="generator is 'replaced'"):
            optimizer.step()
    assert run.committed == 1


@pytest.mark.parametrize("name", ["rdp", "prv"])
def test_checkpoints_of_opacus_own_accountants_are_taken_over(tmp_path: Path, name: str) -> None:
    model, optimizer, loader, engine = private(engine=opacus.PrivacyEngine(accountant=name))
    for batch in loader:
        step(model, optimizer, batch)
    engine.save_checkpoint(path=tmp_path / "c.pt", module=model)
    later, optimizer, loader, ours = private()
    ours.load_checkpoint(path=tmp_path / "c.pt", module=later)
    for batch in loader:
        step(later, optimizer, batch)
    expected = dpacct.epsilon(20 * Round(1.0, Poisson(0.1)), delta=DELTA).upper
    assert ours.get_epsilon(DELTA) == expected
    with pytest.raises(ValueError, match="cannot be loaded"):
        ours.accountant.load_state_dict({"history": [], "mechanism": "other"})
