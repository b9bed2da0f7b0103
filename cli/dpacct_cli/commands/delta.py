"""`dpacct delta`: the other way round, the delta at an epsilon."""

import dpacct
from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct_cli import comparisons, mechanism, options
from dpacct_cli.options import MechanismOptions, read_clip_norm
from dpacct_cli.render import Answer, Page, Row, bracket, plain, show, up
from dpacct_cli.words import in_units


def delta(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    eps: options.Eps = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    clip: options.Clip = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute the delta of a training run.

    Examples:
      dpacct delta --noise 1.36 --rounds 300 --q 0.1 --eps 8
      dpacct delta --schedule rounds.toml --eps 2 --json
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    engine = find_accountant(accountant)
    clip_norm = read_clip_norm(clip)
    at = validate.epsilon(options.number(eps))
    plan = typed.read_schedule()
    spent = dpacct.delta(plan, epsilon=at, accountant=engine.name)

    def page() -> Page:
        rows = [
            Row("delta", bracket(spent), f"  at epsilon {plain(at)}"),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
            Row("accountant", accountant),
        ]
        population = typed.num_clients
        if population is not None:
            rows.insert(
                1, Row("", in_units(f"that is {up(spent.upper * population, 3)} / clients"))
            )
        closing = ""
        if 0.0 < spent.upper < 1.0:
            again = f"{typed.retyped()} --delta {spent.upper!r}"
            closing = f"dpacct epsilon {again} asks the other way."
        note = comparisons.wide_bracket_note(plan, spent, accountant)
        return Page(rows, closing=closing, note=note)

    data: dict[str, object] = {
        "delta": {"lower": spent.lower, "upper": spent.upper},
        "epsilon": at,
        "accountant": accountant,
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
    }
    show(Answer(data, repr(spent.upper), page), style)
