"""Random crops and flips, and group norms in place of batch norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.models import CropFlip, with_group_norm
from tests.fl.problems import cross_entropy


def image() -> torch.Tensor:
    return torch.arange(1.0, 26.0).view(1, 1, 5, 5)


def crops(padding: int) -> dict[tuple[float, ...], tuple[int, int, bool]]:
    """All crops of the image, by their values, from slices of the padded one."""
    found = {}
    size = 5
    for mirrored in (False, True):
        whole = torch.zeros(size + 2 * padding, size + 2 * padding)
        inner = image()[0, 0]
        whole[padding : padding + size, padding : padding + size] = (
            inner.fliplr() if mirrored else inner
        )
        for down in range(2 * padding + 1):
            for right in range(2 * padding + 1):
                cut = whole[down : down + size, right : right + size]
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


def trained(*others: fl.ClientData, vectorize: bool) -> torch.Tensor:
    torch.manual_seed(3)
    model = nn.Sequential(CropFlip(2), nn.Flatten(), nn.Linear(25, 3))
    generator = torch.Generator().manual_seed(2)
    client = fl.ClientData(
        torch.randn(6, 1, 5, 5, generator=generator), torch.arange(6) % 3
    )  # fmt: skip
    with fl.Federation(
        model, cross_entropy, [client, *others], sampling=fl.Full(), rounds=2, seed=4,
        noise_multiplier=1e-3, delta=1e-3, clip_norm=0.5, vectorize=vectorize,
        local=fl.SGD(lr=0.1, steps=2, batch_size=3),
    ) as run:  # fmt: skip
        run.run()
    return torch.cat([value.detach().flatten() for value in model.parameters()])


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_model_with_crops_trains_alone_and_side_by_side(vectorize):
    other = fl.ClientData(torch.ones(4, 1, 5, 5), torch.zeros(4, dtype=torch.int64))
    found = trained(other, vectorize=vectorize)
    assert torch.isfinite(found).all()
    assert torch.equal(found, trained(other, vectorize=vectorize))


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


def test_a_residual_network_of_torchvision_trains_with_group_norm():
    try:
        models = pytest.importorskip("torchvision.models")
    except RuntimeError as error:
        pytest.skip(f"torchvision does not fit the installed PyTorch ({error})")
    model = with_group_norm(models.resnet18(num_classes=3))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    assert not list(model.buffers())
