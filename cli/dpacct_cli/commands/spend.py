"""`dpacct epsilon`: what a schedule of rounds has spent."""

from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant, spend
from dpacct_cli import comparisons, mechanism, options
from dpacct_cli.mechanism_options import MechanismOptions, read_clip_norm
from dpacct_cli.render import Answer, Page, Row, show

PROMISE = "promise people the proven one; an explicit worst case reaches the achieved one"


def epsilon(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    delta: options.Delta = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    gap: options.Gap = None,
    clip: options.Clip = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """The epsilon that is spent at a delta.

    Examples:
      dpacct epsilon --noise 1.36 --rounds 300 --q 0.1 --delta 1e-5
      dpacct epsilon --noise 2.4 --rounds 200 --sampling uniform --cohort 100 --clients 2000
      dpacct epsilon --schedule rounds.toml --json
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    engine = find_accountant(accountant)
    clip_norm = read_clip_norm(clip)
    at = typed.read_delta(delta)
    plan = typed.read_schedule()
    spent = spend(plan, at.value, engine.name, options.read_gap(gap))

    def page() -> Page:
        rows = [
            mechanism.epsilon_row(spent, at.origin, lead=at.lead),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.noise_rows(plan, clients=typed.num_clients, clip_norm=clip_norm),
            mechanism.accountant_row(plan, at.value, accountant),
            *comparisons.epsilon_rows(plan, at.value, accountant, spent.interval),
        ]
        if spent.lower < 0.99 * spent.upper:
            rows.insert(1, Row("", PROMISE))
        closing = f"dpacct compare {typed.retyped()}{at.retyped} shows other accountants beside it."
        note = mechanism.delta_note(spent.delta, typed.num_clients)
        note = note or comparisons.wide_bracket_note(plan, spent.interval, accountant)
        return Page(rows, closing=closing, note=note)

    data: dict[str, object] = {
        "epsilon": {"lower": spent.lower, "upper": spent.upper},
        "delta": spent.delta,
        "accountant": accountant,
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
    }
    show(Answer(data, repr(spent.upper), page), style)
