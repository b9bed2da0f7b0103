"""Nothing of a client's data reaches what is released except through its bounded update."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import functools
import io
import itertools
import queue
import random
import re
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.errors import DpacctError, Unsupported
from dpacct.fl.guards.seals import Seal
from dpacct.fl.guards.watch import Watch
from dpacct.fl.layout import trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods import METHODS as SHIPPED_METHODS
from dpacct.fl.trainers.isolation import Isolation
from dpacct.fl.trainers.tasks import Broadcast
from dpacct.ledger import Ledger
from tests.fl import hostile
from tests.fl.hostile import (
    CLASSES,
    FEATURES,
    HARMLESS,
    LOSSES,
    METHODS,
    MODELS,
    READS_WORDS,
    WORDS,
)
from tests.fl.problems import federation, flat, linear

cross_entropy = nn.functional.cross_entropy
TRAINERS = pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])


@dataclass(frozen=True)
class FirstIsSilent:
    """A bound under which the first client's contribution is zero, whatever it was."""

    real: Any

    @property
    def clip_norm(self) -> float:
        return self.real.clip_norm

    def sensitivity(self, adjacency: Any) -> float:
        return self.real.sensitivity(adjacency)

    def limits(self, layout: Any) -> Any:
        return self.real.limits(layout)

    def apply(self, rows: Tensor, norms: Tensor, layout: Any, margin: float) -> Tensor:
        rows = self.real.apply(rows, norms, layout, margin)
        rows[0] = 0.0
        return rows


pytestmark = pytest.mark.usefixtures("uncounted")


@pytest.fixture(autouse=True)
def _no_race(monkeypatch):
    """Of two runs both are trained in the same way."""
    monkeypatch.setattr("dpacct.fl.trainers.chooser.seconds", lambda heats, _: [1.0] * len(heats))


def people(first: int, *, words: bool = False) -> list[fl.ClientData]:
    """Four clients; the first one's data follow from a number of their own, and are far out."""
    found = []
    for client, size in enumerate((5, 3, 4, 2)):
        generator = torch.Generator().manual_seed(first if client == 0 else 100 + client)
        if words:
            inputs = torch.randint(WORDS, (size, 3), generator=generator)
        else:
            inputs = torch.randn(size, FEATURES, generator=generator) * (
                9.0 if client == 0 else 1.0
            )
        targets = torch.randint(CLASSES, (size,), generator=generator)
        found.append(fl.ClientData(inputs, targets))
    return found


def visible(run: fl.Federation) -> list[Tensor]:
    """All that is released, or that another client's next update follows from."""
    state = run.player.state
    found = [value.detach().clone() for value in run.model.state_dict().values()]
    found += [*state.params.values(), *state.server_state.values()]
    found += [] if state.released is None else [state.released]
    for client, memory in state.client_states.items():
        found += list(memory.values()) if client else []
    return found


def play(
    first: int,
    build: Any,
    *,
    vectorize: Any,
    method: Any = None,
    loss: Any = None,
    words: bool = False,
    path: Any = None,
    bound: Any = None,
) -> list[Tensor] | str:
    """What is visible after a run with the seed of its noise fixed; or why it was refused."""
    torch.manual_seed(0)
    model = build()
    hostile.SHELF.clear()
    settings: dict[str, Any] = {
        "bound": bound or FirstIsSilent(fl.Clip(1.0)), "sampling": fl.Full(), "rounds": 2,
        "noise_multiplier": 1.0, "seed": 3, "vectorize": vectorize, "checkpoint": path,
        "local": fl.SGD(lr=0.1, epochs=1, batch_size=2), "method": method,
    }  # fmt: skip
    objective = cross_entropy if loss is None else loss(model)
    clients = people(first, words=words)
    try:
        with fl.Federation(model, objective, clients, **settings) as run:
            next(iter(run))
            if path is None:
                run.run()
                return visible(run)
        with fl.Federation(model, objective, clients, **settings).resume() as run:
            run.run()
            return visible(run)
    except (DpacctError, RuntimeError, LookupError) as refusal:
        return f"{type(refusal).__name__}: {refusal}"


def compare(build: Any, **options: Any) -> tuple[str, str]:
    """ "refused" and the words, or "harmless" or "leaks"."""
    one = play(1, build, **options)
    two = one if isinstance(one, str) else play(2, build, **options)
    for found in (one, two):
        if isinstance(found, str):
            return "refused", found
    same = all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    return ("harmless" if same else "leaks"), ""


# What torch.func itself does not take in, it says; two made-up worlds show what nobody can name.
UNNAMED = r"torch\.func cannot batch|gives another result|sends another update"


def each(names: Any) -> Any:
    """All of them one by one, and side by side those that the rehearsal one by one lets pass."""
    pass_by = [name for name in names if name in HARMLESS or "a certain client" in name]
    cases = [(name, False) for name in names] + [(name, True) for name in pass_by]
    return pytest.mark.parametrize(("name", "vectorize"), cases)


@each(MODELS)
def test_a_hostile_model_is_refused_by_name_or_does_no_harm(name, vectorize):
    verdict, words = compare(MODELS[name], vectorize=vectorize, words=name in READS_WORDS)
    if name in HARMLESS:
        assert verdict == "harmless" or re.search(UNNAMED, words)
    else:
        assert verdict == "refused"
        assert re.search(rf"the layer \S+ \(\w+\)|the model \(\w+\)|{UNNAMED}", words)


@each(METHODS)
def test_a_hostile_method_is_refused_by_name_or_does_no_harm(name, vectorize):
    method = METHODS[name]()
    verdict, words = compare(hostile.Linear, vectorize=vectorize, method=method)
    if name in HARMLESS:
        assert verdict == "harmless" or re.search(UNNAMED, words)
    else:
        assert verdict == "refused"
        assert f"the method {type(method).__name__}" in words or "KeyError" in words


@each(LOSSES)
def test_a_hostile_loss_is_refused_by_name(name, vectorize):
    verdict, words = compare(hostile.Linear, vectorize=vectorize, loss=LOSSES[name])
    assert verdict == "refused"
    assert "the loss" in words


@TRAINERS
def test_what_does_no_harm_is_the_same_whatever_the_first_client_holds(vectorize):
    # The oracle would see a leak: with the first client's contribution in it, releases differ.
    assert compare(hostile.Linear, vectorize=vectorize) == ("harmless", "")
    assert compare(hostile.Linear, vectorize=vectorize, bound=fl.Clip(1.0)) == ("leaks", "")


WAYS = ["alone", "together", "measured", "resumed"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", range(len(SHIPPED_METHODS)), ids=list(SHIPPED_METHODS))
def test_shipped_methods_do_not_open_a_way(place, tmp_path):
    made = list(SHIPPED_METHODS.values())[place]
    # Each method in two of the ways, each way with several methods.
    for way in (WAYS[place % 4], WAYS[(place + 2) % 4]):
        options: dict[str, Any] = {
            "vectorize": {"alone": False, "together": True}.get(way, "auto"),
            "method": made(),
            "path": tmp_path / "run.pt" if way == "resumed" else None,
            "bound": FirstIsSilent(made().bound or fl.Clip(1.0)),
        }
        assert compare(hostile.Linear, **options)[0] == "harmless"
    verdict, _ = compare(MODELS["writes only when it sees a certain client"], **options)
    assert verdict == "refused"


@TRAINERS
def test_a_write_in_a_round_is_refused_after_the_charge_and_before_the_release(vectorize, tmp_path):
    path = tmp_path / "run.ledger"
    model = MODELS["writes only when it sees a certain client"]()
    before = [value.clone() for value in model.state_dict().values()]
    if vectorize:
        model.spy = lambda _: model.frozen.data.add_(1.0).sum() * 0.0
    options = {"ledger": path, "vectorize": vectorize, "rounds": 3}
    with federation(model, people(1), **options) as run, pytest.raises(Unsupported):
        run.run()
    after = list(model.state_dict().values())
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    if not vectorize:
        with Ledger.open(path, read_only=True) as ledger:
            assert (ledger.runs[0].rounds, ledger.runs[0].committed) == (1, 0)


def test_the_users_model_holds_nothing_but_releases():
    model = MODELS["a seed for torch"]()
    model.note = "mine"
    model.eval()
    with federation(model, people(1), example=people(1)[1]) as run:
        for _ in run:
            assert run.model is model
    assert model.note == "mine"
    assert not model.training
    assert all(value.grad is None for value in model.parameters())


def test_what_a_loss_writes_to_the_users_model_is_taken_back():
    model = hostile.Linear()
    shelf = functools.cache(lambda: model)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        shelf().seen.data.add_(hostile.mark(outputs))
        return cross_entropy(outputs, targets)

    with (
        federation(model, people(1), loss=loss) as run,
        pytest.raises(Unsupported, match="the model's seen was written to"),
    ):
        run.run()
    assert not model.seen.any()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_dropout_of_a_client_does_not_depend_on_who_was_there_before(seed):
    clients = people(seed)
    finals = []
    for sizes in ((5, 3), (1, 3)):
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
        torch.manual_seed(0)
        for value in model.parameters():
            nn.init.normal_(value)
        first = fl.ClientData(clients[0].inputs[: sizes[0]], clients[0].targets[: sizes[0]])
        with federation(
            model, [first, clients[1]], seed=9, clip_norm=None, bound=FirstIsSilent(fl.Clip(1.0))
        ) as run:
            run.run()
        finals.append(flat(model))
    assert torch.equal(*finals)


def test_seals_see_every_way_of_writing():
    def swap(value: Tensor) -> None:
        torch.utils.swap_tensors(value, torch.full_like(value, 3.0))

    ways: list[Callable[[Tensor], Any]] = [
        lambda value: value.add_(1),
        lambda value: value.data.add_(1),
        lambda value: value.detach().copy_(torch.ones(3, 4)),
        lambda value: value.numpy().fill(2),
        lambda value: value.untyped_storage().fill_(1),
        lambda value: value.t_(),
        lambda value: value.resize_(2, 2),
        lambda value: value.set_(torch.ones(3, 4).untyped_storage()),
        lambda value: value.view(-1)[3].fill_(9),
        lambda value: value.requires_grad_(),
        lambda value: setattr(value, "data", torch.ones(3, 4)),
        lambda value: setattr(value, "grad", torch.ones(3, 4)),
        lambda value: setattr(value, "note", 1),
        # Nothing is changed, and yet it is a write.
        lambda value: value.zero_(),
        swap,
    ]
    for way in ways:
        value = torch.zeros(3, 4)
        seal = Seal({"other": torch.ones(2), "value": value})
        assert seal.broken() is None
        way(value)
        assert seal.broken() == "value"


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([torch.nan, -0.0]), torch.zeros(0), torch.tensor(True), torch.arange(3),
        torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.complex64),
        torch.zeros(4, 4)[:, 1], torch.zeros(7, dtype=torch.uint8)[1:],
    ],
    ids=str,
)  # fmt: skip
def test_seals_hold_for_every_type_and_layout(value):
    seal = Seal({"value": value})
    assert seal.broken() is None
    if value.numel():
        value.data[...] = 1 - value.data.to(torch.int8) if value.dtype == torch.bool else 5
        assert seal.broken() == "value"
        seal.restore()
        assert not bool((value == 5).any())


def test_a_renewed_seal_is_one_of_the_tensors_as_they_are_now():
    value, other = torch.zeros(3, 4), torch.zeros(2000)
    tensors = {"value": value, "other": other}
    seal = Seal(tensors)
    for number, tensor in enumerate((value, other), start=1):
        tensor.add_(1)
        assert seal.broken() is not None
        assert seal.again(tensors) is seal
        assert seal.broken() is None
        # Past torch's counter of writes: the bytes alone show it.
        tensor.numpy()[..., -1] = 7
        assert seal.broken() == ("value" if number == 1 else "other")
        seal.restore()
        assert float(tensor.flatten()[-1]) == 1
        seal = seal.again(tensors)
        assert seal.broken() is None


def test_a_seal_of_what_lies_elsewhere_is_made_anew():
    value = torch.zeros(3, 4)
    seal = Seal({"value": value})
    changes: list[Callable[[Tensor], Any]] = [
        lambda value: setattr(value, "data", torch.ones(3, 4)),
        lambda value: value.t_(),
        lambda value: value.resize_(2, 2),
        lambda value: torch.utils.swap_tensors(value, torch.full_like(value, 3.0)),
    ]
    for change in changes:
        change(value)
        before, seal = seal, seal.again({"value": value})
        assert seal is not before
        assert seal.broken() is None
        value.numpy()[...] += 1
        assert seal.broken() == "value"
    assert seal.again({"another": value}) is not seal
    assert seal.again({"value": value.clone()}) is not seal
    assert seal.again({"value": value, "more": value}) is not seal


def test_a_seal_from_inference_mode_is_made_anew_outside_of_it():
    value = torch.zeros(3)
    with torch.inference_mode():
        seal = Seal({"value": value})
        assert seal.again({"value": value}) is seal
    outside = seal.again({"value": value})
    assert outside is not seal
    assert outside.again({"value": value}) is outside


def test_a_watch_says_what_changed():
    class Note:
        count = 0

        def __init__(self) -> None:
            self.items = [1, {"deep": [2.0, float("nan")]}]
            self.count = 3

    note = Note()
    watch = Watch({"a note": note}, [])
    assert watch.changed() is None
    # Equal values are no change.
    note.items[1]["deep"][:] = [2.0, float("nan")]
    note.count = int("3")
    assert watch.changed() is None
    note.items[1]["deep"][0] = 2.5
    assert watch.changed() == "a note.items[1]['deep'][0]"
    note.items[1]["deep"][0] = 2.0
    note.more = 1
    assert watch.changed() == "a note (its 'more')"
    del note.more
    Note.count = 1
    assert watch.changed() == "a note.count"


def test_a_watch_leaves_huge_containers_and_foreign_objects_alone():
    huge, condition = [0] * 100_000, threading.Condition()
    watch = Watch({"a": {"huge": huge, "condition": condition}}, [])
    huge[3] = 1
    condition.value = 2
    assert watch.changed() is None
    huge.append(1)
    assert watch.changed() == "a['huge']"


def holders() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Objects of other libraries, and what puts something into each."""

    def waiting():
        kept = 0.0
        while True:
            kept = yield kept

    started = waiting()
    next(started)
    noted = torch.zeros(2)
    noted.notes = [0.0]
    graded = torch.zeros(2, requires_grad=True)
    graded.grad = torch.zeros(2)

    def formula():
        return 0.0

    def called(kept: list[float]) -> Any:
        class Called:
            def __call__(self) -> list[float]:
                return kept

        return Called()

    class Plain:
        """Words."""

    plain, partly, called_with = Plain(), functools.partial(max), list[float]()
    huge, hung = torch.zeros((1 << 23) + 1), torch.zeros((1 << 23) + 1)
    hung.grad = torch.zeros_like(hung)
    weakly = weakref.WeakKeyDictionary[Any, Any]()
    return {
        "namespace": (types.SimpleNamespace(v=0), lambda o: setattr(o, "v", 1)),
        "arguments": (argparse.Namespace(v=0), lambda o: setattr(o, "w", 1)),
        "user dictionary": (collections.UserDict(v=0), lambda o: o.update(v=1)),
        "thread's own": (threading.local(), lambda o: setattr(o, "v", 1)),
        "queue": (queue.Queue(), lambda o: o.put(1)),
        "context variable": (contextvars.ContextVar("v", default=0), lambda o: o.set(1)),
        "generator": (started, lambda o: o.send(1.0)),
        "weak": (weakly, lambda o: o.update({hostile: 1})),
        "bytes": (io.BytesIO(), lambda o: o.write(b"1")),
        "typed array": (array.array("d", [0.0]), lambda o: o.append(1.0)),
        "array of objects": (np.array([0.0, None], dtype=object), lambda o: o.put(0, 1)),
        "array by columns": (np.asfortranarray(np.zeros((3, 4))), lambda o: o.put(1, 1)),
        "array of records": (np.zeros(3, dtype=[("a", "f8")]), lambda o: o["a"].put(1, 1)),
        "generator of Python": (random.Random(0), lambda o: o.seed(1)),  # noqa: S311
        "generator of torch": (torch.Generator(), lambda o: o.manual_seed(1)),
        "generator of numpy": (np.random.default_rng(0), lambda o: o.random()),
        "old generator": (np.random.RandomState(0), lambda o: o.random()),
        "property": (
            property(functools.partial(max, [0.0])),
            lambda o: o.fget.args[0].append(1.0),
        ),
        "sparse": (torch.eye(3).to_sparse(), lambda o: o._values().zero_()),
        "hook": (torch.zeros(1, requires_grad=True), lambda o: o.register_hook(lambda g: g)),
        "note at a tensor": (noted, lambda o: o.notes.append(1.0)),
        "gradient": (graded, lambda o: o.grad.data.add_(1.0)),
        "large list": ([0.0] * 5000, lambda o: o.__setitem__(7, 1.0)),
        "lists in a list": ([[0.0] for _ in range(5000)], lambda o: o[4999].append(1.0)),
        "huge tensor": (torch.zeros((1 << 23) + 1), lambda o: o.data.view(-1)[5].add_(1)),
        "note at a huge tensor": (huge, lambda o: setattr(o, "note", 1)),
        "gradient of a huge tensor": (hung, lambda o: setattr(o, "grad", None)),
        "other attributes": (plain, lambda o: setattr(o, "__dict__", {"note": 1})),
        "other class": (Plain(), lambda o: setattr(o, "__class__", type("Other", (Plain,), {}))),
        "words of a class": (Plain, lambda o: setattr(o, "__doc__", "Other words.")),
        "code": (formula, lambda o: setattr(o, "__code__", (lambda: 1.0).__code__)),
        "other notes at a function": (waiting, lambda o: setattr(o, "__dict__", {"note": 1})),
        "note at a partial function": (partly, lambda o: setattr(o, "note", 1)),
        "what a call uses": (called(called_with), lambda _: called_with.append(1.0)),
        "sign of zero": ([0.0], lambda o: o.__setitem__(0, -0.0)),
        "simple queue": (queue.SimpleQueue(), lambda o: o.put(1)),
        "iterator": (iter([0.0, 1.0]), next),
        "numbers that are counted": (itertools.count(), next),
        "pairs": (zip([0.0, 1.0], [0.0, 1.0], strict=True), next),
    }


@pytest.mark.parametrize("name", holders())
def test_a_watch_sees_what_is_put_into_objects_of_other_libraries(name):
    value, put = holders()[name]
    watch = Watch({"a": [value]}, [])
    assert watch.changed() is None
    put(value)
    assert str(watch.changed()).startswith("a[0]")


def test_a_watch_sees_names_that_come_into_being():
    def writes(where: Any) -> float:
        return where + getattr(nn.Linear, "note", 0) + hostile.later + later  # noqa: F821

    def seen(change: Callable[[], Any], undo: Callable[[], Any]) -> str | None:
        watch = Watch({"a": writes}, [])
        assert watch.changed() is None
        change()
        found = watch.changed()
        undo()
        return found

    scope: dict[str, Any] = globals()
    assert "'later'" in str(seen(lambda: scope.update(later=1), lambda: scope.pop("later")))
    named = seen(lambda: setattr(hostile, "later", 1), lambda: delattr(hostile, "later"))
    assert "hostile.later" in str(named)


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (lambda: torch.set_default_dtype(torch.float64),
         lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
        (lambda: torch.use_deterministic_algorithms(True),
         lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    ],
    ids=["dtype", "gradients", "deterministic", "subnormal"],
)  # fmt: skip
def test_a_watch_sees_what_torch_is_set_to(change, undo):
    watch = Watch({}, [])
    assert watch.changed() is None
    try:
        change()
        assert "torch (its" in str(watch.changed())
    finally:
        undo()
    assert watch.changed() is None


def test_notes_are_those_of_the_thread_that_looks():
    class Own(threading.local):
        pass

    model = linear(FEATURES, CLASSES)
    model.kept, model.own = threading.local(), Own()
    params = dict(trainable(model))
    loss = LocalLoss(model, cross_entropy, tuple(params), "float32", functional=False)
    broadcast = Broadcast(1, params, {}, fl.SGD(lr=0.1))
    found: list[str] = []

    def later(name: str) -> None:
        try:
            with Isolation(broadcast, loss, None):
                getattr(model, name).value = 1.0
        except Unsupported as refusal:
            found.append(str(refusal))

    with Isolation(broadcast, loss, None):
        pass
    for name in ("kept", "own"):
        thread = threading.Thread(target=later, args=(name,))
        thread.start()
        thread.join()
    assert [name in words for name, words in zip(("kept", "own"), found, strict=True)] == [True] * 2


def test_generators_that_are_seeded_for_each_client_are_not_watched():
    watch = Watch({"a": [random.random, np.random.rand, torch.default_generator]}, [])
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.default_generator.manual_seed(1)
    assert watch.changed() is None


def test_notes_of_what_objects_hold_serve_until_something_changes():
    model = linear(FEATURES, CLASSES)
    params = dict(trainable(model))
    loss = LocalLoss(model, cross_entropy, tuple(params), "float32", functional=False)
    broadcast = Broadcast(1, params, {}, fl.SGD(lr=0.1))
    method = fl.DPFedAvg()

    def chunk() -> Isolation:
        return Isolation(broadcast, loss, method)

    with chunk():
        pass
    first = loss.replica._watched
    with chunk():
        pass
    assert loss.replica._watched is first
    # Between two chunks it may change: the next one begins with what is there now.
    model.note = [1.0]
    with chunk():
        pass
    assert loss.replica._watched is not first
    with pytest.raises(Unsupported, match="note"), chunk():
        model.note.append(2.0)
    with chunk():
        pass
    with pytest.raises(Unsupported, match="note"), chunk():
        model.note[0] = 3.0
    # Another method is another object to look at.
    other = fl.DPFedAvg()
    before = loss.replica._watched
    with Isolation(broadcast, loss, other):
        pass
    assert loss.replica._watched is not before
