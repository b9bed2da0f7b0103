"""The engine on a device that is not there: nothing is left behind, and little is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.data import Examples, PartitionedClients
from dpacct.fl.data.partitions import iid
from dpacct.fl.engine import memories
from dpacct.fl.engine.checkpoint import read_checkpoint
from dpacct.fl.engine.memories import fetched, uploaded
from dpacct.fl.guards.seals import Seal, broken_ones
from dpacct.fl.layout import Layout
from dpacct.fl.privacy import sums
from tests.fl import elsewhere
from tests.fl.elsewhere import HERE_NOT, Device, Elsewhere, Mixed
from tests.fl.problems import convolutional, federation, flat, make_clients, perceptron

CLIENTS = 4
# What a round waits for apart from its clients: the statistics; what clients were shown; the model.
# And what it copies there.
WAITS, ROUND = 3, 9
LOCAL = fl.SGD(lr=0.1, steps=3, batch_size=4)
WAYS = pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device; generators and `torch.tensor`, which go past all modes, know it too."""
    monkeypatch.setattr(torch, "Generator", elsewhere.Generator)
    monkeypatch.setattr(torch, "tensor", elsewhere.tensor)
    # Whose bits depend on whom there is up to a device's own kernels.
    monkeypatch.setattr("dpacct.fl.trainers.chooser.shows_company", lambda *_: "")
    with Device() as there:
        yield there


def second_round(
    device: Device, model: nn.Module | None = None, clients: Any = None, **options: Any
) -> fl.Federation:
    """Play two rounds, and count in the second."""
    people = make_clients([16] * CLIENTS) if clients is None else clients
    settings: dict[str, Any] = {"rounds": 2, "local": LOCAL}
    run = federation(model or perceptron(), people, device=HERE_NOT, **(settings | options))
    with run:
        for report in run:
            assert report.released
            if report.round == 1:
                device.waits.clear()
                device.copies.clear()
    assert all(isinstance(value, Elsewhere) for value in run.model.parameters())
    return run


@WAYS
def test_a_round_waits_for_few_values_and_copies_each_client_once(device, vectorize):
    second_round(device, vectorize=vectorize)
    # Inputs, targets and the order of the examples; one look at what the client was shown.
    looks = 0 if vectorize else CLIENTS
    assert device.waits.total() + device.copies["to the host"] <= WAITS + looks
    assert device.copies["from the host"] <= 3 * CLIENTS + ROUND


@pytest.mark.slow
@WAYS
def test_steps_wait_for_nothing(device, vectorize):
    second_round(device, vectorize=vectorize, local=fl.SGD(lr=0.1, steps=4, batch_size=4))
    few = dict(device.waits), dict(device.copies)
    second_round(device, vectorize=vectorize, local=fl.SGD(lr=0.1, steps=9, batch_size=4))
    assert (dict(device.waits), dict(device.copies)) == few


def there(clients: int) -> PartitionedClients:
    """Clients of a table on the device."""
    single = make_clients([16 * clients])[0]
    examples = Examples(single.inputs, single.targets)
    people = PartitionedClients(examples, iid(16 * clients, clients), HERE_NOT)
    assert isinstance(people[0].inputs, Elsewhere)
    return people


def test_more_clients_of_a_table_there_are_no_more_copies_side_by_side(device):
    local = fl.SGD(lr=0.1, epochs=1, batch_size=8)
    second_round(device, clients=there(CLIENTS), vectorize=True, local=local)
    few = device.waits.copy(), device.copies.copy()
    second_round(device, clients=there(3 * CLIENTS), vectorize=True, local=local)
    assert (device.waits, device.copies) == few


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 1 << 30], ids=["on the CPU", "there"])
def test_nor_of_memories(device, monkeypatch, room):
    monkeypatch.setattr(memories, "_ROOM", room)
    traffic = []
    for clients in (CLIENTS, 3 * CLIENTS):
        local = fl.SGD(lr=0.1, epochs=1, batch_size=4)
        people = there(clients)
        run = second_round(
            device, clients=people, method=fl.Scaffold(), vectorize=True, local=local
        )
        traffic.append((device.waits.copy(), device.copies.copy()))
        kept = run.player.state.client_states
        assert len(kept) == clients
        values = [value for own in kept.values() for value in own.values()]
        assert all(isinstance(value, Elsewhere) is bool(room) for value in values)
        # One's memory leads to no other's.
        bare = [value.inner if isinstance(value, Elsewhere) else value for value in values]
        assert all(value.untyped_storage().nbytes() == value.nbytes for value in bare)
    assert traffic[0] == traffic[1]


def remembering(path=None, **changes):
    """A seeded run whose clients remember, four rounds of it."""
    options = {
        "method": fl.Scaffold(),
        "sampling": fl.Poisson(0.6),
        "rounds": 4,
        "seed": 8,
        "checkpoint": path,
    }
    people = make_clients([16] * CLIENTS)
    return federation(perceptron(), people, local=LOCAL, device=HERE_NOT, **(options | changes))


@pytest.mark.sampled(1)
@WAYS
@pytest.mark.usefixtures("device")
def test_where_memories_lie_shows_in_no_bit(monkeypatch, tmp_path, vectorize):
    """Nor whether the run was interrupted, and its memories brought back from a file."""
    ends = []
    for room in (0, 1 << 30):
        monkeypatch.setattr(memories, "_ROOM", room)
        path = tmp_path / f"{room}.pt"
        with remembering(path, vectorize=vectorize) as run:
            for report in run:
                if report.round == 2:
                    break
        values = read_checkpoint(path, torch.device("cpu"))["client_states"]
        assert values
        assert not any(isinstance(v, Elsewhere) for own in values.values() for v in own.values())
        with remembering(path, vectorize=vectorize).resume() as run:
            run.run()
        kept = run.player.state.client_states
        assert any(isinstance(own["memory"], Elsewhere) for own in kept.values()) is bool(room)
        ends.append((flat(run.model).to("cpu"), fetched(kept)))
        with remembering(vectorize=vectorize) as whole:
            whole.run()
        assert torch.equal(flat(whole.model).to("cpu"), ends[-1][0])
    (one, mine), (two, yours) = ends
    assert torch.equal(one, two)
    assert mine.keys() == yours.keys()
    assert all(torch.equal(mine[c][name], yours[c][name]) for c in mine for name in mine[c])


def test_memories_stay_where_those_of_all_clients_have_room(device, monkeypatch):
    own = {1: {"own": torch.ones(300).to(HERE_NOT), "more": torch.ones(1).to(HERE_NOT)}}
    # 1200 bytes take three blocks, and four bytes one.
    for room, stays in ((10 * 2048, True), (10 * 2048 - 1, False)):
        monkeypatch.setattr(memories, "_ROOM", room)
        home = memories.Home(HERE_NOT, 10)
        assert home.kept({}) == {}
        assert isinstance(home.kept(own)[1]["own"], Elsewhere) is stays
        # Decided once; what comes from the CPU stays there.
        monkeypatch.setattr(memories, "_ROOM", 2048 * 10 - room)
        assert isinstance(home.kept(own)[1]["own"], Elsewhere) is stays
        assert not isinstance(home.kept({2: {"own": torch.ones(1)}})[2]["own"], Elsewhere)
    assert device.copies


def test_many_memories_are_copied_in_parts(device, monkeypatch):
    monkeypatch.setattr(memories, "_AT_ONCE", 3 * 512)
    there = {client: {"own": torch.full((2,), float(client)).to(HERE_NOT)} for client in range(7)}
    device.copies.clear()
    back = fetched(there)
    assert device.copies["to the host"] == 3
    assert [back[client]["own"].tolist() for client in range(7)] == [[float(c)] * 2 for c in back]


def test_a_gpu_has_room_for_a_share_of_what_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 9000))
    assert memories.room_on(torch.device("cuda")) == 400
    assert memories.room_on(torch.device("cpu")) == 0


def test_places_that_go_past_all_modes_are_found(device):
    assert device is not None
    values = torch.ones(4).to(HERE_NOT)
    with pytest.raises(Mixed, match="past all modes"):
        values[[1, 2]]


def test_memories_of_any_form_come_and_go(device):
    values = {1: torch.ones(2), 2: torch.zeros(3), 4: torch.full((2,), 3.0)}
    there = {client: {"own": value.to(HERE_NOT)} for client, value in values.items()}
    device.copies.clear()
    back = fetched(there | {7: {"own": torch.ones(1)}})
    assert device.copies["to the host"] == 2
    assert {client: own["own"].tolist() for client, own in back.items()} == {
        1: [1.0, 1.0],
        2: [0.0, 0.0, 0.0],
        4: [3.0, 3.0],
        7: [1.0],
    }
    sent = uploaded([back[1], None, there[2], back[4], {}], HERE_NOT)
    assert device.copies["from the host"] == 1
    assert sent[1] is None
    assert sent[2] is there[2]
    assert not sent[4]
    assert sent[3]["own"].tolist() == [3.0, 3.0]
    assert isinstance(sent[0]["own"], Elsewhere)


@pytest.mark.slow
def test_one_by_one_the_order_of_its_examples_is_all_that_is_copied_for_a_client(device):
    second_round(device, clients=there(CLIENTS), vectorize=False)
    # And which examples are whose.
    assert device.copies["from the host"] <= CLIENTS + 1 + ROUND


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(fl.METHODS))
@WAYS
def test_no_method_leaves_a_tensor_behind(device, name, vectorize):
    method = fl.METHODS[name]()
    bound = {"clip_norm": None} if method.bound else {}
    second_round(device, method=method, vectorize=vectorize, **bound)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {"secure_noise": True},
        {"preflight": True},
        {"server": fl.Adam(lr=0.01), "local": fl.SGD(lr=0.1, momentum=0.5, weight_decay=0.1)},
        {"clip_norm": None, "bound": fl.AdaptiveClip(1.0), "noise_multiplier": 1.0},
        {"clip_norm": None, "bound": fl.PerLayerClip((0.5,) * 4)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_setting_leaves_a_tensor_behind(device, options):
    if "bound" in options:
        options = options | {"clients": make_clients([4] * 40)}
    second_round(device, **options)


@pytest.mark.slow
def test_nor_do_convolutions(device):
    images = [fl.ClientData(torch.randn(8, 1, 8, 8), torch.randint(3, (8,))) for _ in range(4)]
    second_round(device, convolutional(), images, vectorize=True)


@pytest.mark.parametrize("size", [3, 4])
def test_a_seal_there_is_broken_by_a_write_that_nothing_counts(device, size):
    assert device is not None
    # Of an odd number of words, and of a whole one.
    value, other = torch.ones(size).to(HERE_NOT), torch.ones(2).to(HERE_NOT)
    seal = Seal({"other": other, "value": value})
    assert seal.broken() is None
    value.data.fill_(2.0)
    assert seal.broken() == "value"


def test_several_seals_are_looked_at_once(device):
    values = [torch.full((3,), float(number)).to(HERE_NOT) for number in range(6)]
    seals = [
        Seal({"a": one, "b": other}) for one, other in zip(values[::2], values[1::2], strict=True)
    ]
    device.copies.clear()
    assert broken_ones(seals) == [None] * 3
    values[3].data.fill_(9.0)
    values[4].data.fill_(9.0)
    values[5].data.fill_(9.0)
    assert broken_ones(seals) == [None, "b", "a"]
    # What is seen without asking is told first.
    values[0].add_(1)
    assert broken_ones(seals) == ["a", "b", "a"]
    assert device.copies == {"to the host": 3}
    assert broken_ones([]) == []


def test_a_tensor_that_is_left_behind_is_found(device):
    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = perceptron()

        def forward(self, inputs):
            return self.layer(inputs) + torch.ones(3)

    with pytest.raises((Mixed, Unsupported), match="on the CPU"):
        second_round(device, Forgets())


@WAYS
def test_a_round_there_is_the_round_on_the_cpu(device, vectorize):
    """Up to the noise, which is another one there: 0.001 / CLIENTS on the mean."""
    options: dict[str, Any] = {"seed": 3, "noise_multiplier": 0.001, "rounds": 1}
    options |= {"vectorize": vectorize, "sampling": fl.Full()}
    there = flat(second_round(device, **options).model).to("cpu")
    model = perceptron()
    with federation(model, make_clients([16] * CLIENTS), local=LOCAL, **options) as run:
        run.run()
    # Eight standard deviations of the difference of two noises: fails one time in 1e14.
    assert torch.allclose(there, flat(model), rtol=1e-5, atol=8 * 2**0.5 * 0.001 / CLIENTS)


def test_more_rows_are_bounded_at_a_time_on_a_device():
    layout = Layout.of({"weight": torch.zeros(1000, 1000)})
    assert sums.few_rows(layout, torch.device("cpu")) == 1
    assert sums.few_rows(layout, torch.device("cuda")) == 67
