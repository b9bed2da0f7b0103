"""What a word that may name a file stands for.

``os.path`` throughout: a word that can be no file name, such as one with a null byte, is no file
there, where `pathlib` raises.
"""

from __future__ import annotations

import os.path


def is_there(word: str) -> bool:
    """Whether a file of this name exists."""
    return os.path.exists(word)  # noqa: PTH110 - pathlib raises


def has_folder(word: str) -> bool:
    """Whether there is a folder for a file of this name."""
    return os.path.isdir(os.path.dirname(word) or ".")  # noqa: PTH112, PTH120 - pathlib raises


def names_a_file(word: str, endings: tuple[str, ...]) -> bool:
    """Whether somebody who typed this meant a file, and not the name of something shipped."""
    return word.lower().endswith(endings) or os.sep in word or is_there(word)
