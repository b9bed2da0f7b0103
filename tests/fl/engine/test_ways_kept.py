"""A run that is resumed trains as it did before, wherever that is still to be trusted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.engine.checkpoint import read_checkpoint
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.engine.written_ways import plain_way, way_in
from dpacct.fl.local.labels import Labels
from dpacct.fl.trainers import again, chooser
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.sizes import Sizes
from dpacct.fl.trainers.way import way_of
from dpacct.fl.trainers.ways import ClientWay, ExampleWay, KeptWay
from tests.fl.problems import convolutional, federation, flat, make_clients, perceptron

CPU = torch.device("cpu")
KIND = Kind(torch.float32, (6,), torch.int64, ())
SIDE = ClientWay(64, 12.5, True, False, KIND, Labels(3, -100, True), 10**6, 64, "64 side by side")
IMAGES = Kind(torch.bfloat16, (1, 8, 8), torch.bool, (2,))
WAYS = [
    SIDE,
    ClientWay(None, math.inf, False, True, KIND, None, None, 3, "one client at a time"),
    ExampleWay(Sizes(32, 96, 32), IMAGES, None, 960, "96 at once"),
    ExampleWay(None, KIND, Labels(2, 0), 5, "one example at a time"),
]
OF_EXAMPLES = ExampleWay(None, SIDE.kind, SIDE.labels, 5, "one example at a time")
PEOPLE = make_clients([6] * 40)


@pytest.fixture
def timed(monkeypatch):
    """Says how long the ways take: one client alone, and each of the groups."""

    def say(alone, groups):
        def seconds(heats, broadcast):
            del broadcast
            return [alone, *groups][: len(heats)]

        monkeypatch.setattr(chooser, "seconds", seconds)

    return say


FAST_GROUPS, SLOW_GROUPS = (1e-2, [1e-2, 1e-2, 1e-2]), (1e-4, [9.0, 9.0, 9.0])


def started(path=None, clients=PEOPLE, model=None, **changes):
    options = {"sampling": fl.Full(), "rounds": 4, "seed": 3, "checkpoint": path}
    options["vectorize"] = "auto"
    return federation(model or perceptron(), clients, **(options | changes))


def two_rounds(path, **changes):
    with started(path, **changes) as run:
        for report in run:
            if report.round == 2:
                return run.training_path
    return ""


def the_rest(path, **changes):
    """The path and the weights of the run that goes on."""
    with started(path, **changes).resume() as run:
        run.run()
        return run.training_path, flat(run.model)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.reason)
def test_ways_are_read_as_they_were_written(tmp_path, way):
    path = tmp_path / "way.pt"
    torch.save(plain_way(KeptWay(way, "cuda")), path)
    assert way_in(torch.load(path, weights_only=True)) == KeptWay(way, "cuda")
    assert way_in(plain_way(None)) is None


DAMAGED = {
    "unit": ["rows", None, 3],
    "device": [None, "x" * 2000],
    "clients": [1.0, True, -1, "64"],
    "widest": [math.nan, -1.0, "12", None],
    "replays": [1, None],
    "kind": [None, {}, {"input_dtype": "float32"}],
    "labels": [{}, 3, {"count": 3, "ignored": -100, "padded": 1}],
    "room": [0.5, True],
    "chunk": [None, 2**80],
    "reason": [None, "x" * 2000, "two\nlines"],
    "more": [1],
}


@pytest.mark.parametrize("field", DAMAGED)
def test_damaged_ways_are_refused(field):
    for value in DAMAGED[field]:
        content = plain_way(KeptWay(SIDE, "cpu")) | {field: value}
        with pytest.raises(InvalidParameter, match="how clients are trained"):
            way_in(content)
    for wrong in (3, [], {}, {**plain_way(KeptWay(WAYS[2], "cpu")), "unit": "clients"}):
        with pytest.raises(InvalidParameter, match="how clients are trained"):
            way_in(wrong)


@pytest.mark.parametrize(
    "sizes",
    [
        3,
        {},
        {"least": 0, "most": 0, "step": 0},
        {"least": 32, "most": 80, "step": 32},
        {"least": 64, "most": 32, "step": 32},
        {"least": 32.0, "most": 64, "step": 32},
    ],
)
def test_damaged_sizes_are_refused(sizes):
    content = plain_way(KeptWay(WAYS[2], "cpu")) | {"sizes": sizes}
    with pytest.raises(InvalidParameter, match="how clients are trained"):
        way_in(content)


class Odd(torch.nn.Module):
    """A model that cannot train side by side, and says so in words of its own."""

    def __init__(self, words):
        super().__init__()
        self.inner, self._words = perceptron(), words

    def forward(self, inputs):
        if torch._C._functorch.is_batchedtensor(inputs):
            raise RuntimeError(self._words)
        return self.inner(inputs)


@pytest.mark.parametrize("words", ["a\tb", "\x1b[31mred", "\u202eback", "x" * 3000, "\x00" * 900])
def test_what_a_model_says_for_itself_damages_no_checkpoint(tmp_path, words):
    path = tmp_path / "run.pt"
    assert two_rounds(path, model=Odd(words)).isprintable()
    found, _ = the_rest(path, model=Odd(words))
    assert found.startswith("one client at a time: torch.func cannot batch")
    assert "not as before" not in found


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b", "\x00" * 900, "x" * 3000, "\ud800"])
def test_any_reason_that_is_written_can_be_read(tmp_path, reason):
    kept = KeptWay(ClientWay(None, math.inf, False, False, KIND, None, None, 3, reason), "cpu")
    torch.save(plain_way(kept), tmp_path / "way.pt")
    assert way_in(torch.load(tmp_path / "way.pt", weights_only=True)).device == "cpu"


@pytest.mark.parametrize("name", ["input_dtype", "target_dtype"])
@pytest.mark.parametrize("dtype", ["Tensor", "compile", "float31", 3])
def test_nothing_but_dtypes_is_looked_up(name, dtype):
    content = plain_way(KeptWay(SIDE, "cpu"))
    content["kind"][name] = dtype
    with pytest.raises(InvalidParameter, match="how clients are trained"):
        way_in(content)


def test_a_damaged_way_is_refused_with_its_file(tmp_path, timed):
    timed(*FAST_GROUPS)
    path = tmp_path / "run.pt"
    two_rounds(path)
    torch.save(read_checkpoint(path, CPU) | {"way": {"unit": "rows"}}, path)
    with started(path) as run, pytest.raises(InvalidParameter, match=r"run\.pt.*way to train"):
        run.resume()


@pytest.mark.parametrize("first", [FAST_GROUPS, SLOW_GROUPS], ids=["beside", "alone"])
def test_what_is_faster_now_does_not_change_a_seeded_run(tmp_path, timed, first):
    timed(*first)
    with started() as run:
        run.run()
        expected, path = flat(run.model), run.training_path
    assert two_rounds(tmp_path / "run.pt") == path
    timed(*(SLOW_GROUPS if first is FAST_GROUPS else FAST_GROUPS))
    found, resumed = the_rest(tmp_path / "run.pt")
    assert torch.equal(resumed, expected)
    assert found == path
    # Had it measured again, it would have ended elsewhere.
    with started() as run:
        run.run()
        assert run.training_path != path
        assert not torch.equal(flat(run.model), expected)


def test_images_place_by_place_are_kept(tmp_path, monkeypatch):
    images = [fl.ClientData(torch.randn(4, 1, 8, 8), torch.randint(3, (4,))) for _ in range(3)]
    options = {"clients": images, "vectorize": "auto", "chunk_size": 1}
    monkeypatch.setattr(chooser, "faster", lambda *_: True)
    path = two_rounds(tmp_path / "run.pt", model=convolutional(), **options)
    assert path.endswith("images place by place")
    monkeypatch.setattr(chooser, "faster", lambda *_: False)
    with started(tmp_path / "run.pt", model=convolutional(), **options).resume() as run:
        next(iter(run))
        assert run.training_path == path
    monkeypatch.setattr(chooser.TrainerChooser, "same_by_place", lambda *_: None)
    found, _ = the_rest(tmp_path / "run.pt", model=convolutional(), **options)
    assert found.startswith("one client at a time; not as before")


def test_a_checkpoint_written_before_the_first_round_of_a_resumed_run_keeps_it(tmp_path, timed):
    timed(*FAST_GROUPS)
    path = tmp_path / "run.pt"
    two_rounds(path)
    before = read_checkpoint(path, CPU)["way"]
    with started(path).resume() as run:
        run.save()
    assert read_checkpoint(path, CPU)["way"] == before
    assert before["clients"] == 64


def test_an_earlier_checkpoint_has_none_and_nothing_is_said(tmp_path, timed):
    timed(*FAST_GROUPS)
    path = tmp_path / "run.pt"
    two_rounds(path)
    content = read_checkpoint(path, CPU)
    del content["way"]
    torch.save(content, path)
    timed(*SLOW_GROUPS)
    found, _ = the_rest(path)
    assert found.startswith("one client at a time, ")
    assert "resumed" not in found


ANEW = {
    "another device": ({}, {"device": "cuda"}, "chosen on cuda"),
    "other examples": ({}, {"labels": None}, "looked otherwise"),
    "another population": ({}, plain_way(KeptWay(OF_EXAMPLES, "cpu")), "another kind of"),
    "other memory": ({"memory_limit": 40_000}, {}, "no room"),
    "wider batches than fit": ({}, {"widest": 1e12}, "no room"),
    "no such group": ({}, {"clients": 32 * 10**6}, "no room"),
    "a group of zero": ({}, {"clients": 0}, "no room"),
    "alone, as asked": ({"vectorize": False}, {}, "asks for another"),
    "another chunk": ({"chunk_size": 8}, {}, "asks for another"),
}


@pytest.mark.parametrize("what", ANEW)
def test_what_is_not_possible_any_more_is_chosen_anew(tmp_path, timed, what):
    changes, damage, told = ANEW[what]
    timed(*FAST_GROUPS)
    path = tmp_path / "run.pt"
    two_rounds(path)
    content = read_checkpoint(path, CPU)
    replaced = damage if "unit" in damage else content["way"] | damage
    torch.save(content | {"way": replaced}, path)
    timed(*SLOW_GROUPS)
    with started(path, **changes).resume() as run:
        next(iter(run))
        found = run.training_path
    assert found.startswith("one client at a time")
    assert "; not as before the run was resumed (" in found
    assert told in found
    # It is said once: the next one goes on as this one did.
    timed(*FAST_GROUPS)
    with started(path, **changes).resume() as run:
        next(iter(run))
        assert run.training_path == found.split("; not as")[0]


def test_so_is_what_shows_who_is_there(tmp_path, timed, monkeypatch):
    timed(*FAST_GROUPS)
    path = tmp_path / "run.pt"
    two_rounds(path)
    for module in (again, chooser):
        monkeypatch.setattr(module, "shows_company", lambda *_: "bits show company")
    found, _ = the_rest(path)
    assert found.startswith("one client at a time: bits show company; not as before")


def examples(path, **changes):
    data = make_clients([150])[0]
    settings = {"clients": fl.Examples(data), "sampling": fl.Poisson(0.5), "local": fl.SGD(steps=1)}
    return started(path, **(settings | changes))


def test_groups_of_examples_keep_their_size(tmp_path):
    path = tmp_path / "run.pt"
    with examples(path, chunk_size=32) as run:
        next(iter(run))
        assert run.training_path == "32 examples at once"
    with examples(None) as run:
        next(iter(run))
        assert not run.training_path.startswith("32 ")
    for changes, told in (
        ({}, "32 examples at once"),
        ({"vectorize": False}, "asks for another way"),
    ):
        with examples(path, **changes).resume() as run:
            run.run() if changes else next(iter(run))
            assert told in run.training_path
            assert ("resumed" in run.training_path) is bool(changes)


@pytest.mark.parametrize("sizes", [(33, 33, 33), (32, 33 * 32, 16), (32, 32 * 10**6, 32)])
def test_groups_of_examples_that_cannot_be_are_chosen_anew(tmp_path, sizes):
    path = tmp_path / "run.pt"
    with examples(path) as run:
        next(iter(run))
    content = read_checkpoint(path, CPU)
    damage = dict(zip(("least", "most", "step"), sizes, strict=True))
    torch.save(content | {"way": content["way"] | {"sizes": damage}}, path)
    with examples(path).resume() as run:
        next(iter(run))
        assert f"no room for groups of {sizes[1]}" in run.training_path


def test_so_are_groups_in_which_a_place_shows(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    with examples(path) as run:
        next(iter(run))
    monkeypatch.setattr("dpacct.fl.trainers.example_chooser.alike", lambda *_: None)
    with examples(path).resume() as run:
        next(iter(run))
        assert run.training_path.startswith("one example at a time: ")
        assert "depend on its place among others" in run.training_path.split("resumed")[1]


def test_who_follows_plays_steps_only_where_its_own_processor_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 may play what it has compared there; another processor has bits of its own."""
    run = started(vectorize=True, local=fl.SGD(lr=0.1, steps=3, batch_size=2))
    loop = run.player
    assert isinstance(loop, RoundLoop)
    monkeypatch.setattr(chooser, "replays_exactly", lambda *_: False)
    loop.prepare(4)
    assert loop.choice is not None
    own = way_of(loop.choice)
    assert isinstance(own, ClientWay)
    assert not own.replays
    loop.follow(replace(own, replays=True, chunk=7))
    assert way_of(loop.choice) == replace(own, chunk=7)
