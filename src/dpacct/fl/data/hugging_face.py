"""Read a data set that Hugging Face `datasets` has saved in a folder (`save_to_disk`), by columns.

Rule 1: nothing is fetched. Data and tokenizer are files that the user has put into the folder.
Rule 2: the folder may come from somebody else: of its files only those that lie in it are read. So
    the tables are read by Arrow alone. `datasets` would follow the paths and addresses that stand
    in cells of images, and the formats that the folder asks for.
Rule 3: text becomes tokens by ``tokenizer.json`` of the model, in the folder or the one above it.
Rule 4: of that file, words, merges and the kinds of parts that RoBERTa has are taken. Other parts
    could repeat a text without end (replacements, templates), or search it by a slow pattern.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.data.dataset import Scaling, from_columns
from dpacct.packages import import_other, import_package

# Of RoBERTa, whose models read what is made here.
PADDING, LONGEST = 1, 512
# Some other formats of Pillow call a program (EPS).
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP")
# Kinds of the normalizer, the post-processor, the pre-tokenizer and the model. Rule 4.
_KINDS = {
    (None, "RobertaProcessing", splitter, model)
    for splitter in ("ByteLevel", "Whitespace")
    for model in ("BPE", "WordLevel")
}
TOKENIZER, _MOST_BYTES = "tokenizer.json", 1 << 26
# Parts to test on, the first one with labels: GLUE hides those of its test part (-1).
_TESTED = ("test", "validation", "validation_matched")


class SavedRows(NamedTuple):
    """The rows of all parts, one below the other.

    ``inputs`` have shape (n, ...), ``split`` is train or test, None without parts. ``cells`` has
    the other columns as text.
    """

    inputs: NDArray[Any]
    scaling: Scaling | None
    split: list[str] | None
    cells: dict[str, list[str]]


def is_saved(folder: Path) -> bool:
    """Return True for a folder that `save_to_disk` has written."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def read_saved(
    folder: Path, inputs: Sequence[str], label: str, others: Sequence[str], length: int
) -> SavedRows:
    """Read columns of a saved data set.

    Args:
        folder: its place.
        inputs: one column of numbers, arrays or images, or one or two of text.
        label, others: columns whose cells are kept as text.
        length: tokens of a text, which is cut or padded.

    Raises:
        InvalidParameter: a column is missing, or its cells are no inputs.
        Unsupported: the packages ``pyarrow``, or for text ``tokenizers``, are not installed.
    """
    parts = _parts(folder, label, wanted := [*inputs, label, *others])
    for rows in parts.values():
        if lacking := [column for column in wanted if column not in rows.column_names]:
            rule = f"it has no column {lacking[0]}. Its columns are {', '.join(rows.column_names)}"
            raise _invalid(folder, rule, "--columns A[,B] and --label name them.")
    arrays: list[NDArray[Any]] = []
    for rows in parts.values():
        columns: list[list[Any]] = [rows[column].to_pylist() for column in inputs]
        if any(isinstance(cell, str) for column in columns for cell in column[:1]):
            arrays.append(_tokens(folder, columns, length))
        else:
            if len(columns) > 1:
                raise _invalid(folder, "two columns have to be a pair of texts")
            cells = [(cell, 0) for cell in _pictures(folder, columns[0])]
            arrays.append(from_columns(cells, 0, 1).inputs.numpy())
    if len({array.shape[1:] for array in arrays}) > 1:
        raise _invalid(folder, "inputs of all parts have one shape")
    values = np.concatenate(arrays)
    split = [name for name, rows in parts.items() for _ in range(len(rows))]
    return SavedRows(
        values,
        Scaling.divided_by(255) if values.dtype == np.uint8 else None,
        split if len(parts) > 1 else None,
        {
            c: [str(cell) for rows in parts.values() for cell in rows[c].to_pylist()]
            for c in wanted[len(inputs) :]
        },
    )


def _parts(folder: Path, label: str, wanted: Sequence[str]) -> dict[str, Any]:
    """Return the tables for training and testing, or all rows without a name."""
    if not (folder / "dataset_dict.json").is_file():
        return {"": _table(folder, wanted)}
    known = ("train", *_TESTED)
    held = {name: _table(folder / name, wanted) for name in known if (folder / name).is_dir()}
    tested = [name for name in _TESTED if name in held and label in held[name].column_names]
    labeled = [name for name in tested if {*held[name][label].to_pylist()} - {-1}]
    if "train" not in held or not labeled:
        rule = f"it has parts train and one of {', '.join(_TESTED)} with the column {label}"
        raise _invalid(folder, f"{rule}. Of these it has {', '.join(held)}", "--label names it.")
    return {"train": held["train"], "test": held[labeled[0]]}


def _table(folder: Path, wanted: Sequence[str]) -> Any:
    """Return the rows of a part as a table of Arrow. Rule 2."""
    parts = "ipc", "types", "memory_map", "concat_tables", "table", "ArrowException"
    ipc, types, memory_map, concat, table, failure = import_other("pyarrow", "15", *parts)
    state = folder / "state.json"
    try:
        listed: Any = json.loads(validate.file_text("data", state, "a saved data set"))
        files = [folder / str(one["filename"]) for one in listed["_data_files"]]
        links = [file for file in (folder, state, *files) if file.is_symlink()]
    except InvalidParameter:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _invalid(folder, f"{state.name} lists no files") from None
    for file in (folder, state, *files):
        if file in links or (file is not folder and file.parent != folder):
            raise _invalid(folder, f"its files lie in it, and {file.name} does not")
        validate.check_regular("data", file, "a file of a saved data set")
    try:
        read = concat([ipc.open_stream(memory_map(str(file))).read_all() for file in files])
        read.validate(full=True)
        stored = [getattr(kind, "storage_type", kind) for kind in read.schema.types]
        columns = [part.cast(kind) for part, kind in zip(read.columns, stored, strict=True)]
        names = read.column_names
    except (OSError, UnicodeDecodeError, failure) as error:
        raise _invalid(folder, f"Arrow cannot read it ({type(error).__name__})") from None
    named = [kind for name, kind in zip(names, stored, strict=True) if name in wanted]
    if unknown := [kind for kind in named if not _is_plain(types, kind)]:
        raise _invalid(folder, f"it holds numbers, text, lists and images, and here {unknown[0]}")
    # Rows of no bytes, or shared ones, would become far longer than the files.
    packed = sum(file.stat().st_size for file in files)
    validate.unpacked("data", folder, packed, max(read.nbytes, 8 * read.num_rows))
    return table(columns, names)


def _is_plain(types: Any, kind: Any) -> bool:
    """Return whether cells of a type of Arrow have bytes of their own."""
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind):
        return all(_is_plain(types, kind.field(n).type) for n in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return _is_plain(types, kind.value_type)
    text = types.is_string(kind) or types.is_large_string(kind)
    return text or types.is_primitive(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _pictures(folder: Path, cells: list[Any]) -> list[Any]:
    """Return cells, with an image for each that holds the bytes of one."""
    if not any(isinstance(cell, dict) for cell in cells):
        return cells
    pillow = import_package("PIL.Image", "pillow", "11.3", "fl")
    images: list[Any] = []
    packed = whole = 0
    for row, cell in enumerate(cells, 1):
        held = cast("Any", cell).get("bytes") if isinstance(cell, dict) else None
        if not isinstance(held, bytes):
            rule = f"its images lie in it as bytes, and that of row {row} does not"
            raise _invalid(folder, rule, "Save it again by `save_to_disk` of datasets.")
        try:
            image = pillow.open(BytesIO(held), formats=FORMATS)
            packed, whole = packed + len(held), whole + 3 * image.width * image.height
            validate.unpacked("data", folder, packed, whole)
            image.load()
        except InvalidParameter:
            raise
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise _invalid(folder, f"row {row} is not an image ({error})") from None
        images.append(image)
    return images


def _tokens(folder: Path, columns: list[list[Any]], length: int) -> NDArray[np.int64]:
    """Return tokens [n, length] of texts, or of pairs. Rule 3."""
    count = validate.count("length", length, "the tokens of a text", LONGEST)
    rows = list(zip(*columns, strict=True))
    if wrong := [n for n, row in enumerate(rows, 1) if not all(isinstance(t, str) for t in row)]:
        raise _invalid(folder, f"its texts are text, and row {wrong[0]} has none")
    if len(columns) > 2:
        raise _invalid(folder, "a model reads one text, or a pair of them")
    file = next((p for p in (folder / TOKENIZER, folder.parent / TOKENIZER) if p.exists()), None)
    if file is None:
        hint = f"Copy {TOKENIZER} of the model there. Nothing is fetched."
        raise _invalid(folder, f"its text needs {TOKENIZER}, in it or in the folder above", hint)
    made = tokenizer_of(file)
    [kind] = import_other("tokenizers", "0.20", "Tokenizer")
    tokenizer: Any = kind.from_str(made)
    tokenizer.enable_truncation(count)
    tokenizer.enable_padding(length=count, pad_id=PADDING, pad_token="<pad>")  # noqa: S106
    read = tokenizer.encode_batch([row if len(row) == 2 else row[0] for row in rows])
    return np.array([one.ids for one in read], np.int64)


def tokenizer_of(file: Path) -> str:
    """Return RoBERTa's tokenizer in a file, as JSON of its known parts alone. Rule 4.

    Raises:
        InvalidParameter: the file holds something else.
    """
    validate.check_regular("data", file, "a tokenizer", _MOST_BYTES)
    text = validate.file_text("data", file, "a tokenizer")
    with suppress(
        ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
    ):
        said: Any = json.loads(text)
        given, splits = said["model"], said["pre_tokenizer"]
        places = {word: int(place) for word, place in given["vocab"].items()}
        pairs = [one.split(" ") if isinstance(one, str) else one for one in given.get("merges", [])]
        added = {one["content"]: one["lstrip"] is True for one in said["added_tokens"]}
        # Older files do not name the kind.
        sort = given.get("type") or ("BPE" if pairs else "WordLevel")
        words = {"<s>", "</s>", "<unk>", *added, *(w for a, b in pairs for w in (a, b, a + b))}
        kinds = [part and part["type"] for part in (said["normalizer"], said["post_processor"])]
        if (
            (*kinds, splits["type"], sort) in _KINDS
            and (places["<pad>"], sorted(places.values())) == (PADDING, [*range(len(places))])
            and words <= places.keys() - {""}
        ):
            model = {"type": sort, "vocab": places, "unk_token": "<unk>"}
            ends = {key: [word, places[word]] for key, word in (("cls", "<s>"), ("sep", "</s>"))}
            space = splits.get("add_prefix_space") is True
            flags = {"add_prefix_space": space, "trim_offsets": True}
            off = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
            whole: dict[str, Any] = {
                "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                "decoder": None,
                "added_tokens": [
                    {"id": places[word], "content": word, "lstrip": strip, **off}
                    for word, strip in added.items()
                ],
                "pre_tokenizer": {"type": splits["type"], **flags, "use_regex": True},
                "post_processor": {"type": "RobertaProcessing", **ends, **flags},
                "model": model | ({"merges": pairs} if sort == "BPE" else {}),
            }  # fmt: skip
            made = json.dumps(whole, ensure_ascii=False)
            made.encode()  # Half a character is no text.
            return made
    rule = f"it is a tokenizer of RoBERTa, whose token <pad> is {PADDING}"
    raise _invalid(file, rule, f"Copy {TOKENIZER} of RoBERTa there.")


def _invalid(file: Path, rule: str, hint: str = "") -> InvalidParameter:
    return InvalidParameter("data", str(file), rule, hint)
