"""The table of items: each class and parameter has a row, and what is written is read back."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct.errors import InvalidParameter
from dpacct.items import RELEASES, ROUND, SAMPLINGS, in_words, read_alone, release_entry
from dpacct.ledger.record.events import schedule_from_json, schedule_to_json
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform
from dpacct.schedules import dump_schedule, load_schedule
from tests.strategies import FEWER, plans

# A field that several keys describe, or one of another name.
DESCRIBED_BY = {("Correlated", "sampling"): "sampling_rate"}
ITEMS = [*SAMPLINGS.values(), *RELEASES.values(), ROUND]


def classes() -> Iterator[type[Any]]:
    """All samplings, and all releases that can be made, wherever in the package they stand."""
    yield from (Poisson, Uniform, Full)
    root = Path(dpacct.__file__).parent
    bases: dict[str, list[str]] = {}
    modules: dict[str, str] = {}
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                modules[node.name] = ".".join(file.relative_to(root.parent).with_suffix("").parts)
    found = {"Release"}
    while more := {name for name, of in bases.items() if found & {*of}} - found:
        found |= more
    leaves = found - {base for name in found for base in bases[name]}
    for name in sorted(leaves):
        yield getattr(importlib.import_module(modules[name]), name)


@pytest.mark.parametrize("kind", [*classes()], ids=lambda kind: kind.__name__)
def test_every_class_and_field_has_a_row(kind: type[Any]) -> None:
    (item,) = [item for item in ITEMS if item.kind is kind]
    for field in dataclasses.fields(kind):
        if field.name != "adjacency":
            key = DESCRIBED_BY.get((kind.__name__, field.name), field.name)
            assert key in item.names, f"{kind.__name__}.{field.name} has no key in dpacct.items"


@pytest.mark.parametrize(
    "scheme",
    [
        Poisson(0.1),
        Poisson(0.1, records=3),
        Poisson(0.1, max_cohort=5, num_clients=9),
        Poisson(0.1, num_clients=9, reveals_size="client"),
        Uniform(3, 9),
        Full(),
    ],
    ids=repr,
)
def test_each_argument_of_a_sampling_is_written_and_read(
    scheme: Poisson | Uniform | Full, tmp_path: Path
) -> None:
    """An argument that is lost would be charged as its default: one record a user for three."""
    release = Round(2.0, scheme)
    given = {
        field.name: getattr(scheme, field.name)
        for field in dataclasses.fields(scheme)
        if getattr(scheme, field.name) != field.default
    }
    assert given.items() <= release_entry(release).items()
    assert all(f"{name}={value!r}" in repr(scheme) for name, value in given.items())
    assert read_alone(release_entry(release, alone=True)) == release
    for suffix in ("toml", "json", "csv"):
        dump_schedule(2 * release, tmp_path / f"plan.{suffix}")
        assert load_schedule(tmp_path / f"plan.{suffix}") == 2 * release
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(2 * release)))) == 2 * release


@FEWER
@given(data=st.data(), relation=st.sampled_from(Adjacency))
def test_files_and_ledgers_read_back_what_they_write(
    data: st.DataObject, relation: Adjacency, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = data.draw(plans(relation))
    folder = tmp_path_factory.mktemp("plans")
    in_cells = not any(
        isinstance(value, list | dict)
        for release, _ in plan
        for value in release_entry(release).values()
    )
    for suffix in ("toml", "json", "csv"):
        file: Path = folder / f"plan.{suffix}"
        if suffix != "csv" or in_cells:
            dump_schedule(plan, file)
            assert load_schedule(file) == plan
        else:
            with pytest.raises(InvalidParameter, match=r"a cell of a \.csv file holds one value"):
                dump_schedule(plan, file)
    text = json.dumps(schedule_to_json(plan))
    assert schedule_from_json(json.loads(text)) == plan
    for release, _ in plan:
        assert read_alone(json.loads(json.dumps(release_entry(release, alone=True)))) == release
        words = in_words(release)
        assert words.isprintable()
        assert "{" not in words


def test_a_run_of_a_tuning_keeps_the_adjacency_of_its_file(tmp_path: Path) -> None:
    runs = dpacct.best_of(3 * dpacct.Round(1.0, Poisson(0.1), "zero-out"), "geometric:3")
    file = tmp_path / "plan.json"
    dump_schedule(1 * runs, file)
    assert load_schedule(file) == Schedule([(runs, 1)])
    file.write_text(
        file.read_text().replace('"adjacency": "zero-out"', '"adjacency": "add-remove"', 1)
    )
    with pytest.raises(InvalidParameter, match="the phases of best-of have zero-out"):
        load_schedule(file)
    runs = 1 * dpacct.best_of(3 * dpacct.Round(1.0, Poisson(0.1)), "poisson:10")
    file = tmp_path / "plan.toml"
    file.write_text(
        '[[phase]]\nmechanism = "best-of"\nruns = "poisson:10"\n'
        "[[phase.schedule]]\nrounds = 3\nnoise_multiplier = 1\nsampling_rate = 0.1\n"
    )
    assert load_schedule(file) == runs


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", "in phase 1 runs is missing"),
        ('runs = "poisson:3"\nschedule = [1]', "a list of tables"),
        ('runs = "ten"\nschedule = []', "best_of is 'ten'"),
        ('runs = { kind = "poisson" }\nschedule = []', "mean is missing"),
        ('runs = { kind = "poisson", mean = 3, x = 1 }\nschedule = []', "the key 'x'"),
        ('runs = "poisson:3"\nschedule = []', "a run has at least one round"),
        ('runs = "poisson:3"\nschedule = [{ rounds = 1, sigma = 2 }]', "the key 'sigma'"),
    ],
)
def test_a_bad_tuning_is_refused(tmp_path: Path, keys: str, words: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(f'[[phase]]\nmechanism = "best-of"\n{keys}\n')
    with pytest.raises(InvalidParameter) as caught:
        load_schedule(file)
    assert words in str(caught.value)
