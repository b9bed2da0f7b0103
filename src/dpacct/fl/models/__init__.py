"""Models by name, their evaluation on held-out examples, and their file.

Their parameters are their only state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.files import write_file
from dpacct.fl.clients import ClientData, arguments
from dpacct.fl.data.dataset import Dataset
from dpacct.fl.data.images import torchvision_part
from dpacct.fl.models.networks import (
    CharacterLSTM,
    ConvNet,
    CropFlip,
    LogisticRegression,
    ResNet,
    resnet10,
    resnet18,
    resnet20,
    with_group_norm,
)
from dpacct.fl.tensors import load_saved
from dpacct.packages import import_other

__all__ = [
    "MODELS", "CharacterLSTM", "ConvNet", "CropFlip", "LogisticRegression", "Model", "ResNet",
    "build_model", "cross_entropy", "load_parameters", "resnet10", "resnet18", "resnet20",
    "save_parameters", "with_group_norm",
]  # fmt: skip

Model = nn.Module

_Builder = Callable[[Dataset], nn.Module]


def _image_shape(dataset: Dataset, name: str) -> tuple[int, int, int]:
    shape = dataset.input_shape
    if len(shape) != 3 or min(shape[1:]) < 4:
        rule = f"{name} sees images [channels, height, width], and {dataset.name} has {shape}"
        raise InvalidParameter("model", name, rule)
    return shape[0], shape[1], shape[2]


def _logistic(dataset: Dataset) -> nn.Module:
    if not dataset.train.batch(slice(0, 1))[0].is_floating_point():
        rule = f"it needs numbers, and {dataset.name} holds characters"
        raise InvalidParameter("model", "logistic", rule, "Try lstm-small.")
    return LogisticRegression(prod(dataset.input_shape), dataset.num_classes)


def _cnn(
    name: str, channels: tuple[int, ...], kernel: int, hidden: tuple[int, ...], dataset: Dataset
) -> nn.Module:
    shape, classes = _image_shape(dataset, name), dataset.num_classes
    return ConvNet(shape, classes, channels=channels, kernel=kernel, hidden=hidden)


def _resnet(build: Callable[[int, int], nn.Module], dataset: Dataset) -> nn.Module:
    return build(_image_shape(dataset, build.__name__)[0], dataset.num_classes)


def _lstm(name: str, num_units: int, num_layers: int, dataset: Dataset) -> nn.Module:
    if dataset.train.inputs.dtype is not torch.int64 or len(dataset.input_shape) != 1:
        rule = f"it reads text, and {dataset.name} holds none"
        raise InvalidParameter("model", name, rule)
    every, classes = dataset.train.targets.ndim == 2, dataset.num_classes
    return CharacterLSTM(classes, num_units=num_units, num_layers=num_layers, every_position=every)


def _vit(dataset: Dataset) -> nn.Module:
    """Return ViT-Base of torchvision with random weights, on images scaled to 224 pixels."""
    if _image_shape(dataset, "vit-base")[0] != 3:
        rule = f"it sees colors, and {dataset.name} has none"
        raise InvalidParameter("model", "vit-base", rule)
    models = torchvision_part("models", "vit-base is made by")
    scaled = nn.Upsample((224, 224), mode="bilinear")
    return nn.Sequential(scaled, models.vit_b_16(weights=None, num_classes=dataset.num_classes))


class _Roberta(nn.Module):
    """RoBERTa of transformers with random weights, by default Base. The token 1 is padding."""

    def __init__(self, num_classes: int, vocabulary: int, **shape: int) -> None:
        super().__init__()
        names = ("RobertaConfig", "RobertaForSequenceClassification")
        make_config, make_model = import_other("transformers", "4.50", *names)
        config = make_config(num_labels=num_classes, vocab_size=vocabulary, hidden_dropout_prob=0.0,
            max_position_embeddings=514, attention_probs_dropout_prob=0.0,
            attn_implementation="eager", **shape)  # fmt: skip
        self.inner = make_model(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, classes] of tokens [n, length]."""
        return self.inner(input_ids=tokens, attention_mask=(tokens != 1).long()).logits


_VOCABULARY = 50_265
_TINY = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip


def _roberta(name: str, shape: dict[str, int], dataset: Dataset) -> nn.Module:
    if dataset.train.inputs.dtype is not torch.int64 or dataset.train.targets.ndim != 1:
        rule = f"it reads tokens with one label for each text, which {dataset.name} has not"
        raise InvalidParameter("model", name, rule)
    if max(int(part.inputs.max()) for part in (dataset.train, dataset.test)) >= _VOCABULARY:
        rule = f"it knows {_VOCABULARY:,} tokens, and {dataset.name} has more"
        raise InvalidParameter("model", name, rule, "Use the tokenizer of RoBERTa.")
    return _Roberta(dataset.num_classes, _VOCABULARY, **shape)


def _with_lora(model: nn.Module) -> nn.Module:
    """Return a model of which low-rank changes of attention and the last layer are trained."""
    adapted, make_config = import_other("peft", "0.15", "get_peft_model", "LoraConfig")
    layers = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    named = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    attention = [name for name in named if name.rsplit(".", 1)[-1] in ("query", "value")]
    chosen = attention or [name for name in named if ".mlp." in name]
    heads = [name for name in named if "head" in name or "classifier" in name]
    return adapted(model, make_config(target_modules=chosen, modules_to_save=heads))


MODELS: dict[str, _Builder] = {
    "logistic": _logistic,
    "cnn-small": partial(_cnn, "cnn-small", (16, 32), 3, (64,)),
    "cnn": partial(_cnn, "cnn", (32, 64), 5, (512,)),
    "cnn-wide": partial(_cnn, "cnn-wide", (64, 128), 5, (384, 192)),
    "resnet10": partial(_resnet, resnet10),
    "resnet18": partial(_resnet, resnet18),
    "resnet20": partial(_resnet, resnet20),
    "lstm-small": partial(_lstm, "lstm-small", 64, 1),
    "lstm": partial(_lstm, "lstm", 256, 2),
    "vit-base": _vit,
    "roberta-base": partial(_roberta, "roberta-base", {}),
    "roberta-tiny": partial(_roberta, "roberta-tiny", _TINY),
}
for _name in ("vit-base", "roberta-base", "roberta-tiny"):
    MODELS[f"{_name}-lora"] = lambda dataset, build=MODELS[_name]: _with_lora(build(dataset))


def build_model(name: str, dataset: Dataset, *, seed: int = 0) -> nn.Module:
    """Return the model called ``name`` for the inputs and classes of a data set.

    Args:
        name: one of `MODELS`: ``logistic``. ``cnn-small`` (two 3 x 3 convolutions of 16 and 32
            channels, 64 dense). ``cnn`` (two 5 x 5 of 32 and 64, 512 dense). ``cnn-wide`` (two
            5 x 5 of 64 and 128, 384 and 192 dense). ``resnet10``, ``resnet18``, ``resnet20``.
            ``lstm-small`` (embedding 8, one layer of 64). ``lstm`` (two layers of 256).
            ``vit-base``, ``roberta-base`` and ``roberta-tiny`` (two layers of 32) with random
            weights, by torchvision and transformers; with ``-lora``, low-rank changes, by peft.
        dataset: has the shape of inputs and the number of classes.
        seed: public, for the initial parameters. They do not depend on the data.

    Raises:
        InvalidParameter: an unknown name, or inputs that do not fit the model.
    """
    validate.one_of("model", name, "a model", MODELS)
    # The caller's own generators stay where they are: noise may come from them.
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        return MODELS[name](dataset)


def load_parameters(model: nn.Module, path: str | os.PathLike[str]) -> list[str]:
    """Load public parameters that fit, and return the names of those that stay as they were.

    A file of `save_parameters` fits the model that it was made of. Of another model, tensors with
    the same name and shape are taken, such as all but the last layer.

    Raises:
        InvalidParameter: the file is no dictionary of tensors, or none of them fits.
    """
    file = validate.file_path("init", path)
    content = load_saved("init", file, "a file of parameters")
    own = model.state_dict()
    held = cast("dict[Any, Any]", content) if isinstance(content, dict) else {}
    fits = {
        name: value
        for name, value in held.items()
        if isinstance(value, Tensor) and value.layout is torch.strided
        if name in own and (value.dtype, value.shape) == (own[name].dtype, own[name].shape)
    }
    if not fits:
        raise InvalidParameter(
            "init", str(file), "none of its tensors has a name, type and shape of it"
        )
    if not all(bool(value.isfinite().all()) for value in fits.values()):
        raise InvalidParameter("init", str(file), "parameters are finite")
    model.load_state_dict({**own, **fits})
    return [name for name in own if name not in fits]


def save_parameters(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the parameters as CPU tensors, complete under their final name or not at all.

    ``torch.load(path, weights_only=True)`` gives a dictionary for ``model.load_state_dict``.

    Raises:
        OSError: the file cannot be written. An existing file is untouched.
        InvalidParameter: the path is that of a ledger or a folder.
    """
    parameters = {name: value.cpu() for name, value in model.state_dict().items()}
    write_file(
        Path(path), lambda stream: torch.save(parameters, stream), name="model", replace=True
    )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean ``loss``, and ``accuracy`` in [0, 1]: how often the argmax is the target."""

    loss: float
    accuracy: float


def evaluate(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: ClientData,
    *,
    batch_size: int = 1024,
) -> Evaluation:
    """Return the loss and accuracy of a model, without gradients, in evaluation mode.

    The last dimension of the outputs (of dimension 1 where outputs are [n, classes, ...] and
    targets [n, ...]) holds the classes. Held-out data of the same clients are not covered by the
    run's epsilon.

    Args:
        model: the module. loss: mean loss of (outputs, targets).
        data: inputs [n, ...] and targets [n, ...], n >= 1.
        batch_size: examples in one forward pass.
    Returns:
        The evaluation, with the mean loss over examples.
    Raises:
        InvalidParameter: a batch size below 1.
    """
    batch_size = validate.count("batch_size", batch_size, "a batch size")
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    total, right, judged = 0.0, 0, 0
    try:
        with torch.no_grad():
            for start in range(0, len(data), batch_size):
                stop = start + batch_size
                part = data.map(lambda values: values[start:stop].to(device))  # noqa: B023
                places, named = arguments(part.inputs)
                outputs, targets = model(*places, **named), part.targets
                total += float(loss(outputs, targets)) * len(part)
                axis = 1 if outputs.ndim == targets.ndim + 1 else -1
                hits = outputs.argmax(dim=axis) == targets
                right += int(hits.sum())
                judged += hits.numel()
    finally:
        model.train(training)
    return Evaluation(total / max(len(data), 1), right / max(judged, 1))
