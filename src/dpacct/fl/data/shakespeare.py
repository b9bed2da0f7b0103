"""Shakespeare's plays by speaking role, for predicting the next character.

Looked for: ``shakespeare_roles.json``, an object from role to text. The text of a role is cut into
windows. A fifth of the roles, chosen by a keyed hash of their names, is tested on and belongs to no
client. (LEAF tests on the last fifth of every role instead, which then is unprotected.) Only roles
with enough windows are clients. Each role decides that by its own text alone, so no client depends
on another.

The alphabet is fixed, not collected from the texts. 2 to 96 are the printable ASCII characters from
space to tilde, 1 is a line break, and 0 any other character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import Dataset, Examples
from dpacct.fl.data.files import Folder, find, invalid
from dpacct.fl.data.partitions import Indices, assign_owners
from dpacct.fl.tensors import from_array

ALPHABET = 97
WINDOW = 80
TEST_ROLES = ("training", "new")


def load_shakespeare(
    folder: Folder = None,
    *,
    window: int = WINDOW,
    stride: int | None = None,
    every_position: bool = True,
    min_windows: int = 1,
    test_share: float = 0.2,
    test_roles: str = "new",
    validation_share: float = 0.0,
) -> Dataset:
    """Read windows of text as int64 characters, owned by their roles.

    Args:
        folder: with the file.
        window: characters in one input. Inputs have shape (n, window).
        stride: from the start of one window to the next. Default: ``window``, no overlap.
        every_position: targets are the next character at each position, shape (n, window).
            Otherwise they are the character after the window, shape (n,).
        min_windows: a role with fewer training windows is not a client.
        test_share: the probability with which a role is tested on, or the part of each role's text.
        test_roles: the tested text: that of ``new`` roles, or (unprotected) the end of the text of
            all ``training`` roles, as LEAF splits the data.
        validation_share: the part of each training role's text between training and testing.
    """
    length = validate.count("window", window, "the window", 10**6)
    step = length if stride is None else validate.count("stride", stride, "the stride", 10**6)
    least = validate.count("min_windows", min_windows, "the number of windows of a client")
    noun = "the share for testing"
    share = validate.positive_probability("test_share", test_share, noun, below_one=True)
    validate.one_of("test_roles", test_roles, "it", TEST_ROLES)
    looked = validate.within("validation_share", validation_share, noun, (0.0, 1.0 - share))
    if looked and test_roles == "new":
        rule = "new roles are tested on as a whole"
        raise InvalidParameter("validation_share", looked, rule, "Use test_roles training.")
    file = find(folder, "shakespeare", ["shakespeare_roles.json"])
    roles = _read_roles(file)
    owners, fresh = assign_owners(list(roles), share)
    none = np.empty((0, length + 1), np.int64)

    def windows(codes: Indices) -> Indices:
        """Return windows with the character behind each of them, shape (n, length + 1)."""
        return sliding_window_view(codes, length + 1)[::step] if len(codes) > length else none

    def examples(parts: list[Indices]) -> Examples:
        rows = from_array(np.concatenate(parts))
        targets = rows[:, 1:] if every_position else rows[:, -1]
        return Examples(rows[:, :-1].contiguous(), targets.contiguous())

    train: list[Indices] = [none]
    test: list[Indices] = [none]
    between: list[Indices] = [none]
    for text, tested in zip(roles.values(), fresh.tolist(), strict=True):
        codes = encode(text)
        cut = len(codes) - int(share * len(codes))
        if test_roles == "new":
            cut = 0 if tested else len(codes)
        start = cut - int(looked * len(codes))
        seen, unseen = windows(codes[:start]), windows(codes[cut:])
        # A role without training windows is tested on only if it is a new one.
        client = len(seen) >= least
        train.append(seen if client else none)
        between.append(windows(codes[start:cut]) if client else none)
        test.append(unseen if client or (test_roles == "new" and tested) else none)
    if not sum(map(len, train)) or not sum(map(len, test)):
        raise invalid(file, f"no role has {least} windows of {length} characters, and some to test")
    owners, test_owners = (
        np.repeat(owners, [len(own) for own in part[1:]]) for part in (train, test)
    )
    return Dataset(
        name="shakespeare",
        train=examples(train),
        test=examples(test),
        num_classes=ALPHABET,
        owners=owners,
        test_owners=test_owners,
        test_data="public" if test_roles == "new" else "unprotected",
        validation=examples(between) if sum(map(len, between)) else None,
    )


def encode(text: str) -> Indices:
    """Return the characters as numbers of the alphabet, shape (length,)."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    printable = (codes >= 32) & (codes <= 126)
    return np.where(printable, codes - 30, codes == ord("\n"))


def _read_roles(file: Path) -> Mapping[str, str]:
    text = validate.file_text("data_dir", file, "a file of roles")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(file, f"it is not valid JSON in UTF-8 ({error})") from None
    roles = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if not roles or not all(isinstance(text, str) for text in roles.values()):
        raise invalid(file, "it is an object from role to text")
    return roles
