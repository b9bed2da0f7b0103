"""Adult: census income of people in the US in 1994, over 50 thousand dollars or not.

Looked for: ``adult.csv`` with a header and, among its columns, ``income`` and ``split``. The ranges
and categories are those of the published description of the data set, so they are public.
"""

from __future__ import annotations

from dataclasses import replace

from dpacct.fl.data.dataset import Dataset
from dpacct.fl.data.files import Folder, find
from dpacct.fl.data.table import TableSchema, load_table

_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    "marital_status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native_country": "United-States",
}
SCHEMA = TableSchema(
    label="income",
    classes=("<=50K", ">50K"),
    # The sampling weight of the census has no information about the person.
    unused=("fnlwgt", "education"),
    numeric={
        "age": (17, 90),
        "education_num": (1, 16),
        "capital_gain": (0, 20_000),
        "capital_loss": (0, 4_500),
        "hours_per_week": (1, 99),
    },
    categorical={column: tuple(words.split()) for column, words in _CATEGORIES.items()},
)


def load_adult(folder: Folder = None) -> Dataset:
    """Read Adult as vectors of 48 numbers in 0..1. Rows of unknown occupation are kept.

    Raises:
        InvalidParameter: the file is missing or damaged.
    """
    file = find(folder, "adult", ["adult.csv"])
    # The test rows can be downloaded by anyone, and no client holds rows of the same people.
    return replace(load_table(file, SCHEMA), name="adult", test_data="public")
