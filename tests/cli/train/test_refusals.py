"""What `dpacct train` and `audit` refuse: one line, before anything is read, written or charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bad_input import assert_refused

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

# What is typed => what the line holds.
REFUSED = """
train => METHOD | dp-fedavg
train nonsense => METHOD is 'nonsense' | dp-fedavg
train dp-fedavg --data imagenet => --data is 'imagenet' | digits | mnist
train dp-fedavg --data mnist => --data-dir is 'data' | mnist.npz | DPACCT_DATA
train dp-fedavg --data none.csv => none.csv | does not exist
train dp-fedavg --model vgg => --model is 'vgg' | resnet18
train dp-fedavg --model lstm => --model is 'lstm' | text
train dp-fedavg --clients 0 => --clients is 0 | from 1
train dp-fedavg --clients 2000 => --clients is 2000 | 1437
train dp-fedavg --partition natural => --partition is 'natural' | iid
train dp-fedavg --partition dirichlet => --partition is 'dirichlet' | dirichlet:A
train dp-fedavg --partition dirichlet:0 => --partition is 0 | [0.001, 1e+06]
train dp-fedavg --partition iid:3 => --partition is 'iid:3'
train dp-fedavg --local-steps 0 => --local-steps is 0;
train dp-fedavg --sampling full --q 0.5 => --q 0.5 contradicts --sampling full
train dp-fedavg --eps 0 => --eps is 0 | above 0
train dp-fedavg --eps 8 --noise 1 => --eps 8 contradicts --noise 1
train dp-fedavg --noise 0 => --noise 0 needs --ledger
train dp-fedavg --as-printed => --as-printed: dp-fedavg has no printed form
train dp-fedpgn --as-printed --secure-noise => --as-printed is True | secure gaussian
train dp-fedavg --noise 0 --secure-noise --ledger a.ledger => --noise is 0 | secure gaussian
train dp-fedavg --noise 0 --eps 8 --ledger a.ledger => --eps 8 contradicts --noise 0
train dp-fedavg --clip-norm 0 => --clip-norm is 0 | above 0
train dp-fedavg --local-lr 0 => --local-lr is 0
train dp-fedavg --local-lr fast => --local-lr is 'fast'
train dp-fedavg --local-epochs 0 => --local-epochs is 0
train dp-fedavg --batch-size 0 => --batch-size is 0
train dp-fedavg --momentum 1 => --momentum is 1 | [0, 1)
train dp-fedavg --weight-decay -1 => --weight-decay is -1
train dp-fedavg --lr-decay 2 => --lr-decay is 2
train dp-fedavg --server-lr 0 => --server-lr is 0
train dp-fedavg --vectorize maybe => --vectorize is 'maybe' | auto, yes or no
train dp-fedavg --device tpu9 => --device is 'tpu9' | cuda
train dp-fedavg --device cuda:99 => --device is 'cuda:99' | CUDA
train dp-fedavg --seed -1 => --seed is -1
train dp-fedavg --public-seed x => --public-seed is 'x'
train dp-fedavg --set rho=1 => --set: dp-fedavg | 'rho'
train dp-fedavg --config none.toml => --config is 'none.toml' | cannot be read
train dp-fedavg --ledger no/where.ledger => --ledger is 'no/where.ledger' | no folder no
train dp-fedavg --resume => --ledger | no run to resume
train --resume => --ledger | no run to resume
train --resume --run x => --run is 'x' | no run to resume | x.settings.json
train dp-fedavg --run x => --run x needs --resume
train dp-fedavg --ledger x.ledger --resume => there is no run to resume
train dp-fedavg --data-dir x => --data-dir x contradicts --data digits
train dp-fedavg --label y => --label contradicts --data digits
train dp-fedavg --examples --clients 5 => --clients 5 contradicts --examples
train dp-fedavg --examples --config people.toml => partition natural contradicts --examples
train dp-fedavg --examples --batch 2000 => 2000
train dp-fedavg --batch 5 => --batch 5 needs --examples
train dp-fedavg --epochs 5 => --epochs 5 needs --examples
train dp-fedavg --server sgd => --server is 'sgd'; a server's optimizer is one of momentum, adam
train dp-fedavg --server adam --server-set rho=1 => --server-set: adam refuses its options
train dp-fedavg --server adam --server-set lr=0 => --server-set lr is 0
train dp-fedavg --server adam --server-set lr => --server-set lr is not NAME=VALUE
train dp-fedavg --server-set lr=1 => --server-set lr=... needs --server
train --examples --sampling allocation --steps 4 --rounds 7 => an epoch has 4 rounds, and is charged as a whole. For example 8
train --examples --sampling allocation --steps 4 --epochs 2 --batch 5 => contradicts
train --examples --sampling allocation --epochs 2 => needs --steps, the steps of an epoch, or --batch
train --examples --steps 4 --epochs 2 => needs --sampling allocation
train dp-fedavg --records 3 => needs --examples
train --examples --records 3 => does not say whose the examples are
train --examples --sampling allocation --steps 4 --epochs 2 --public-size 100 --adjacency zero-out --hold-out 0.5 => hold-out
train dp-fedavg --clients 20 --local-epochs 1 --correlated optimized --separation 4 --rounds 8 --sampling poisson => --sampling poisson contradicts --correlated
train dp-fedavg --clients 20 --local-epochs 1 --correlated optimized --separation 4 --rounds 8 --public-size 20 => public-size
train dp-fedavg --correlated optimized --rounds 8 => needs --separation
train dp-fedavg --bands 3 => --bands 3 needs --correlated
train dp-fedavg --correlated best --separation 4 => a strategy is one of
train dp-fedavg --clients 20 --correlated square-root --separation 30 --rounds 60 => separation is 30
train dp-fedavg --clip-norm 1,2,3 => --clip-norm is 3; the model trains 2 tensors
train dp-fedavg --clip-norm 1,2 --adaptive-clip 0.5 => contradicts --clip-norm 1,2
train dp-fedavg --adaptive-clip 1 => --adaptive-clip is 1; a quantile lies in (0, 1)
train dp-fedavg --clip-norm median => the median of a cohort's norms is private
train dp-fedavg --clip-norm median => --adaptive-clip 0.5 (fl.AdaptiveClip) follows the median
train dp-fedavg --model roberta-base => it reads tokens
train dp-fedavg --model vit-base-lora => it sees colors
train dp-fedavg --init nowhere.pt => --init is 'nowhere.pt'
train dp-fedavg --init /dev/zero => --init is '/dev/zero'
train dp-fedavg --data digits:letters => --data is 'digits:letters'
train dp-fedavg --precision float16 => --precision is 'float16'
train dp-fedavg --local-optimizer lamb => --local-optimizer is 'lamb'
train dp-fedavg --local-optimizer adam --momentum 0.5 => --momentum contradicts --local-optimizer adam
train dp-fedavg --max-grad-norm 0 => --max-grad-norm is 0
train dp-fedavg --examples --max-grad-norm 1 => --max-grad-norm 1 contradicts --examples
train dp-fedavg --distributed => --distributed needs torchrun
train dp-fedsam --set rho=nan => --set rho is nan;
train '' --rounds 3 => METHOD is '';
train dp-fedavg --ledger text.ledger => --ledger is 'text.ledger'; this file is not
train dp-fedavg --schema s.toml => --schema has the key 'label', and digits takes only:
train dp-fedavg --config bytes.toml => --config is 'bytes.toml'; a settings file is text in UTF-8.
audit => METHOD
audit dp-fedavgg => dp-fedavg
audit dp-fedavg --canaries 3 => at least 23
audit dp-fedavg --canaries 9999 => room for at most
audit dp-fedavg --error 0 => --error
audit dp-fedavg --confidence 2 => --confidence
"""  # noqa: E501 - a row is a line
ROWS = [row.partition(" => ")[::2] for row in REFUSED.strip().splitlines()]


@pytest.mark.parametrize(("words", "parts"), ROWS, ids=[words[6:70] for words, _ in ROWS])
def test_one_line_says_it_and_nothing_is_left_behind(
    dpacct: Any, folder: Path, words: str, parts: str
) -> None:
    (folder / "people.toml").write_text('partition = "natural"\n', encoding="utf-8")
    (folder / "text.ledger").write_text("hello", encoding="utf-8")
    (folder / "s.toml").write_text('label = "x"\n', encoding="utf-8")
    (folder / "bytes.toml").write_bytes(b"\xff\xfe")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert_refused(dpacct(words), *parts.split(" | "))
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
