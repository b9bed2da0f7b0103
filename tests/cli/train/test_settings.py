"""What a run is told: layers over layers, and nothing that contradicts itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import DpacctError, InvalidParameter
from dpacct_cli.train.defaults import COMMON, DEFAULTS
from dpacct_cli.train.files import RunFiles, begin
from dpacct_cli.train.options import METHODS, MODELS
from dpacct_cli.train.settings import (
    ALTERNATIVES,
    KEYS,
    RunSettings,
    check_folder,
    check_unchanged,
    combine,
    load,
    looked_at,
    merge,
)

layers = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["1", "2", "0.5"]), max_size=6)


def settings(config: str = "", tmp_path: Path | None = None, **typed: str) -> RunSettings:
    if config:
        assert tmp_path is not None
        file = tmp_path / "run.toml"
        file.write_text(config, encoding="utf-8")
        return combine("dp-fedavg", typed, config=str(file))
    return combine("dp-fedavg", typed)


@given(low=layers, high=layers)
def test_the_higher_layer_holds_and_nothing_stands_twice(
    low: dict[str, str], high: dict[str, str]
) -> None:
    merged = merge(low, high)
    assert high.items() <= merged.items()
    assert set(merged) <= set(low) | set(high) | {"clients"}
    for group in ALTERNATIVES:
        if sum(key in high for key in group) == 1:
            assert sum(key in merged for key in group) == 1


def test_defaults_suit_the_data() -> None:
    plain = settings()
    assert plain.values["data"] == "digits"
    assert plain.values["model"] == "logistic"
    assert plain.chosen == frozenset()
    text = settings(data="shakespeare")
    assert (text.values["model"], text.values["partition"]) == ("lstm-small", "natural")
    assert text.get("clients") is None


def test_typed_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('rounds = 7\nlocal_lr = 0.5\npartition = "dirichlet:1"\n', encoding="utf-8")
    found = combine("dp-fedavg", {"rounds": "3"}, config=str(file)).values
    assert found["rounds"] == "3"
    assert found["local_lr"] == "0.5"
    assert found["partition"] == "dirichlet:1"
    assert found["server_lr"] == COMMON["server_lr"]


@pytest.mark.parametrize(
    ("typed", "gone"),
    [
        ({"noise": "1"}, "eps"),
        ({"cohort": "5"}, "q"),
        ({"local_steps": "5"}, "local_epochs"),
        ({"sampling": "full"}, "q"),
        ({"partition": "natural"}, "clients"),
    ],
)
def test_what_is_typed_replaces_the_default_that_it_contradicts(
    typed: dict[str, str], gone: str
) -> None:
    assert settings().get(gone) is not None
    assert settings(**typed).get(gone) is None


def test_leaving_the_natural_partition_needs_no_number_of_clients() -> None:
    assert settings(data="femnist", partition="iid").values["clients"] == COMMON["clients"]
    assert settings(data="femnist", partition="iid", clients="30").values["clients"] == "30"


@pytest.mark.parametrize(
    ("one", "other"), [("eps", "noise"), ("q", "cohort"), ("local_epochs", "local_steps")]
)
def test_alternatives_of_one_layer_are_refused(one: str, other: str, tmp_path: Path) -> None:
    with pytest.raises(DpacctError, match=f"--{one.replace('_', '-')} 1 contradicts"):
        settings(**{one: "1", other: "2"})
    with pytest.raises(DpacctError, match=f"{one} 1 contradicts {other} 2"):
        settings(f"{one} = 1\n{other} = 2\n", tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rho = 0.5\n", "'rho' is no key"),
        ("rounds = [1]\n", "rounds is a number or a text"),
        ("rounds = true\n", "rounds is a number or a text"),
        ("rounds = \n", "not valid TOML"),
        ("method_options = 3\n", "method_options is a table"),
        ("data_options = 3\n", "data_options is a table"),
        ("[method]\nrho = 1\n", "'method' is no key"),
    ],
)
def test_bad_files(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter) as refused:
        settings(text, tmp_path)
    assert refused.value.name == "config"
    assert words in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"config is '.*none\.toml'; it cannot be read"):
        combine("dp-fedavg", {}, config=str(tmp_path / "none.toml"))


def test_values_of_a_file_read_like_typed_ones(tmp_path: Path) -> None:
    found = settings(
        'eps = 4\nq = 0.25\ndata = "mnist"\nsecure_noise = true\n'
        "[method_options]\nrho = 0.5\n[data_options]\nnum_train = 50000\n",
        tmp_path,
    )
    assert (found.values["eps"], found.values["q"]) == ("4", "0.25")
    assert found.values["secure_noise"] == "yes"
    assert found.method_options == {"rho": 0.5}
    assert found.data_options == {"num_train": 50000}
    assert "secure_noise" not in settings("secure_noise = false\n", tmp_path).values


def test_options_of_the_method() -> None:
    words = ("rho=0.5", "name = text", "flag=true", "sizes=[1, 2]", "rate=1e-3")
    found = combine("dp-fedavg", {}, words).method_options
    assert found == {"rho": 0.5, "name": "text", "flag": True, "sizes": [1, 2], "rate": 1e-3}
    for wrong in ("rho", "=3"):
        with pytest.raises(DpacctError, match="NAME=VALUE"):
            combine("dp-fedavg", {}, (wrong,))


@pytest.mark.needs("torch")
def test_names_are_those_of_the_library() -> None:
    from dpacct.fl.data import DATASETS
    from dpacct.fl.methods import METHODS as WRITTEN
    from dpacct.fl.models import MODELS as BUILT

    assert list(DEFAULTS) == ["digits", *DATASETS]
    assert list(MODELS) == list(BUILT)
    assert list(METHODS) == list(WRITTEN)
    for layer in (COMMON, *DEFAULTS.values()):
        assert set(layer) <= set(KEYS)
        assert layer.get("data", "digits") in DEFAULTS
        assert layer.get("model", "lstm") in MODELS


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_every_data_set_has_all_that_a_run_needs(name: str) -> None:
    found = settings(data=name).values
    assert {"model", "rounds", "q", "eps", "clip_norm", "local_lr", "batch_size"} <= set(found)


# What is kept.


def test_settings_survive_the_disk(tmp_path: Path) -> None:
    found = combine("dp-fedavg", {"data": "mnist", "noise": "1.5"}, ("rho=0.5",))
    file = tmp_path / "run.settings.json"
    file.write_text(found.dump(), encoding="utf-8")
    read = load(file)
    assert (read.method, read.values) == (found.method, found.values)
    assert read.method_options == {"rho": 0.5}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"method": 3}',
        '{"method": "m", "x": 1}',
        '{"method": "m", "data": "digits"}',
        '{"method": "m", "model": "cnn"}',
        '{"method": "m", "model": "cnn", "data": 3}',
    ],
)
def test_damaged_settings(content: str, tmp_path: Path) -> None:
    file = tmp_path / "run.settings.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidParameter) as refused:
        load(file)
    assert refused.value.name == "resume"


def test_a_run_goes_on_as_it_was_begun() -> None:
    saved = combine("dp-fedavg", {"rounds": "30", "noise": "1"}, ("rho=0.5",))
    check_unchanged(saved, combine("dp-fedavg", {}))
    check_unchanged(saved, combine("dp-fedavg", {"rounds": "3e1", "device": "cuda"}, ("rho=0.5",)))
    changes: list[Any] = [
        combine("dp-fedavg", {"rounds": "31"}),
        combine("dp-fedavg", {"eps": "8"}),
        combine("dp-fedavg", {"seed": "1"}),
        combine("dp-fedavg", {}, ("rho=0.4",)),
        combine("dp-fedsam", {}),
    ]
    for changed in changes:
        with pytest.raises(DpacctError, match="contradicts --resume"):
            check_unchanged(saved, changed)


def touch(files: RunFiles) -> RunFiles:
    files.ledger.touch()
    files.settings.touch()
    return files


def test_runs_on_one_data_set_share_its_ledger_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = touch(begin(None, "dp-fedavg", "digits"))
    second = touch(begin(None, "dp-fedavg", "digits"))
    other = touch(begin(None, "blur", "digits"))
    assert {str(files.ledger) for files in (first, second, other)} == {"digits.ledger"}
    assert str(second.model) == "dp-fedavg-digits-2.model.pt"
    assert str(other.report) == "blur-digits.report.jsonl"
    assert str(begin(None, "blur", "mnist").ledger) == "mnist.ledger"
    # A name is in use while any of its files is there.
    Path("blur-digits-2.checkpoint").touch()
    assert begin(None, "blur", "digits").stem == "blur-digits-3"


def test_runs_may_share_a_ledger_that_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "shared.ledger")
    first = touch(begin(path, "dp-fedavg", "digits"))
    second = touch(begin(path, "dp-fedavg", "digits"))
    assert first.ledger == second.ledger
    assert first.checkpoint != second.checkpoint
    assert second.report.name == "shared-2.report.jsonl"
    assert first.run_name("dp-fedavg") == "dp-fedavg shared"
    other = begin(str(tmp_path / "plain"), "dp-fedavg", "digits")
    assert other.settings.name == "plain.settings.json"


def test_ledgers_need_a_folder(tmp_path: Path) -> None:
    for wrong in (tmp_path / "no" / "x.ledger", tmp_path):
        with pytest.raises(InvalidParameter) as refused:
            begin(str(wrong), "dp-fedavg", "digits")
        assert refused.value.name == "ledger"


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("data", "option"),
    [("emnist:letters", {"split": "letters"}), ("svhn:extra", {"extra": True}),
     ("glue:mrpc", {"task": "mrpc"})],
)  # fmt: skip
def test_a_part_of_the_data_stands_behind_its_name(monkeypatch, data, option) -> None:
    from dpacct_cli.train import job

    read: list[tuple[object, ...]] = []
    monkeypatch.setattr(job, "load", lambda *given, **options: read.append((*given, options)))
    job.read_data(RunSettings("dp-fedavg", {"data": data}))
    assert read == [(data.partition(":")[0], None, option)]
    monkeypatch.undo()
    for wrong in ("svhn:more", "mnist:letters"):
        with pytest.raises(InvalidParameter, match=r"more|mnist:letters"):
            job.read_data(RunSettings("dp-fedavg", {"data": wrong}))


# A value of each option that is not its default.
OTHERS = {
    "data": "adult", "data_dir": "x", "label": "y", "columns": "y", "owner": "y",
    "classes": "0,1",
    "clients": "50", "public_size": "90", "partition": "dirichlet:1", "examples": "yes",
    "model": "cnn-small", "init": "x.pt", "correlated": "square-root", "bands": "3",
    "separation": "5", "rounds": "7", "epochs": "2", "q": "0.2", "cohort": "20", "steps": "4",
    "records": "2", "sampling": "uniform", "adjacency": "replace-one", "eps": "3", "noise": "3",
    "delta": "1e-6", "clip_norm": "2", "adaptive_clip": "0.5", "secure_noise": "yes",
    "local_optimizer": "adam", "local_lr": "0.3", "local_epochs": "2", "local_steps": "3",
    "batch_size": "7", "momentum": "0.5", "weight_decay": "0.1", "lr_decay": "0.9",
    "max_grad_norm": "2", "server_lr": "0.5", "server": "adam", "as_printed": "yes",
    "device": "cuda:99", "seed": "3", "public_seed": "5", "vectorize": "no",
    "precision": "tf32", "schedule": "plan.csv", "hold_out": "0.2", "ahead": "2",
    "validation": "0.5",
}  # fmt: skip


def made(**typed: str) -> str:
    """What a job is made of, in words."""
    from dpacct_cli.train.job import build_job

    settings = combine("dp-fedavg", {"sampling": "poisson", **typed})
    check_folder(settings)
    job = build_job(settings)
    held = None if job.held_out is None else len(job.held_out)
    sums = [float(part.detach().double().sum()) for part in job.model.parameters()]
    sums += [float(job.clients[place].targets.double().sum()) for place in range(3)]
    return repr((job.sampling, job.adjacency, job.public, job.delta, dict(job.keywords),
                 len(job.clients), held, len(job.tested), job.dataset.name, sums))  # fmt: skip


@pytest.mark.needs("torch")
def test_no_option_of_training_is_without_effect(folder: Path) -> None:
    """It changes the job, or is rejected."""
    (folder / "plan.csv").write_text("rounds,noise_multiplier,sampling_rate\n2,9,0.5\n")
    # These change how a run is looked at, and how often it is played.
    looks = {"evaluate_every", "target_accuracy", "train_accuracy", "repeats"}
    assert OTHERS.keys() | looks == {*KEYS}
    usual = made()
    for key, value in OTHERS.items():
        try:
            assert made(**{key: value}) != usual, key
        except DpacctError:
            continue


@pytest.mark.parametrize(
    ("key", "most"),
    [
        *((key, 100_000) for key in ("rounds", "local_steps", "epochs", "steps")),
        ("local_epochs", 1000),
    ],
)
def test_a_file_asks_for_so_much_work_and_more_is_typed(
    tmp_path: Path, key: str, most: int
) -> None:
    typed = {"examples": "yes"} if key == "epochs" else {}
    assert settings(f"{key} = {most}", tmp_path, **typed).values[key] == str(most)
    option = f"--{key.replace('_', '-')}"
    with pytest.raises(InvalidParameter, match=rf"config is '.*from 1 to .*Type {option} for more"):
        settings(f"{key} = {most + 1}", tmp_path, **typed)
    typed[key] = "1000000"
    assert settings(f"{key} = {10**8}", tmp_path, **typed).values[key] == "1000000"


def test_a_run_of_others_with_correlated_noise_has_so_many_rounds(tmp_path: Path) -> None:
    own = settings(correlated="square-root", separation="2", rounds="100000")
    file = tmp_path / "run.settings.json"
    assert looked_at(own, file, {}).get("rounds") == "100000"
    with pytest.raises(InvalidParameter, match=r"run\.settings\.json'; rounds is 100001"):
        looked_at(replace(own, values=own.values | {"rounds": "100001"}), file, {})
