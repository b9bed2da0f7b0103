"""`dpacct explore`: epsilon over lists and ranges of settings, as a table or a file.

Rule 1: a list is ``0.8,1,1.2``. ``A..B/STEP`` goes from A by STEP, ``A..B*FACTOR`` by a factor,
neither beyond B. Whole numbers need no step.
Rule 2: decimals are exact: 0.1..0.3/0.1 are 0.1, 0.2 and 0.3 to the last bit.
Rule 3: each value is checked alone before anything is computed. If two valid values conflict, their
row has an error.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import DEFAULT_DELTA
from dpacct.display import chosen, escaped
from dpacct.errors import DpacctError, InvalidParameter
from dpacct.items import COUNT, NUMBER, OPTIONS, RATE
from dpacct.outputs import mechanism_of
from dpacct.rounds import Uniform
from dpacct_cli import errors, mechanism, options, outputs, render, waiting
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import OUTPUT, MechanismOptions, Text, option
from dpacct_cli.output import LABEL, Force, read_output, write_output
from dpacct_cli.render import Style, down, up
from dpacct_cli.words import in_units, quoted, spelling, unit

if TYPE_CHECKING:
    from dpacct.pictures import Picture

SUFFIXES = (".csv", ".json")
MOST_ROWS, MOST_VALUES = 100_000, 10_000
# Curves of a chart that can be told apart.
MOST_CURVES = 8
# Cells of a map with readable labels.
MOST_SIDE = 60
# This number of rows fits on a few screens.
MOST_SHOWN = 60
COLUMNS: tuple[str, ...] = (
    "noise_multiplier", "rounds", "sampling", "sampling_rate", "cohort_size", "num_clients",
    "adjacency", "delta", "accountant", "epsilon_lower", "epsilon_upper", "error",
)  # fmt: skip
# Short names of settings that vary, if not those of the columns.
NAMES = {
    "noise_multiplier": "noise", "sampling_rate": "rate", "cohort_size": "cohort",
    "num_clients": "clients",
}  # fmt: skip
# Options that are numbers, and may be lists.
AXES = (
    "rounds", "epochs", "times", "laplace",
    *(name for name, key in OPTIONS.items() if key.form in (NUMBER, RATE, COUNT)),
)  # fmt: skip
# Up to which epsilon a guarantee counts as strong and as usual, with the colors of a terminal.
STRENGTHS = ((3.0, "green"), (8.0, "yellow"), (math.inf, "red"))
_RANGE = re.compile(r"([^/*]+?)\.\.([^/*]+)(?:([/*])(.+))?")

Table = Sequence[dict[str, Any]]
# What is swept: the options of one row, and its delta.
Sweep = Sequence[tuple[MechanismOptions, float]]
# fmt: off
Target = Annotated[Text, option("--eps", "E", options.PRIVACY,
    "A budget, drawn in the picture of -o. Two settings that vary make a map.", advanced=True)]
OutputFile = Annotated[Text, option(f"{LABEL} -o", "FILE", OUTPUT,
    "Write the table to a .csv or .json file, or a chart to .png, .svg or .pdf.")]
# fmt: on


def explore(
    *,
    typed: MechanismOptions,
    delta: options.Delta = None,
    target: Target = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    output: OutputFile = None,
    force: Force = False,
    shown: options.StyleOptions,
) -> None:
    """Sweep over noise, rounds, sampling rate and delta.

    Noise, rounds, rate (or cohort) and delta may be lists such as 1,2,4, or ranges: 100..1000/100
    by steps, or 1..64*2 by factors. Each value is combined with all others. A row that cannot be
    computed shows its reason. -q prints the proven epsilons, one a line.

    Examples:
      dpacct explore --noise 0.8,1,1.2 --rounds 100..300/100 --q 0.1
      dpacct explore --noise 1..4*2 --rounds 100 --q 0.01,0.1 -o sweep.csv
      dpacct explore --noise 0.8..2/0.1 --rounds 100,300 --q 0.1 -o sweep.png
      dpacct explore --noise 0.8..2/0.2 --rounds 100..500/100 --q 0.1 --eps 3 -o map.png
    """
    style = shown.style
    find_accountant(accountant)
    settings = read_settings(typed, delta)
    if output is not None and style is not Style.HUMAN:
        typed_style = "--json" if style is Style.JSON else "-q"
        raise conflict(typed_style, f"-o {output}", "one of them has the rows")
    budget = None if target is None else validate.target_epsilon(options.number(target))
    file = read_output(output, force=force)
    suffix = "" if file is None else file.suffix.lower()
    if file is not None and suffix not in SUFFIXES:
        from dpacct.pictures.drawing import FORMATS, check_packages

        if suffix not in FORMATS:
            endings = ", ".join((*SUFFIXES, *FORMATS))
            raise InvalidParameter(LABEL, str(file), f"a sweep ends in one of {endings}")
        check_picture(settings, budget)
        check_packages(suffix[1:])
    elif budget is not None:
        raise OptionConflict(f"--eps {target} needs -o FILE.png, the picture that it is drawn in.")
    rows: list[dict[str, Any]] = []
    for row_typed, row_delta in settings:
        waiting.say("dpacct explore", len(rows), len(settings))
        rows.append(compute(row_typed, row_delta, accountant))
    if file is not None and suffix in SUFFIXES:
        write_output(to_bytes(rows, suffix), file, force=force)
    elif file is not None:
        from dpacct.pictures import Drawing

        picture = to_picture(settings, rows, budget)
        write_output(Drawing(picture).to_bytes(suffix[1:]), file, force=force)
        print(f"{escaped(picture.title)}: {file}")
    else:
        numbers = "\n".join("inf" if row["error"] else repr(row["epsilon_upper"]) for row in rows)
        render.show(render.Answer(to_data(rows), numbers, lambda: to_page(rows)), style)
    failed = [row["error"] for row in rows if row["error"] is not None]
    if failed:
        errors.print_line(
            f"{len(failed)} of {len(rows)} rows could not be computed. The first: {failed[0]}"
        )
        if len(failed) == len(rows):
            raise SystemExit(1)


def read_settings(typed: MechanismOptions, delta: str | None) -> Sweep:
    """Return every noise with every number of rounds, every rate or cohort, and every delta."""
    names = typed.by_option()
    lists: dict[str, Sequence[str]] = {
        field: _values(option, typed[field], options.CHECKS.get(field, options.number))
        for field, option in zip(typed.fields(), names, strict=True)
        if field in AXES
    }
    # This refuses what is missing and what contradicts. Other reasons belong to their rows.
    try:
        typed.but(**{field: values[0] for field, values in lists.items()}).read_schedule()
    except InvalidParameter as error:
        if error.value is None or error.name not in lists:
            raise
    deltas = _values("--delta", f"{DEFAULT_DELTA:g}" if delta is None else delta, validate.delta)
    count = math.prod(map(len, lists.values())) * len(deltas)
    if count > MOST_ROWS:
        raise OptionConflict(
            f"these are {count:,} rows, and a sweep has at most {MOST_ROWS:,}. Take larger steps."
        )
    return [
        (typed.but(**dict(zip(lists, values, strict=True))), float(d))
        for values in product(*lists.values())
        for d in deltas
    ]


def _values(name: str, text: str, check: Callable[[Any], object]) -> list[str]:
    values = read_values(name, text)
    for value in values:
        check(options.number(value))
    return values


def read_values(name: str, text: str) -> list[str]:
    """Return the texts of the numbers that an option names, in their order, each once."""
    values: dict[str, None] = {}
    for part in map(str.strip, text.split(",")):
        for value in _range(name, part) if ".." in part else (part,):
            values[value] = None
            if len(values) > MOST_VALUES:
                raise OptionConflict(
                    f"{spelling(name)} is {quoted(text)}; that is more than {MOST_VALUES:,} values."
                )
    return list(values)


def _range(name: str, part: str) -> Iterator[str]:
    """Yield the values of a range, in the usual spelling without an exponent."""
    refused = OptionConflict(
        f"{spelling(name)} is {quoted(part)}; a range goes up: 1..9 by one, 1..9/2 by steps, or "
        "1..64*2 by factors."
    )
    match = _RANGE.fullmatch(part)
    if match is None:
        raise refused
    try:
        first, value, last, step = (Decimal(text or 1) for text in match.group(1, 1, 2, 4))
        factor = match[3] == "*"
        # Decimals need a step.
        steps = match[3] or first % 1 == last % 1 == 0
        grows = first > 0 and step > 1 if factor else step > 0
        if not (steps and grows and first <= last and last.is_finite()):
            raise refused
    except InvalidOperation:
        raise refused from None
    while value <= last:
        yield f"{value.normalize():f}"
        value = value * step if factor else value + step


def compute(typed: MechanismOptions, delta: float, accountant: str) -> dict[str, Any]:
    """Compute the row of a setting. If that is impossible, the reason is in ``error``."""
    known = {f: typed.value(f) if f in AXES else typed[f] for f in typed.fields()}
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"sampling": typed.item.name} | known
    row |= {"delta": delta, "accountant": accountant, "phases": None}
    try:
        plan = typed.read_schedule()
        row |= mechanism_of(plan)
        only = mechanism.single_round(plan)
        if only is not None and isinstance(only.sampling, Uniform) and "num_clients" in typed:
            row["cohort_size"] = only.sampling.cohort_size
        spent = find_accountant(accountant).epsilon(plan, delta)
        row["epsilon_lower"] = spent.lower
        row["epsilon_upper"] = spent.upper if math.isfinite(spent.upper) else None
        if row["epsilon_upper"] is None:
            row["error"] = "no epsilon is proven at this delta"
    except DpacctError as error:
        row["error"] = errors.line(error)
    return row


def to_bytes(rows: Table, suffix: str) -> bytes:
    """Return the file that ends in ``suffix``, with numbers exact to the last bit."""
    if suffix == ".csv":
        stream = io.StringIO()
        columns = [key for key in rows[0] if key != "phases"]
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue().encode()
    return f"{render.to_json(to_data(rows))}\n".encode()


def _axes(settings: Sweep) -> dict[str, list[str]]:
    """Return the options that vary, each with its texts in the order of the settings."""
    columns = {field: [typed[field] for typed, _ in settings] for field in settings[0][0].fields()}
    columns["delta"] = [f"{delta!r}" for _, delta in settings]
    return {field: texts for field, texts in columns.items() if len({*texts}) > 1}


def _is_map(axes: dict[str, list[str]], budget: float | None) -> bool:
    """Return True for two settings that vary, with a budget or for more curves than one sees."""
    least = min((len({*texts}) for texts in axes.values()), default=0)
    return len(axes) == 2 and (budget is not None or least > MOST_CURVES)


def check_picture(settings: Sweep, budget: float | None) -> None:
    """Reject settings that make no readable picture."""
    axes = _axes(settings)
    counts = sorted(len({*texts}) for texts in axes.values()) or [1]
    curves, rule = math.prod(counts[:-1]), ""
    if _is_map(axes, budget):
        rule = f"a map has at most {MOST_SIDE} values a side" if counts[-1] > MOST_SIDE else ""
    elif curves > MOST_CURVES or counts[-1] == 1:
        rule = f"a chart has 1 to {MOST_CURVES} curves of at least two points"
    if rule:
        made = f"{curves} of {counts[-1]}"
        raise OptionConflict(
            f"{rule}, and these settings make {made}. A .csv file holds any sweep."
        )


def to_picture(settings: Sweep, rows: Table, budget: float | None = None) -> Picture:
    """Return a map over two settings, or curves over the setting with the most values.

    A line in a map parts the settings within the budget. Curves have a level at it.
    """
    from dpacct.pictures import Cells, Curve, Level, Panel, Picture

    axes = _axes(settings)
    places = [dict(zip(axes, texts, strict=True)) for texts in zip(*axes.values(), strict=True)]
    known = [
        pair for pair in zip(places, rows, strict=True) if pair[1]["epsilon_upper"] is not None
    ]

    def named(place: dict[str, str], but: str = "") -> str:
        return ", ".join(f"{_name(key)} {text}" for key, text in place.items() if key != but)

    title = "No epsilon is proven"
    if budget is not None:
        inside = sum(row["epsilon_upper"] <= budget for _, row in known)
        title = f"{inside} of {len(rows)} settings are within epsilon {chosen(budget, least=True)}"
    elif known:
        ends = (of(known, key=lambda pair: pair[1]["epsilon_upper"]) for of in (min, max))
        title = "Epsilon " + " to ".join(
            f"{up(row['epsilon_upper'], 4)} ({named(place)})" for place, row in ends
        )
    note = _constant(rows, beside=axes)
    if _is_map(axes, budget):
        (down, ys), (across, xs) = ((key, list(dict.fromkeys(axes[key]))) for key in axes)
        proven = {(place[down], place[across]): row["epsilon_upper"] for place, row in known}
        values = [[proven.get((y, x)) for x in xs] for y in ys]
        panel = Panel(_name(across), _name(down), cells=Cells(xs, ys, values, budget))
        return Picture(title, [panel], f"epsilon, proven; {note}")
    across = max(axes, key=lambda key: len({*axes[key]}))
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for place, row in known:
        point = (float(place[across]), row["epsilon_upper"], row["epsilon_lower"])
        lines.setdefault(named(place, across), []).append(point)
    columns = {name: [*zip(*sorted(line), strict=True)] for name, line in lines.items()}
    curves = [Curve(name, x, upper, lower=low) for name, (x, upper, low) in columns.items()]
    levels = [] if budget is None else [Level(budget, f"budget {chosen(budget, least=True)}")]
    values = [*map(float, axes[across])]
    log_x = max(values) > 20 * min(values)
    panel = Panel(_name(across), "epsilon, proven", curves, levels=levels, log_x=log_x)
    return Picture(title, [panel], f"{note}; bands reach down to the lower bounds")


def to_data(rows: Table) -> outputs.Explore:
    """Return the rows for JSON. A failed row has an error instead of an epsilon."""
    objects: list[dict[str, Any]] = []
    for row in rows:
        known = {key: one for key, one in row.items() if not key.startswith("epsilon_")}
        spent = {"lower": row["epsilon_lower"], "upper": row["epsilon_upper"]}
        objects.append(known | {"epsilon": None if spent["upper"] is None else spent})
    return {"rows": objects, "failed": sum(row["error"] is not None for row in rows)}


def _varying(rows: Table) -> list[str]:
    keys = [key for key in rows[0] if key in AXES or key == "delta"]
    return [key for key in keys if len({row[key] for row in rows}) > 1]


def _name(key: str) -> str:
    """Return the name of a setting, in terms of examples if these are counted."""
    if unit() == "example" and key == "cohort_size":
        return "batch"
    return in_units(NAMES.get(key, key.replace("_", " ")))


def _text(key: str, value: Any) -> str:
    if value is None:
        return "-"
    numbers = ("noise_multiplier", "sampling_rate", "delta")
    if key in numbers:
        return render.safe(key, value)
    return render.plain(value) if isinstance(value, float) else str(value)


def _constant(rows: Table, beside: Iterable[str] = ()) -> str:
    """Return the settings that all rows share, in words. Those ``beside`` stand elsewhere."""
    first, changes = rows[0], {*_varying(rows), *beside}
    told = [key for key in first if key in AXES or key in ("delta", "runs", "rate", "strategy")]
    same = [key for key in told if key not in changes and first[key] is not None]
    known = {row["adjacency"] for row in rows if row["adjacency"]}
    parts = [f"{_name(key)} {_text(key, first[key])}" for key in same]
    return ", ".join([*parts, f"{first['sampling']} sampling", *sorted(known)])


def to_page(rows: Table) -> render.Page:
    """Return the table. On a terminal, colors grade epsilon."""
    axes = _varying(rows) or ["noise_multiplier"]
    lines: list[list[str]] = []
    styles: list[str] = []
    for row in rows[:MOST_SHOWN]:
        upper, lower = row["epsilon_upper"], row["epsilon_lower"]
        bounds = ["-", "-"] if upper is None else [up(upper), down(lower)]
        lines.append([*(_text(key, row[key]) for key in axes), *bounds, row["error"] or ""])
        styles.append("" if upper is None else next(c for e, c in STRENGTHS if upper <= e))
    header = [*map(_name, axes), "epsilon proven", "achieved", ""]
    closing = "Save with -o FILE.csv or .json, draw with -o FILE.png."
    if len(rows) > len(lines):
        more = f"And {len(rows) - len(lines):,} more rows."
        closing = f"{more} Save all with -o FILE.csv or .json."
    grid = render.Grid(header, lines, {len(axes): styles})
    figures = [render.Row("rows", f"{len(rows):,}", _constant(rows))]
    return render.Page(figures, [grid], closing=closing)
