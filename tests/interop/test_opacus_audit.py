"""Audits of training with Opacus: what is right passes, and planted faults are seen."""

from __future__ import annotations

from typing import Any

import pytest

from dpacct import Ledger, Poisson, Round, fl
from dpacct.errors import InvalidParameter, LedgerError, Unsupported

opacus = pytest.importorskip("opacus", reason="opacus is not installed")
torch = pytest.importorskip("torch")
plug_in = pytest.importorskip("dpacct.interop.opacus")

from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402 - needs opacus
from torch.utils.data import DataLoader, Subset, TensorDataset  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.linspace(-1.0, 1.0, 800).reshape(40, 20)
DATA = TensorDataset(X, (X.sum(1) > 0).long())
SLOW = pytest.mark.slow
# Noise comes from the operating system: intervals miss with a probability of 1e-8.
SURE = 1 - 1e-8


def training(
    *,
    mode: str = "hooks",
    steps: int = 15,
    parts: int = 2,
    noise: float = 1.0,
    spoil: Any = None,
    split: bool = False,
    criterion: bool = True,
    subset: bool = False,
    **settings: Any,
) -> Any:
    """A loop as it is written for Opacus, perhaps with a fault."""

    def train(data: Any, ledger: Ledger) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 2)
        )
        held = Subset(data, range(len(data))) if subset else data
        made = opacus.PrivacyEngine(accountant="dpacct").make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(held, len(data) // parts),
            **(
                {"noise_multiplier": noise, "max_grad_norm": 0.7, "grad_sample_mode": mode}
                | settings
            ),
        )
        private, optimizer, loader = made[0], made[1], made[-1]
        ghost = mode == "ghost"
        loss = made[2] if ghost else torch.nn.CrossEntropyLoss()
        run = ledger.start_run("audit", steps * Round(noise, Poisson(loader.sample_rate)))
        given = {"criterion": loss} if ghost and criterion else {}
        loader = plug_in.attach_ledger(loader, optimizer, run, **given)
        if spoil is not None:
            spoil(private, optimizer)
        while run.held:
            if split:
                with BatchMemoryManager(
                    data_loader=loader, max_physical_batch_size=25, optimizer=optimizer
                ) as pieces:
                    epoch(private, optimizer, loss, pieces)
            else:
                epoch(private, optimizer, loss, loader)

    return train


def epoch(model: Any, optimizer: Any, loss: Any, loader: Any) -> None:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()


def audited(canaries: int = 150, others: str = "silent", **options: Any) -> fl.RunAudit:
    known = torch.Generator().manual_seed(5)
    return plug_in.audit_loop(
        training(**options), DATA, canaries=canaries, others=others, confidence=SURE,
        generator=known,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "ghost"},
        pytest.param({"mode": "hooks", "split": True, "others": "heard"}, marks=SLOW),
        pytest.param({"mode": "ghost", "split": True, "others": "heard"}, marks=SLOW),
        pytest.param({"mode": "functorch", "loss_reduction": "mean"}, marks=SLOW),
        pytest.param({"clipping": "per_layer", "max_grad_norm": [0.3, 0.2, 0.5, 0.1]}, marks=SLOW),
    ],
)
def test_a_sound_training_passes(options: dict[str, Any]) -> None:
    found = audited(**options)
    found.require()
    assert (found.clients, found.rounds) == (40, 15)
    assert found.gaussian_epsilon < found.charged.upper
    assert found.shown.epsilon < found.charged.upper


@pytest.mark.parametrize("mode", ["hooks", pytest.param("ghost", marks=SLOW)])
def test_canaries_reach_what_is_released(mode: str) -> None:
    found = audited(mode=mode, **FINE)
    assert found.passed
    # Missed only by what lies nine standard deviations away.
    assert found.shown.noise_factor < 4


def half_the_noise(_: Any, optimizer: Any) -> None:
    add = optimizer.add_noise

    def less() -> None:
        kept = optimizer.noise_multiplier
        optimizer.noise_multiplier = kept / 2
        add()
        optimizer.noise_multiplier = kept

    optimizer.add_noise = less


def noise_of_participants(_: Any, optimizer: Any) -> None:
    """Divided by the expected batch, multiplied by those who came: a share for each of them."""
    add = optimizer.add_noise

    def shares() -> None:
        kept, came = optimizer.noise_multiplier, len(optimizer.grad_samples[0])
        optimizer.noise_multiplier = kept * (came / 190) ** 0.5
        add()
        optimizer.noise_multiplier = kept

    optimizer.add_noise = shares


def divided_by_workers_twice(_: Any, optimizer: Any) -> None:
    workers = 2
    scale = optimizer.scale_grad

    def divided() -> None:
        for parameter in optimizer.params:
            noise = parameter.grad - parameter.summed_grad.view_as(parameter)
            parameter.grad = parameter.summed_grad.view_as(parameter) + noise / workers
        scale()

    optimizer.scale_grad = divided


def longer_clip(_: Any, optimizer: Any) -> None:
    clip = optimizer.clip_and_accumulate

    def more() -> None:
        kept = optimizer.max_grad_norm
        optimizer.max_grad_norm = 1.5 * kept
        clip()
        optimizer.max_grad_norm = kept

    optimizer.clip_and_accumulate = more


def noise_taken_off_again(_: Any, optimizer: Any) -> None:
    """Behind what the plug-in sees: just before the wrapped optimizer steps."""

    def plain(*_: Any) -> None:
        for parameter in optimizer.params:
            mean = parameter.summed_grad / optimizer.expected_batch_size
            parameter.grad = mean.view_as(parameter)

    before = optimizer.pre_step

    def pre_step(*words: Any) -> Any:
        done = before(*words)
        plain()
        return done

    optimizer.pre_step = pre_step


def wrong_norm(model: Any, _: Any) -> None:
    model.max_grad_norm = 1.5 * 0.7


# Everybody in every batch: what is told apart takes little accounting.
FINE = {"noise": 0.5, "parts": 1}


@pytest.mark.parametrize(
    ("spoil", "fault", "options"),
    [
        (half_the_noise, "noise", {}),
        pytest.param(half_the_noise, "noise", {"mode": "ghost"}, marks=SLOW),
        pytest.param(noise_of_participants, "noise", {}, marks=SLOW),
        pytest.param(divided_by_workers_twice, "noise", {}, marks=SLOW),
        (noise_taken_off_again, "noise", {}),
        # More than a dozen standard deviations above what is called a fault.
        pytest.param(longer_clip, "contribution", FINE, marks=SLOW),
        (wrong_norm, "contribution", {"mode": "ghost", **FINE}),
    ],
)
def test_a_fault_is_seen(spoil: Any, fault: str, options: dict[str, Any]) -> None:
    found = audited(spoil=spoil, **options)
    assert fault in found.shown.faults
    with pytest.raises(fl.AuditFailed):
        found.require()


def test_no_clip_at_all_is_refused_by_the_plug_in() -> None:
    def unclipped(_: Any, optimizer: Any) -> None:
        def summed() -> None:
            for parameter in optimizer.params:
                parameter.summed_grad = parameter.grad_sample.sum(dim=0)
                parameter.grad_sample._processed = True

        optimizer.clip_and_accumulate = summed

    with pytest.raises(LedgerError, match="its examples make at most"):
        audited(spoil=unclipped)


def test_a_step_that_is_not_charged_is_a_fault() -> None:
    def again(_: Any, optimizer: Any) -> None:
        step = optimizer.step

        def twice() -> None:
            step()
            optimizer.original_optimizer.step()

        optimizer.step = twice

    with pytest.raises(fl.AuditFailed, match="step 2 was not charged"):
        audited(spoil=again)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"canaries": 3}, InvalidParameter, "canaries"),
        ({"canaries": 5000}, InvalidParameter, "canaries"),
        ({"others": "loud"}, InvalidParameter, "others"),
        ({"subset": True}, Unsupported, "saw no step"),
        ({"mode": "ghost", "criterion": False}, Unsupported, "criterion=criterion"),
    ],
)
def test_bad_audits_are_refused(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        audited(**options)


def test_the_data_are_examples() -> None:
    for data in (TensorDataset(X[:0]), DataLoader(DATA, 4), 7):
        with pytest.raises(InvalidParameter, match="data is"):
            plug_in.audit_loop(training(), data)


def test_a_ledger_of_ones_own_is_not_charged(tmp_path: Any) -> None:
    from dpacct import Budget

    with Ledger.open(tmp_path / "own.ledger", Budget(1e6, 1e-5)) as own:
        train = training()
        with pytest.raises(InvalidParameter, match="of the ledger that the loop is given"):
            plug_in.audit_loop(lambda data, _: train(data, own), DATA, canaries=60)
