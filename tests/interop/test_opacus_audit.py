"""Audits of training with Opacus: sound training passes, and planted faults are seen."""

from __future__ import annotations

from typing import Any

import pytest

from dpacct import Budget, Ledger, Poisson, Round, fl
from dpacct.errors import InvalidParameter, LedgerError, Unsupported

opacus = pytest.importorskip("opacus", reason="opacus is not installed")
torch = pytest.importorskip("torch")
plug_in = pytest.importorskip("dpacct.interop.opacus")

from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402 - needs opacus
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.linspace(-1.0, 1.0, 800).reshape(40, 20)
DATA = TensorDataset(X, (X.sum(1) > 0).long())
SLOW = pytest.mark.slow
# Noise comes from the operating system: intervals miss with a probability of 1e-8.
SURE = 1 - 1e-8


def training(
    *,
    mode: str = "hooks",
    steps: int = 8,
    parts: int = 2,
    noise: float = 1.0,
    spoil: Any = None,
    split: bool = False,
    subset: bool = False,
    workers: int = 0,
    **settings: Any,
) -> Any:
    """Return a loop as it is written for Opacus, perhaps with a fault."""

    def train(data: Any, ledger: Ledger) -> None:
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 2)
        )
        loader = DataLoader(
            Subset(data, range(len(data))) if subset else data,
            len(data) // parts,
            num_workers=workers,
            multiprocessing_context="spawn" if workers else None,
        )
        given = {"noise_multiplier": noise, "max_grad_norm": 0.7, "grad_sample_mode": mode}
        made = opacus.PrivacyEngine(accountant="dpacct").make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            **(given | settings),
        )
        private, optimizer, loader = made[0], made[1], made[-1]
        loss = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()
        plan = steps * Round(noise, Poisson(loader.sample_rate), "zero-out")
        run = ledger.start_run("audit", plan)
        loader = plug_in.attach_ledger(loader, optimizer, run)
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


def audited(canaries: int = 40, others: str = "silent", **options: Any) -> fl.RunAudit:
    known = torch.Generator().manual_seed(5)
    return plug_in.audit_loop(
        training(**options), DATA, canaries=canaries, others=others, confidence=SURE,
        generator=known,
    )  # fmt: skip


# Every example in every batch: detection takes little accounting.
FINE = {"noise": 0.5, "parts": 1}
LONG = {"canaries": 150, "steps": 15}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": True, "others": "heard", "parts": 1},
        pytest.param({"workers": 1, "steps": 2}, marks=SLOW),
        pytest.param({"mode": "functorch", "loss_reduction": "mean", **LONG}, marks=SLOW),
        pytest.param(
            {"clipping": "per_layer", "max_grad_norm": [0.3, 0.2, 0.5, 0.1], **LONG}, marks=SLOW
        ),
    ],
)
def test_a_sound_training_passes(options: dict[str, Any]) -> None:
    found = audited(**options)
    found.require()
    assert (found.clients, found.rounds) == (40, options.get("steps", 8))
    assert found.gaussian_epsilon < found.charged.upper
    assert found.shown.epsilon < found.charged.upper


@SLOW
def test_canaries_reach_what_is_released() -> None:
    found = audited(**FINE, **LONG)
    assert found.passed
    # Missed only by noise of more than nine standard deviations.
    assert found.shown.noise_factor < 4


def half_the_noise(_: Any, optimizer: Any) -> None:
    add = optimizer.add_noise

    def less() -> None:
        kept = optimizer.noise_multiplier
        optimizer.noise_multiplier = kept / 2
        add()
        optimizer.noise_multiplier = kept

    optimizer.add_noise = less


def noise_missing_in_a_layer(_: Any, optimizer: Any) -> None:
    """In the last layer, with a tenth of the weights."""
    add = optimizer.add_noise

    def partly() -> None:
        add()
        for parameter in optimizer.params[2:]:
            parameter.grad = parameter.summed_grad.view_as(parameter).clone()

    optimizer.add_noise = partly


def longer_clip(_: Any, optimizer: Any) -> None:
    clip = optimizer.clip_and_accumulate

    def more() -> None:
        kept = optimizer.max_grad_norm
        optimizer.max_grad_norm = 1.5 * kept
        clip()
        optimizer.max_grad_norm = kept

    optimizer.clip_and_accumulate = more


def noise_taken_off_again(_: Any, optimizer: Any) -> None:
    """After the plug-in's checks, just before the wrapped optimizer steps."""
    before = optimizer.pre_step

    def pre_step(*words: Any) -> Any:
        done = before(*words)
        for parameter in optimizer.params:
            mean = parameter.summed_grad / optimizer.expected_batch_size
            parameter.grad = mean.view_as(parameter)
        return done

    optimizer.pre_step = pre_step


@pytest.mark.parametrize(
    ("spoil", "fault", "options"),
    [
        pytest.param(half_the_noise, "noise", LONG, marks=SLOW),
        pytest.param(noise_taken_off_again, "noise", LONG, marks=SLOW),
        (noise_missing_in_a_layer, "noise", {}),
        # More than a dozen standard deviations above the limit of a fault.
        (longer_clip, "contribution", FINE | {"noise": 0.3}),
    ],
)
def test_a_fault_is_seen(spoil: Any, fault: str, options: dict[str, Any]) -> None:
    found = audited(spoil=spoil, **options)
    assert fault in found.shown.faults
    with pytest.raises(fl.AuditFailed):
        found.require()


def unclipped(_: Any, optimizer: Any) -> None:
    def summed() -> None:
        for parameter in optimizer.params:
            parameter.summed_grad = parameter.grad_sample.sum(dim=0)
            parameter.grad_sample._processed = True

    optimizer.clip_and_accumulate = summed


def uncharged_step(_: Any, optimizer: Any) -> None:
    step = optimizer.step

    def twice() -> None:
        step()
        optimizer.original_optimizer.step()

    optimizer.step = twice


def unseen_step(private: Any, optimizer: Any) -> None:
    """The third step goes to another optimizer."""
    step, calls = optimizer.step, []

    def swapped() -> None:
        calls.append(1)
        if len(calls) == 3:
            optimizer.original_optimizer = torch.optim.Adam(private.parameters())
        step()

    optimizer.step = swapped


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"spoil": unclipped}, LedgerError, "its examples make at most"),
        ({"spoil": uncharged_step}, fl.AuditFailed, "step 2 was not charged"),
        ({"spoil": unseen_step}, Unsupported, "8 steps were charged, and the audit saw 2"),
        ({"canaries": 3}, InvalidParameter, "canaries"),
        ({"canaries": 5000}, InvalidParameter, "canaries"),
        ({"others": "loud"}, InvalidParameter, "others"),
        ({"subset": True}, Unsupported, "saw no step"),
        ({"mode": "ghost"}, Unsupported, 'grad_sample_mode="hooks"'),
    ],
)
def test_what_cannot_be_audited_is_refused(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        audited(**options)


def test_the_data_are_examples() -> None:
    class Streamed(IterableDataset):
        """With a length, and no numbers."""

        def __iter__(self) -> Any:
            return iter(DATA)

        def __len__(self) -> int:
            return 40

    for data in (TensorDataset(X[:0]), DataLoader(DATA, 4), 7, Streamed()):
        with pytest.raises(InvalidParameter, match="data is"):
            plug_in.audit_loop(training(), data)
    with pytest.raises(InvalidParameter, match="training is"):
        plug_in.audit_loop(7, DATA)


@pytest.mark.parametrize("also", [False, True], ids=["its own", "beside that given"])
def test_a_ledger_of_ones_own_is_not_charged(tmp_path: Any, *, also: bool) -> None:
    """Runs of two ledgers may have the same number."""
    train = training()
    with Ledger.open(tmp_path / "own.ledger", Budget(1e6, 1e-5)) as own:

        def elsewhere(data: Any, given: Ledger) -> None:
            if also:
                given.start_run("not used", Round(1.0, Poisson(0.5)))
            train(data, own)

        with pytest.raises(InvalidParameter, match="of the ledger that the loop is given"):
            plug_in.audit_loop(elsewhere, DATA, canaries=30)
        assert own.rounds == 0


class Stopped(BaseException):
    """As if the user pressed a key."""


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_left_in_an_optimizer_of_the_user(*, stopped: bool) -> None:
    """It trains on after an audit, however that ended."""
    kept: list[Any] = []

    def spoil(_: Any, optimizer: Any) -> None:
        kept.append(optimizer)
        add, calls = optimizer.add_noise, []

        def stopping() -> None:
            calls.append(1)
            if len(calls) == 3 and stopped:
                raise Stopped
            add()

        optimizer.add_noise = stopping

    train = training(spoil=spoil, parts=1)
    if stopped:
        with pytest.raises(Stopped):
            plug_in.audit_loop(train, DATA, canaries=30)
    else:
        plug_in.audit_loop(train, DATA, canaries=30)
    (optimizer,) = kept
    for parameter in optimizer.params:
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in optimizer.params]
    optimizer.original_optimizer.step()
    for parameter, value in zip(optimizer.params, before, strict=True):
        assert torch.allclose(parameter, value - 0.1)
    assert "with_canaries" not in optimizer.pre_step.__qualname__
