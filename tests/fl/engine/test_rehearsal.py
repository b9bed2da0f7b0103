"""Settings are tried on synthetic clients before anything is charged; no client decides there."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.methods.protocol import Method
from dpacct.fl.training.synthetic import Kind, usual_kind
from tests.fl.problems import (
    cross_entropy,
    federation,
    flat,
    linear,
    make_clients,
    pause,
    perceptron,
)

pytestmark = pytest.mark.usefixtures("uncounted")
CLIENTS = make_clients([4] * 3)


class Broken(Exception):
    """The error of a part of a run."""


def fail(*_: Any, **__: Any) -> Any:
    raise Broken


class BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep nothing."""

    backward = staticmethod(fail)


class BackwardModel(nn.Linear):
    def forward(self, inputs):
        return BrokenBackward.apply(super().forward(inputs))


@dataclass(frozen=True)
class Remembers(Method):
    def init_client(self, params):
        return {"x": torch.zeros(())}


def broken(member: str, base: type = Method, *arguments: Any) -> Any:
    return type("Mine", (base,), {member: fail})(*arguments)


PARTS: dict[str, dict[str, Any]] = {
    "forward": {"model": broken("forward", nn.Linear, 6, 3)},
    "backward": {"model": BackwardModel(6, 3)},
    "loss": {"loss": fail},
    "gradient": {"method": broken("gradient")},
    "after_step": {"method": broken("after_step")},
    "local_update": {"method": broken("local_update")},
    "client_state": {"method": broken("client_state", Remembers)},
    "init_client": {"method": broken("init_client")},
    "mask": {"method": type("Mine", (Method,), {"mask": broken("select", fl.Dense)})()},
    "post": {"method": broken("post")},
    "server": {"method": broken("server")},
    "bound": {"bound": broken("apply", fl.Clip, 1.0), "clip_norm": None},
    "noise": {"noise": broken("add", fl.GaussianNoise)},
}


def refused(error: Any, path: Any, words: str | None = None, **options: Any) -> Any:
    """Check that a run raises an error, and that nothing was charged."""
    options = {"model": linear(), "clients": CLIENTS} | options
    with (
        federation(ledger=path, **options) as run,
        pytest.raises(error, match=words) as caught,
    ):
        run.run()
    assert not path.exists()
    return caught.value


@pytest.mark.sampled(9)
@pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("part", PARTS)
def test_an_error_of_any_part_surfaces_as_it_is_and_nothing_is_charged(part, vectorize, tmp_path):
    error = refused(Broken, tmp_path / "run.ledger", vectorize=vectorize, **PARTS[part])
    assert "Nothing is charged" in error.__notes__[0]


class Median(fl.Clip):
    """Clips to the median of a cohort."""

    def apply(self, rows, norms, layout, margin):
        limit = min(float(norms.median()), self.clip_norm) * (1 - margin)
        return rows * (limit / norms).clamp(max=1).unsqueeze(1).to(rows.dtype)


class Half(fl.Clip):
    """Rounds to half precision, which may lengthen an update."""

    def apply(self, rows, norms, layout, margin):
        return super().apply(rows, norms, layout, 0.0).half()


class Understated(fl.Clip):
    """Claims half the norm that its limits allow."""

    def sensitivity(self, adjacency):
        return super().sensitivity(adjacency) / 2


class Unsaid(fl.GaussianNoise):
    """Says itself that it draws less than it is asked for."""

    def actual_std(self, std, arrived):
        return std * (1 - 1e-6)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bound": Median(0.5)}, fl.AuditFailed, "it looks at both"),
        ({"bound": Half(0.3)}, fl.AuditFailed, "norm up to 0.30"),
        ({"bound": Understated(0.5)}, InvalidParameter, r"claims a sensitivity of 0\.25"),
        ({"noise": Unsaid()}, Unsupported, "is charged"),
    ],
)
def test_a_bound_or_noise_that_breaks_its_word_is_refused(options, error, words, tmp_path):
    path = tmp_path / "run.ledger"
    with pytest.raises(error, match=words):
        federation(linear(), CLIENTS, ledger=path, **options).run()
    assert not path.exists()


def test_parameters_of_another_kind_are_refused(tmp_path):
    for change in (lambda value: value[:1], lambda value: value.double()):

        class Mine(Method):
            def server(self, params, noised, server_state):
                return {n: change(v) for n, v in params.items()}, server_state  # noqa: B023

        refused(InvalidParameter, tmp_path / "run.ledger", "server", method=Mine())


def test_code_behind_the_noise_has_copies_however_it_was_added():
    kept: list[torch.Tensor] = []

    def server(self, params, noised, server_state):
        kept.extend([*params.values(), noised.vector])
        return Method.server(self, params, noised, server_state)

    def post(_, noised, __):
        kept.append(noised.vector)
        return noised

    plain: Any = type("Plain", (Method,), {})()
    plain.server = lambda *given: server(plain, *given)
    methods = [type("Mine", (Method,), behind)() for behind in ({"server": server}, {"post": post})]
    for method in (*methods, plain):
        kept.clear()
        with federation(linear(), CLIENTS[:1], method=method) as run:
            run.run()
            state = run.state
            ours = [*state.params.values(), state.released]
        assert kept
        assert not {value.data_ptr() for value in kept} & {value.data_ptr() for value in ours}


def test_a_method_that_keeps_the_last_client_in_a_hidden_place_is_refused(tmp_path):
    hidden = {"norm": 0.0}

    class Kept(Method):
        def local_update(self, delta, client_state, context):
            hidden["norm"] = float(delta.norm())
            return delta

        def server(self, params, noised, server_state):
            moved, state = super().server(params, noised, server_state)
            return {name: value + hidden["norm"] for name, value in moved.items()}, state

    words = "differ between clients whose release is the same"
    refused(Unsupported, tmp_path / "run.ledger", words, method=Kept())


def test_a_resumed_run_is_rehearsed_too(tmp_path):
    path = tmp_path / "run.pt"
    pause(federation(linear(), CLIENTS, checkpoint=path), 1)
    run = federation(linear(), CLIENTS, loss=fail, checkpoint=path).resume()
    with run, pytest.raises(Broken):
        run.run()
    with federation(linear(), CLIENTS, checkpoint=path).resume() as run:
        assert run.run().round == 3


class Counted:
    """Clients that note which of them are read."""

    def __init__(self, clients: list[fl.ClientData]) -> None:
        self.clients, self.asked = clients, list[int]()

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, client: int) -> fl.ClientData:
        self.asked.append(client)
        return self.clients[client]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vectorize", [False, True, "auto"])
def test_only_the_shapes_of_clients_are_read_before_the_first_round(vectorize, monkeypatch):
    monkeypatch.setattr("dpacct.fl.training.choose._seconds", lambda *_: 1.0)
    chosen = []
    for scale in (1.0, torch.nan):
        clients = [fl.ClientData(scale * c.inputs, c.targets) for c in make_clients([9] * 20)]
        population = Counted(clients)
        with federation(perceptron(), population, vectorize=vectorize) as run:
            run.begin()
            assert len(set(population.asked)) == len(population.asked) == 5
            chosen.append(run.choice.plan)
    assert chosen[0] == chosen[1]
    population = Counted(clients)
    with federation(perceptron(), population, example=CLIENTS[0]) as run:
        run.begin()
        assert population.asked == []


def test_the_rehearsal_changes_nothing_of_a_run():
    finals = []
    for example in (None, make_clients([40], seed=9)[0]):
        model = nn.Sequential(perceptron(), nn.Dropout(0.5))
        federation(model, make_clients([9] * 3), seed=3, example=example, rounds=1).run()
        finals.append(flat(model))
    assert torch.equal(*finals)


@pytest.mark.parametrize("place", [0, 2])
def test_one_strange_client_does_not_decide_the_kind_of_examples(place):
    clients = make_clients([4] * 5)
    usual = Kind.of(clients[0])
    clients[place] = fl.ClientData(torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 9))
    assert usual_kind(clients) == usual
    with federation(linear(), clients) as run:
        assert run.run().diagnostics.dropped_updates == 1


def test_a_population_that_cannot_be_read_fails_with_its_own_error(tmp_path):
    class Gone(Counted):
        def __getitem__(self, client):
            raise Broken(client)

    refused(Broken, tmp_path / "run.ledger", "0", clients=Gone(make_clients([3] * 50)))


class Channels(nn.Module):
    """[n, length, classes] to [n, classes, length]."""

    def forward(self, values: Tensor) -> Tensor:
        return values.transpose(1, 2)


class Recurrent(nn.LSTM):
    def forward(self, inputs):
        return super().forward(inputs.unflatten(1, (3, 2)))[0][:, -1]


def test_models_of_words_flags_bytes_and_probabilities_and_lstms_are_rehearsed():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(9, (6, 5), generator=generator)
    reals = torch.rand(6, 4, generator=generator)
    bce = nn.functional.binary_cross_entropy_with_logits
    cases: list[tuple[nn.Module, Any, Tensor, Tensor]] = [
        (nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(10, 3)), cross_entropy, words,
         torch.tensor([0, 1, 2, 0, 1, 2])),
        (nn.Linear(4, 1), bce, reals, torch.ones(6, 1)),
        (nn.Linear(4, 2), nn.functional.mse_loss, reals, torch.rand(6, 2, generator=generator)),
        (nn.Linear(4, 3), cross_entropy, reals, torch.full((6, 3), 1 / 3)),
        (nn.Sequential(nn.Embedding(9, 3), Channels()), cross_entropy, words, words.clamp(max=2)),
        (Recurrent(2, 3, batch_first=True), cross_entropy, torch.rand(6, 6), torch.ones(6).long()),
    ]  # fmt: skip
    for model, loss, inputs, targets in cases:
        clients = [fl.ClientData(inputs[k:], targets[k:]) for k in range(2)]
        together = not isinstance(model, Recurrent)
        with federation(model, clients, loss=loss, vectorize=together, rounds=1) as run:
            assert run.run().diagnostics.dropped_updates == 0


class OneHot(nn.Module):
    """Takes whole numbers from 5 to 8 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(nn.functional.one_hot(inputs - 5, 4).float())


def test_a_model_that_random_values_do_not_fit_takes_a_declared_example(tmp_path):
    inputs = torch.tensor([5, 6, 7, 8])
    clients = [fl.ClientData(inputs, torch.tensor([0, 1, 2, k])) for k in range(3)]
    example, path = fl.ClientData(inputs[::3], torch.tensor([0, 1])), tmp_path / "run.ledger"
    error = refused(RuntimeError, path, model=OneHot(), clients=clients)
    assert "example" in error.__notes__[0]
    with federation(OneHot(), clients, example=example) as run:
        assert run.run().diagnostics.dropped_updates == 0
    empty = fl.ClientData(example.inputs[:0], example.targets[:0])
    refused(InvalidParameter, path, "at least one", model=OneHot(), clients=clients, example=empty)


def test_a_layer_may_prepare_itself_when_it_is_first_called_in_a_copy():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.table: Tensor | None = None

        def forward(self, inputs):
            if self.table is None:
                self.table = torch.linspace(0, 1, 6)
            return self.layer(inputs * self.table)

    model = Table()
    with federation(model, CLIENTS) as run:
        assert run.run().released
    assert model.table is None
    model.lock = threading.Lock()
    with pytest.raises(Unsupported, match="cannot be copied"):
        federation(model, CLIENTS)


SETTINGS: dict[str, Any] = {
    f"{library}.{part}": getattr(place, part)
    for library, place, parts in (
        ("cuda", cast("Any", torch.backends.cuda), ["matmul"]),
        ("cudnn", cast("Any", torch.backends.cudnn), ["conv", "rnn"]),
        ("mkldnn", cast("Any", torch.backends.mkldnn), ["matmul", "conv", "rnn"]),
    )
    for part in parts
}


def precisions() -> dict[str, str]:
    """Return the precision of arithmetic on float32, by library and kind of operation."""
    return {name: place.fp32_precision for name, place in SETTINGS.items()}


@pytest.fixture(params=["nothing", "old", "new", "both", "globally", "bfloat16", "on the CPU"])
def asked(request):
    """Settings of PyTorch that a user has changed."""
    backends: Any = torch.backends
    matmul, before = backends.cuda.matmul, precisions()
    if request.param in ("old", "both"):
        matmul.allow_tf32 = True
    if request.param in ("new", "both"):
        matmul.fp32_precision = "tf32" if request.param == "new" else "ieee"
    if request.param in ("globally", "bfloat16"):
        backends.fp32_precision = "tf32" if request.param == "globally" else "bf16"
    if request.param == "on the CPU":
        backends.mkldnn.matmul.fp32_precision = "bf16"
    yield
    backends.fp32_precision = "none"
    matmul.allow_tf32 = False
    for name, place in SETTINGS.items():
        place.fp32_precision = before[name]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.usefixtures("asked")
def test_settings_of_precision_are_no_obstacle_and_are_restored(precision):
    before, seen = precisions(), list[dict[str, str]]()

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.addmm.default:
                seen.append(precisions())
            return func(*args, **(kwargs or {}))

    local = fl.SGD(lr=0.1, precision=precision)
    with Looking(), federation(linear(), CLIENTS, local=local, rounds=1) as run:
        assert run.run().released
    assert precisions() == before
    # PyTorch lets convolutions on a device use 10 bits of 23 unless it is told otherwise.
    fast = "tf32" if precision == "tf32" else "ieee"
    assert {values[name] for values in seen for name in SETTINGS if name[0] == "c"} == {fast}
    assert {values[name] for values in seen for name in SETTINGS if name[0] == "m"} == {"ieee"}


class Late(fl.Clip):
    """Turns long updates of large models around."""

    def apply(self, rows, norms, layout, margin):
        return super().apply(rows, norms, layout, margin).mul_(-1 if layout.size > 3000 else 1)


def test_a_bound_of_ones_own_is_tried_on_all_coordinates(tmp_path):
    clients, options = make_clients([4] * 3, features=1000), {"bound": Late(0.5)}
    refused(fl.AuditFailed, tmp_path / "run.ledger", "turned around", clients=clients,
            model=linear(1000), **options)  # fmt: skip


class Touched(TorchDispatchMode):
    """Counts the values that operations write."""

    values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            made = found if isinstance(found, list | tuple) else [found]
            self.values += sum(v.numel() for v in made if isinstance(v, Tensor))
        return found


@pytest.mark.parametrize(("method", "most"), [(fl.DPFedAvg(), 3.5), (fl.Scaffold(), 6.5)])
def test_it_costs_no_more_than_a_few_rounds_of_two_clients_with_one_step(method, most):
    model = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 3))
    local, after = fl.SGD(lr=0.1, steps=1, batch_size=5), []
    with federation(model, make_clients([5, 5]), method=method, local=local) as run:
        with Touched() as touched:
            after = [touched.values for _ in run]
        first, second = after[0], after[1] - after[0]
        assert 0 < first - second <= most * second
