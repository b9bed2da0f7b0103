"""Settings are tried on made-up clients before anything is charged, and no client decides there."""

from __future__ import annotations

import os
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
from tests.fl.problems import cross_entropy, federation, flat, linear, make_clients, perceptron

pytestmark = pytest.mark.usefixtures("uncounted")
TRAINERS = pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])


class Broken(Exception):
    """What a part of a run raises."""


def fail(*_: Any, **__: Any) -> Any:
    raise Broken


class BrokenModel(nn.Linear):
    forward = fail


class BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing to keep."""

    backward = staticmethod(fail)


class BackwardModel(nn.Linear):
    def forward(self, inputs):
        return BrokenBackward.apply(super().forward(inputs))


@dataclass(frozen=True)
class Remembers(Method):
    def init_client(self, params):
        return {"x": torch.zeros(())}


@dataclass(frozen=True)
class BrokenMask:
    select = fail


@dataclass(frozen=True)
class BrokenBound(fl.Clip):
    apply = fail


class BrokenNoise(fl.GaussianNoise):
    add = fail


def method(member: str, base: type[Method] = Method) -> Method:
    return type("Mine", (base,), {member: fail})()


PARTS: dict[str, dict[str, Any]] = {
    "forward": {"model": BrokenModel(6, 3)},
    "backward": {"model": BackwardModel(6, 3)},
    "loss": {"loss": fail},
    "gradient": {"method": method("gradient")},
    "after_step": {"method": method("after_step")},
    "local_update": {"method": method("local_update")},
    "client_state": {"method": method("client_state", Remembers)},
    "init_client": {"method": method("init_client")},
    "mask": {"method": type("Mine", (Method,), {"mask": BrokenMask()})()},
    "post": {"method": method("post")},
    "server": {"method": method("server")},
    "bound": {"bound": BrokenBound(1.0), "clip_norm": None},
    "noise": {"noise": BrokenNoise()},
}


@pytest.mark.sampled(9)
@TRAINERS
@pytest.mark.parametrize("part", PARTS)
def test_an_error_of_any_part_surfaces_as_it_is_and_nothing_is_charged(part, vectorize, tmp_path):
    path = tmp_path / "run.ledger"
    options = {"model": linear()} | PARTS[part]
    with (
        federation(
            clients=make_clients([4] * 3), vectorize=vectorize, ledger=path, **options
        ) as run,
        pytest.raises(Broken) as caught,
    ):
        run.run()
    assert not path.exists()
    assert "nothing is charged" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda params: {n: v[:1] for n, v in params.items()}, "server"),
        (lambda params: {n: v.double() for n, v in params.items()}, "server"),
    ],
)
def test_parameters_of_another_kind_are_refused(change, words, tmp_path):
    class Mine(Method):
        def server(self, params, noised, server_state):
            return change(params), server_state

    path = tmp_path / "run.ledger"
    with (
        federation(linear(), make_clients([4]), method=Mine(), ledger=path) as run,
        pytest.raises(InvalidParameter, match=words),
    ):
        run.run()
    assert not path.exists()


def test_code_behind_the_noise_has_copies_however_it_came_there():
    class Mine(Method):
        def server(self, params, noised, server_state):
            return hold(params, noised, server_state)

    class Late(Method):
        def post(self, noised, server_state):
            return keep(noised)

    kept: list[torch.Tensor] = []

    def keep(noised):
        kept.append(noised.vector)
        return noised

    def hold(params, noised, server_state):
        kept.extend([*params.values(), noised.vector])
        return Method.server(put, params, noised, server_state)

    class Plain(Method):
        pass

    put: Any = Plain()
    put.server = hold
    for method in (Mine(), Late(), put):
        kept.clear()
        with federation(linear(), make_clients([4]), method=method, preflight=False) as run:
            report = run.run()
            assert report is not None
            state = run.player.state
            ours = [*state.params.values(), state.released]
        assert kept
        assert not {value.data_ptr() for value in kept} & {value.data_ptr() for value in ours}


def test_a_method_that_keeps_the_last_client_where_nobody_looks_is_refused(monkeypatch, tmp_path):
    class Kept(Method):
        def local_update(self, delta, client_state, context):
            os.environ["KEPT"] = str(float(delta.norm()))
            return delta

        def server(self, params, noised, server_state):
            moved, state = super().server(params, noised, server_state)
            return {n: v + float(os.environ["KEPT"]) for n, v in moved.items()}, state

    monkeypatch.setenv("KEPT", "0")
    path = tmp_path / "run.ledger"
    with (
        federation(linear(), make_clients([4] * 3), method=Kept(), ledger=path) as run,
        pytest.raises(Unsupported, match="differ between clients whose release is the same"),
    ):
        run.run()
    assert not path.exists()


def test_what_fails_later_fails_in_the_rehearsal_of_a_resumed_run_too(tmp_path):
    path = tmp_path / "run.pt"
    clients = make_clients([4] * 3)
    with federation(linear(), clients, checkpoint=path) as run:
        next(iter(run))
    with (
        federation(linear(), clients, loss=fail, checkpoint=path).resume() as run,
        pytest.raises(Broken),
    ):
        run.run()
    with federation(linear(), clients, checkpoint=path).resume() as run:
        assert run.run().round == 3


class Counted:
    """Clients that note who asks for them."""

    def __init__(self, clients: list[fl.ClientData]) -> None:
        self.clients = clients
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, client: int) -> fl.ClientData:
        self.asked.append(client)
        return self.clients[client]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vectorize", [False, True, "auto"])
def test_nothing_of_the_clients_but_their_shapes_decides_before_the_first_round(
    vectorize, monkeypatch
):
    monkeypatch.setattr("dpacct.fl.training.choose._seconds", lambda *_: 1.0)
    chosen = []
    for scale in (1.0, torch.nan):
        clients = [fl.ClientData(scale * c.inputs, c.targets) for c in make_clients([9] * 20)]
        population = Counted(clients)
        with federation(perceptron(), population, vectorize=vectorize) as run:
            run.player.begin()
            assert len(set(population.asked)) == len(population.asked) == 5
            choice = run.player.choice
            chosen.append(choice.plan)
    assert chosen[0] == chosen[1]


def test_a_declared_example_leaves_the_clients_unread():
    population = Counted(make_clients([9] * 20))
    with federation(perceptron(), population, example=make_clients([3], seed=8)[0]) as run:
        run.player.begin()
        assert population.asked == []


def test_the_rehearsal_changes_nothing_of_a_run():
    finals = []
    for example in (None, make_clients([3], seed=8)[0], make_clients([40], seed=9)[0]):
        model = nn.Sequential(perceptron(), nn.Dropout(0.5))
        torch.manual_seed(1)
        with federation(model, make_clients([9] * 3), seed=3, example=example) as run:
            run.run()
        finals.append(flat(model))
    assert torch.equal(finals[0], finals[1])
    assert torch.equal(finals[0], finals[2])


@pytest.mark.parametrize("place", [0, 2])
def test_one_strange_client_does_not_decide_what_examples_look_like(place):
    clients = make_clients([4] * 5)
    usual = Kind.of(clients[0])
    clients[place] = fl.ClientData(torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 9))
    assert usual_kind(clients) == usual
    with federation(linear(), clients) as run:
        assert run.run().diagnostics.dropped_updates == 1


def test_a_population_that_nobody_can_read_fails_with_its_own_error(tmp_path):
    class Gone(Counted):
        def __getitem__(self, client):
            raise Broken(client)

    path = tmp_path / "run.ledger"
    with (
        federation(linear(), Gone(make_clients([3] * 50)), ledger=path) as run,
        pytest.raises(Broken, match="0"),
    ):
        run.run()
    assert not path.exists()


def test_models_of_words_flags_bytes_and_probabilities_are_rehearsed():
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
    ]  # fmt: skip
    for model, loss, inputs, targets in cases:
        for vectorize in (True,):
            clients = [fl.ClientData(inputs[k:], targets[k:]) for k in range(3)]
            with federation(model, clients, loss=loss, vectorize=vectorize, rounds=1) as run:
                assert run.run().diagnostics.dropped_updates == 0


class Channels(nn.Module):
    """[n, length, classes] to [n, classes, length]."""

    def forward(self, values: Tensor) -> Tensor:
        return values.transpose(1, 2)


class OneHot(nn.Module):
    """Takes whole numbers from 5 to 8 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(nn.functional.one_hot(inputs - 5, 4).float())


def test_a_model_that_random_values_do_not_fit_takes_a_declared_example():
    clients = [
        fl.ClientData(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 1, 2, k])) for k in range(3)
    ]
    with federation(OneHot(), clients) as run, pytest.raises(RuntimeError) as caught:
        run.run()
    assert "example" in caught.value.__notes__[0]
    example = fl.ClientData(torch.tensor([5, 8]), torch.tensor([0, 1]))
    with federation(OneHot(), clients, example=example) as run:
        assert run.run().diagnostics.dropped_updates == 0
    with (
        federation(
            OneHot(), clients, example=fl.ClientData(example.inputs[:0], example.targets[:0])
        ) as run,
        pytest.raises(InvalidParameter, match="at least one example"),
    ):
        run.run()


def test_a_layer_may_prepare_itself_when_it_is_first_called():
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
    with federation(model, make_clients([4] * 3)) as run:
        assert run.run().released
    # It did so in a copy.
    assert model.table is None


def test_recurrent_layers_of_torch_are_no_suspects():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(2, 3, batch_first=True)

        def forward(self, inputs):
            return self.layer(inputs.unflatten(1, (3, 2)))[0][:, -1]

    model = Recurrent()
    before = flat(model)
    with federation(model, make_clients([4] * 3)) as run:
        assert run.run().diagnostics.dropped_updates == 0
    assert not torch.equal(flat(model), before)


def test_a_model_that_cannot_be_copied_is_refused():
    model = linear()
    model.lock = threading.Lock()
    with pytest.raises(Unsupported, match="cannot be copied"):
        federation(model, make_clients([4]))


SETTINGS: dict[str, Any] = {
    "cuda.matmul": torch.backends.cuda.matmul,
    "cudnn.conv": cast("Any", torch.backends.cudnn).conv,
    "cudnn.rnn": cast("Any", torch.backends.cudnn).rnn,
    "mkldnn.matmul": cast("Any", torch.backends.mkldnn).matmul,
    "mkldnn.conv": cast("Any", torch.backends.mkldnn).conv,
    "mkldnn.rnn": cast("Any", torch.backends.mkldnn).rnn,
}


def precisions() -> dict[str, str]:
    """What arithmetic on float32 is made of now, by library and kind of operation."""
    return {name: place.fp32_precision for name, place in SETTINGS.items()}


@pytest.fixture(params=["nothing", "old", "new", "both", "globally", "bfloat16", "on the CPU"])
def asked(request):
    """What the user has asked PyTorch for."""
    backends: Any = torch.backends
    matmul = backends.cuda.matmul
    before = precisions()
    match request.param:
        case "old":
            matmul.allow_tf32 = True
        case "new":
            matmul.fp32_precision = "tf32"
        case "both":
            matmul.allow_tf32 = True
            matmul.fp32_precision = "ieee"
        case "globally":
            backends.fp32_precision = "tf32"
        case "bfloat16":
            backends.fp32_precision = "bf16"
        case "on the CPU":
            backends.mkldnn.matmul.fp32_precision = "bf16"
        case _:
            pass
    yield
    backends.fp32_precision = "none"
    matmul.allow_tf32 = False
    for name, place in SETTINGS.items():
        place.fp32_precision = before[name]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.usefixtures("asked")
def test_settings_of_precision_are_no_obstacle_and_are_given_back(precision):
    before = precisions()
    seen: list[dict[str, str]] = []

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.addmm.default:
                seen.append(precisions())
            return func(*args, **(kwargs or {}))

    local = fl.SGD(lr=0.1, precision=precision)
    run = federation(linear(), make_clients([4] * 3), local=local, rounds=1)
    with Looking(), run:
        assert run.run().released
    assert precisions() == before
    # PyTorch lets convolutions on a device use 10 bits of 23 unless it is told otherwise.
    fast = "tf32" if precision == "tf32" else "ieee"
    assert {found[name] for found in seen for name in SETTINGS if name[0] == "c"} == {fast}
    assert {found[name] for found in seen for name in SETTINGS if name[0] == "m"} == {"ieee"}
