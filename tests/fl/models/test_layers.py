"""Random crops and flips, and group norms in place of batch norms."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.models import CropFlip, with_group_norm
from tests.fl.problems import cross_entropy, federation, flat


def image() -> torch.Tensor:
    return torch.arange(1.0, 26.0).view(1, 1, 5, 5)


def crops(padding: int) -> dict[tuple[float, ...], tuple[int, int, bool]]:
    """All crops of the image, by their values, from slices of the padded one."""
    found = {}
    for mirrored in (False, True):
        inner = image()[0, 0].fliplr() if mirrored else image()[0, 0]
        whole = nn.functional.pad(inner, (padding,) * 4)
        for down, right in itertools.product(range(2 * padding + 1), repeat=2):
            cut = whole[down : down + 5, right : right + 5]
            found[tuple(cut.flatten().tolist())] = (down, right, mirrored)
    return found


def test_every_crop_and_mirror_image_comes_equally_often():
    known = crops(1)
    assert len(known) == 18
    torch.manual_seed(1)
    rows = CropFlip(1)(image().expand(9000, -1, -1, -1)).flatten(1).tolist()
    counts = dict.fromkeys(known.values(), 0)
    for row in rows:
        counts[known[tuple(row)]] += 1
    # 500 each, with a standard deviation of 22.
    assert min(counts.values()) > 380
    assert max(counts.values()) < 620


def test_without_padding_and_mirror_and_in_evaluation_nothing_changes():
    assert torch.equal(CropFlip(0, flip=False)(image()), image())
    assert torch.equal(CropFlip(2).eval()(image()), image())
    with pytest.raises(InvalidParameter, match="padding"):
        CropFlip(-1)


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_model_with_crops_trains_alone_and_side_by_side(vectorize):
    images = torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(2))
    clients = [fl.ClientData(images[:size], torch.arange(size) % 3) for size in (6, 4)]
    ends: list[torch.Tensor] = []
    for _ in range(2):
        torch.manual_seed(3)
        model = nn.Sequential(CropFlip(2), nn.Flatten(), nn.Linear(25, 3))
        local = fl.SGD(lr=0.1, steps=2, batch_size=3)
        federation(model, clients, seed=4, rounds=2, vectorize=vectorize, local=local).run()
        ends.append(flat(model))
    assert torch.isfinite(ends[0]).all()
    assert torch.equal(*ends)


def test_no_batch_norm_is_left_and_weights_stay():
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.Sequential(nn.BatchNorm2d(48))
    )
    with torch.no_grad():
        model[1].weight.fill_(2.0)
    changed = with_group_norm(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(changed[1], nn.GroupNorm)
    assert isinstance(changed[2][0], nn.GroupNorm)
    assert changed[1].num_groups == 16
    assert torch.equal(changed[1].weight, torch.full((48,), 2.0))
    assert isinstance(with_group_norm(nn.BatchNorm1d(4)), nn.GroupNorm)
    with pytest.raises(InvalidParameter, match="groups"):
        with_group_norm(model, 0)


@pytest.mark.parametrize(
    ("library", "name"), [("torchvision.models", "shufflenet_v2_x0_5"), ("timm", "test_resnet")]
)
@pytest.mark.usefixtures("torchvision")
def test_a_network_of_another_library_trains_with_group_norm(library, name):
    models = pytest.importorskip(library)
    make = models.create_model if library == "timm" else models.get_model
    model = with_group_norm(make(name, num_classes=3))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert not list(model.buffers())
    clients = [fl.ClientData(torch.randn(2, 3, 32, 32), torch.tensor([0, k])) for k in (1, 2)]
    report = federation(model, clients, rounds=1, local=fl.SGD(steps=1)).run()
    assert not report.diagnostics.dropped_updates


class LowRank(nn.Module):
    """A frozen linear layer, and an adapter of rank 2 beside it: W x + B A x."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, frozen.in_features))
        self.b = nn.Parameter(torch.zeros(frozen.out_features, 2))

    def forward(self, inputs):
        return self.frozen(inputs) + inputs @ self.a.T @ self.b.T


class Attention(nn.Module):
    """A block of a transformer, with adapters of its queries and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.query, self.value = (LowRank(nn.Linear(width, width)) for _ in range(2))
        self.key = nn.Linear(width, width).requires_grad_(False)

    def forward(self, inputs):
        x = self.norm(inputs)
        parts = self.query(x), self.key(x), self.value(x)
        return inputs + nn.functional.scaled_dot_product_attention(*parts)


@pytest.mark.parametrize("vectorize", [False, True])
def test_adapters_of_a_transformer_train_and_the_rest_is_frozen(vectorize):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(8), nn.Flatten(), nn.Linear(24, 3).requires_grad_(False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    clients = [fl.ClientData(torch.randn(4, 3, 8), torch.arange(4) % 3) for _ in range(3)]
    with federation(model, clients, vectorize=vectorize, rounds=2, clip_norm=0.1) as run:
        assert not run.run().diagnostics.dropped_updates
        assert run.engine.layout.size == 2 * 2 * (8 + 8)
    changed = {name for name, value in model.state_dict().items() if (value != before[name]).any()}
    assert changed == {f"0.{layer}.{part}" for layer in ("query", "value") for part in "ab"}


@pytest.mark.filterwarnings("ignore")
def test_adapters_of_peft_are_what_a_federation_trains():
    # They do not import beside a torchvision for another PyTorch.
    names = ("peft", "transformers")
    peft, transformers = (pytest.importorskip(name, exc_type=ImportError) for name in names)
    small = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=2,
    )  # fmt: skip
    bert = transformers.BertForSequenceClassification(small)
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = peft.get_peft_model(bert, lora)

        def forward(self, tokens):
            return self.model(input_ids=tokens).logits

    model = Logits()
    before = {name: value.clone() for name, value in model.named_parameters()}
    clients = [fl.ClientData(torch.randint(50, (4, 6)), torch.arange(4) % 2) for _ in range(2)]
    settings = {"clip_norm": 0.1, "noise_multiplier": 1.0, "sampling": fl.Full(), "rounds": 1}
    fl.Federation(model, cross_entropy, clients, **settings).run()
    for name, value in model.named_parameters():
        adapter = "lora_" in name or "modules_to_save" in name
        assert value.requires_grad == adapter
        assert torch.equal(value, before[name]) != adapter
