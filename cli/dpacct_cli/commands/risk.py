"""`dpacct risk`: limits of attacks, against the rounds and against any mechanism."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated

from dpacct import calibrate, validate
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.outputs import mechanism_of, noise_multiplier
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import RISK_ACCOUNTANT, AnyMechanism, guess, precision, prior_belief
from dpacct.rounds import Adjacency
from dpacct_cli import mechanism, options, outputs
from dpacct_cli.commands.calibrate import what_runs
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions, StyleOptions, Text, option
from dpacct_cli.render import Answer, Grid, Page, Row, bracket, down, plain, show, up
from dpacct_cli.words import in_units

RATES = "0.001,0.01,0.1"
QUESTIONS = {
    Adjacency.ADD_REMOVE: "whether one client was there",
    Adjacency.REPLACE_ONE: "which of two clients was there",
    Adjacency.ZERO_OUT: "whether one client contributed",
}

# fmt: off
FalsePositiveRates = Annotated[str, option("--fpr", "A,...", options.FIND,
    f"False positive rates in (0, 1) at which the attack is judged; default {RATES}.",
    advanced=True)]
Prior = Annotated[str, option("--prior", "P", options.FIND,
    "Probability in (0, 1) that the attacker assumes beforehand; default 0.5.", advanced=True)]
Guarantee = Annotated[Text, option("--eps", "E", options.PRIVACY,
    "Show the largest risk of any mechanism with this epsilon, alone or with that of the rounds. "
    "Without --noise, the noise is calibrated to it.")]
# fmt: on


def risk(
    *,
    fpr: FalsePositiveRates = RATES,
    prior: Prior = "0.5",
    typed: MechanismOptions,
    eps: Guarantee = None,
    delta: options.Delta = None,
    accountant: options.AccountantName = RISK_ACCOUNTANT,
    shown: StyleOptions,
) -> None:
    """Translate a guarantee into attack success rates: advantage, TPR at FPR, posterior.

    Examples:
      dpacct risk --noise 1 --rounds 300 --q 0.1
      dpacct risk --noise 1 --rounds 300 --q 0.1 --fpr 1e-3 --prior 0.01
      dpacct risk --eps 8
      dpacct risk --eps 8 --rounds 300 --q 0.1
      dpacct risk --schedule rounds.toml --json
    """
    style = shown.style
    engine = find_accountant(accountant)
    typed.refuse_unused_clients()
    rates = options.read_rates(fpr)
    belief = prior_belief(options.number(prior))
    promise = None
    if eps is not None:
        epsilon = validate.target_epsilon(options.number(eps))
        promise = _promised(epsilon, typed.read_delta(delta).value, rates, belief)
    elif delta is not None:
        raise OptionConflict(f"--delta {delta} needs --eps, the epsilon that goes with it.")
    if promise is not None and not typed:
        data: outputs.Risk | outputs.RiskOfAny = {"prior": belief, "any_mechanism": promise}
        show(Answer(data, repr(promise.advantage), lambda: _promise_page(promise)), style)
        return
    calibrated = promise is not None and not ("noise_multiplier" in typed or "schedule" in typed)
    if promise is not None and calibrated:
        asked = what_runs(typed, "noise")
        asked |= {"epsilon": promise.epsilon, "delta": promise.delta}
        plan = calibrate(**asked, accountant=engine.name).schedule
    else:
        plan = typed.read_schedule()
    attacks = Attacks(plan, engine)
    advantage, right = attacks.advantage(), guess(attacks, belief)
    tprs = [(rate, attacks.tpr(rate)) for rate in rates]
    at_rates = [outputs.AttackRate(rate, tpr, precision(tpr, rate, belief)) for rate, tpr in tprs]

    def page() -> Page:
        # Decimal, so that 1 - 0.33 is 0.67.
        blindly = max(Decimal(repr(belief)), 1 - Decimal(repr(belief)))
        rows = [
            Row("advantage", bracket(advantage), "  TPR - FPR of the best attack"),
            Row("best guess", bracket(right), f"  of being right; {blindly} without any model"),
            *mechanism.all_rows(plan, typed),
            Row("accountant", accountant),
        ]
        if calibrated:
            noise = noise_multiplier(plan) or 0.0
            rows.append(Row("noise", up(noise, 7), "calibrated"))
        if promise is not None:
            told = f"epsilon {plain(promise.epsilon)} at delta {plain(promise.delta)}"
            worst = f"{up(promise.advantage)} at most"
            rows.append(Row("any mechanism", worst, f"  advantage, if only {told} is known"))
        question = in_units(
            "The attacker sees every release, knows all other clients' data, and guesses "
            f"{QUESTIONS[plan.adjacency]}. The prior probability is {plain(belief)}. "
            "On average over many trainings, no attack exceeds the proven figures."
        )
        header = ["FPR", "TPR proven", "achieved", "accusation right, proven", "achieved"]
        lines = [
            [plain(fpr), up(tpr.upper), down(tpr.lower), up(right.upper), down(right.lower)]
            for fpr, tpr, right in at_rates
        ]
        return Page(rows, [Grid(header, lines)], [question])

    data = {
        "advantage": advantage,
        "prior": belief,
        "best_guess": right,
        "rates": at_rates,
        "accountant": accountant,
        **mechanism_of(plan),
    }
    if promise is not None:
        data["any_mechanism"] = promise
    show(Answer(data, repr(advantage.upper), page), style)


def _promised(
    epsilon: float, delta: float, rates: Sequence[float], prior: float
) -> outputs.AnyMechanismKeys:
    """Return the limits against the worst mechanism with this guarantee, as JSON keys."""
    worst = AnyMechanism(epsilon, delta)
    at_rates = [
        outputs.AnyRate(rate, tpr, precision(Interval(tpr, tpr), rate, prior).upper)
        for rate, tpr in ((rate, worst.tpr(rate)) for rate in rates)
    ]
    guess = worst.guess(prior)
    return outputs.AnyMechanismKeys(epsilon, delta, worst.advantage(), guess, at_rates)


def _promise_page(promise: outputs.AnyMechanismKeys) -> Page:
    """Return the page on the guarantee alone."""
    epsilon = plain(promise.epsilon)
    rows = [
        Row("advantage", f"{up(promise.advantage)} at most", "  TPR - FPR of the best attack"),
        Row("best guess", f"{up(promise.best_guess)} at most", "  of being right"),
        Row("of", "any mechanism", f"with epsilon {epsilon} at delta {plain(promise.delta)}"),
    ]
    lines = [[plain(row.fpr), up(row.tpr), up(row.posterior)] for row in promise.rates]
    remark = (
        "Some mechanism with this guarantee lets an attacker do as well as this. A known one lets "
        f"out far less: dpacct risk --eps {epsilon} --rounds T --q Q."
    )
    return Page(rows, [Grid(["FPR", "TPR", "accusation right"], lines)], [remark])
