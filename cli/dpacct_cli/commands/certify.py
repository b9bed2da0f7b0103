"""`dpacct certify`: a second proof of an epsilon, by ball arithmetic."""

from __future__ import annotations

from typing import Annotated

from dpacct import validate
from dpacct.certificates import BITS, Finding
from dpacct.certificates import certify as prove
from dpacct.display import down, up
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.rounds import Schedule
from dpacct_cli import FAILED, mechanism, options, outputs
from dpacct_cli.commands.source import ROUNDS, read_source
from dpacct_cli.errors import conflict
from dpacct_cli.options import MechanismOptions, StyleOptions, Text, argument, option
from dpacct_cli.output import opened
from dpacct_cli.render import Answer, Page, Row, plain, show, wrapped

# fmt: off
File = Annotated[str, argument("[FILE]", f"A ledger, {ROUNDS}.")]
AtEps = Annotated[Text, option("--eps", "E", options.PRIVACY, "The epsilon to prove, e.g. 8.0001.")]
Bits = Annotated[Text, option("--bits", "B", options.PRIVACY,
    f"Precision of the ball arithmetic; default {BITS}.", advanced=True)]
# fmt: on
MEANS = {
    Finding.PROVEN: "no neighboring data sets exceed epsilon at this delta",
    Finding.REFUTED: "explicit neighboring data sets exceed epsilon at this delta",
    Finding.UNDECIDED: "delta lies between the bounds; more --bits bring them together",
}


def certify(
    file: File = "",
    *,
    typed: MechanismOptions,
    eps: AtEps = None,
    delta: options.Delta = None,
    bits: Bits = None,
    shown: StyleOptions,
) -> None:
    """Prove an epsilon a second time, independently of the accountants.

    Ball arithmetic of the extra certify (python-flint) computes delta at this epsilon. A ledger
    states its epsilon and delta itself, if all rounds were planned first. Exit code 1 if the
    epsilon is not proven.

    Examples:
      dpacct certify --noise 1.28601 --rounds 300 --q 0.1 --eps 8.0001 --delta 1e-5
      dpacct certify rounds.toml --eps 2 --json
      dpacct certify census.ledger
    """
    typed.refuse_unused_clients()
    plan, epsilon, at = _stated(file, typed, eps, delta)
    precision = BITS if bits is None else validate.count("bits", options.number(bits), "bits", 4096)
    proof = prove(plan, epsilon=epsilon, delta=at, bits=precision)
    most, least = up(proof.delta.upper, 10), down(proof.delta.lower, 10)
    page = Page(
        [
            Row("certificate", str(proof.finding), f"epsilon {plain(epsilon)}, delta {plain(at)}"),
            *wrapped("", MEANS[proof.finding]),
            Row("delta", most, f"at most, and at least {least}"),
            *mechanism.all_rows(plan, typed),
            Row("by", f"ball arithmetic, {precision} bits", ""),
        ],
        title="Second proof",
    )
    data: outputs.Certify = {
        "finding": str(proof.finding),
        "epsilon": epsilon,
        "stated": at,
        "delta": proof.delta,
        "bits": precision,
        **typed.described(plan),
    }
    show(Answer(data, str(proof.finding), lambda: page), shown.style)
    if proof.finding is not Finding.PROVEN:
        raise SystemExit(FAILED)


def _stated(
    file: str, typed: MechanismOptions, eps: str | None, delta: str | None
) -> tuple[Schedule, float, float]:
    """Return what runs, with the stated epsilon and delta."""
    if not file:
        plan = typed.read_schedule()
    else:
        try:
            content = read_source(file, typed)
        except InvalidParameter as error:
            raise InvalidParameter("FILE", error.value, error.rule, error.hint) from None
        if isinstance(content, Answer):
            if eps is not None:
                raise conflict(f"--eps {eps}", file, f"the {content.data['source']} says it")
            return _of_ledger(file)
        plan = content[1]
    return plan, validate.epsilon(options.number(eps)), typed.read_delta(delta).value


def _of_ledger(file: str) -> tuple[Schedule, float, float]:
    """Return the plans of all runs, and the epsilon that the ledger proves for them.

    Raises:
        Unsupported: no plans that are charged together prove the epsilon of the ledger.
    """
    with opened(file) as ledger:
        summary = ledger.summary()
    epsilon, runs = summary["epsilon_any_stop"], summary["runs"]
    plans = [run["plan"] or [] for run in runs if run["planned_first"] and not run["left_plan"]]
    whole = bool(runs) and len(plans) == len(runs) and all(plans)
    if not (whole and summary["guarantee"] == "planned" and epsilon is not None):
        rule = "no certificate: not all rounds of this ledger were planned before the first one ran"
        raise Unsupported(f"{rule}. Certify the plan of a run: dpacct certify PLAN.toml --eps E")
    if summary["partitions"]:
        raise Unsupported("no certificate: the second proof covers no partitions of a data set")
    phases = [phase for plan in plans for phase in plan]
    # The ledger brings SQLite.
    from dpacct.ledger import schedule_from_json

    return schedule_from_json(phases), epsilon, summary["delta"]
