"""Rounds whose sum is hidden from the server: shares of noise behind masks, over Flower."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import dpacct
from dpacct import fl
from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from dpacct.fl.flower import (
    HiddenSum,
    Membership,
    PrivateStrategy,
    client_app,
    new_identity,
    private_mod,
    wire,
)
from dpacct.fl.flower import hidden_wire as messages
from dpacct.fl.flower.hidden import purpose
from dpacct.fl.flower.masks import mask, new_key
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.noise import STD_MARGIN
from dpacct.fl.privacy.secure_noise import grid_exponent
from dpacct.ledger import Ledger
from tests.fl.flower.fake import FakeGrid, carried
from tests.fl.flower.test_strategy import Spent, own_loop, rounds_of
from tests.fl.problems import cross_entropy, flat, linear, make_clients

pytestmark = pytest.mark.usefixtures("uncounted")

CLIENTS = make_clients((9, 4, 0, 7, 5, 8))
QUICK = {"poll": 1e-3, "patience": 0.05}
# So little noise that what is summed can be seen, and enough for shares on the grid.
STILL = 1e-3


@pytest.fixture(autouse=True)
def _uncounted_epsilon(monkeypatch):
    spent = Spent(dpacct.Budget(1.0, 1e-5))
    monkeypatch.setattr("dpacct.fl.report.reports.Report.epsilon", spent)


def server(**options) -> fl.Server:
    settings = {
        "clip_norm": 0.5, "noise_multiplier": 0.7, "sampling": fl.Full(), "rounds": 2,
        "adjacency": "replace-one", "noise": fl.NoiseShares(4), "preflight": False,
        "local": fl.SGD(lr=0.1, epochs=2, batch_size=4),
    }  # fmt: skip
    return fl.Server(linear(), len(CLIENTS), **(settings | options))


def app(minimum=4, noise=STILL, member=None, **options):
    def data(context):
        return CLIENTS[context.node_config["partition-id"]]

    hidden = HiddenSum(minimum, noise, membership=member)
    return client_app(linear, cross_entropy, data, hidden=hidden, **options)


def members():
    """A secret key for each client, and everybody's public ones."""
    keys = [new_identity() for _ in CLIENTS]
    known = {client: public for client, (_, public) in enumerate(keys)}
    return lambda context: Membership(keys[context.node_config["partition-id"]][0], known)


def grid(fault=None, **options) -> FakeGrid:
    return FakeGrid([app(**options) for _ in CLIENTS], fault)


def play(run, network, **options):
    strategy = PrivateStrategy(run, **(QUICK | options))
    strategy.start(network, timeout=0.05)
    return strategy


# Masks.


def test_masks_cancel_over_the_roster_and_over_nothing_less():
    keys = {client: new_key() for client in (0, 3, 11, 4)}
    roster = [public for _, public in keys.values()]
    masks = {c: mask(secret, roster, b"run 1", 70_000) for c, (secret, _) in keys.items()}
    total = sum(masks.values(), np.zeros(70_000, dtype=np.uint64))
    assert not total.any()
    for value in masks.values():
        # Each sum over fewer looks like uniform bits: of 4.48 million, within 7 deviations of half.
        part = total - value
        ones = int(np.unpackbits(part.view(np.uint8)).sum())
        assert abs(ones - 32 * 70_000) <= 7 * math.sqrt(64 * 70_000) / 2
        assert len(set(part.tolist())) == 70_000


def test_another_round_or_roster_has_other_masks():
    secrets, roster = zip(*[new_key() for _ in range(3)], strict=True)
    found = mask(secrets[0], roster, b"run 1", 64)
    # In whatever order they are told.
    assert (mask(secrets[0], roster[::-1], b"run 1", 64) == found).all()
    fewer = roster[:2]
    for other in (mask(secrets[0], roster, b"run 2", 64), mask(secrets[0], fewer, b"run 1", 64)):
        assert not (other == found).any()
    # Not even their pairwise parts: who is told another roster shares no mask with the others.
    pair = mask(secrets[0], fewer, b"run 1", 64) + mask(secrets[1], roster, b"run 1", 64)
    assert len(np.unique(pair)) == 64
    # Nor where the round's name goes on as the roster would.
    ends = mask(secrets[0], fewer, b"run 1" + roster[2], 64)
    assert not (ends + mask(secrets[1], roster, b"run 1", 64) == 0).any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda roster: [new_key()[1], *roster[1:]], "has sent is in it"),
        (lambda roster: [roster[0], roster[2], roster[2]], "one key twice"),
        (lambda roster: [roster[0], bytes(32), roster[2]], "the key 0000"),
    ],
    ids=["own", "twice", "of low order"],
)
def test_a_roster_that_is_none_is_refused(change, said):
    keys = [new_key() for _ in range(3)]
    with pytest.raises(InvalidParameter, match=said):
        mask(keys[0][0], change([public for _, public in keys]), b"run 1", 8)


# Rounds.


def test_the_model_moves_by_the_sum_of_the_bounded_updates():
    network = FakeGrid([own(client) for client in range(6)])
    settings = {"noise_multiplier": STILL, "clip_norm": 0.1, "rounds": 1}
    with server(**settings) as run:
        before = flat(run.model)
        strategy = play(run, network)
        assert strategy.last.released
        assert strategy.last.diagnostics.cohort_size == 6
    # Updates of 0.01 k on 21 coordinates, clipped to 0.1 from k = 3 on; noise of 2e-5 on the mean,
    # ten times which 21 coordinates are below but for a probability of 1e-20.
    updates = [min(0.01 * client, 0.1 / 21**0.5) for client in range(6)]
    moved = flat(run.model) - before
    assert torch.allclose(moved, torch.full_like(moved, sum(updates) / 6), atol=2e-4)


def own(client):
    del client
    return own_loop(hidden=HiddenSum(4, STILL))


def test_the_server_sees_keys_and_masked_rows_alone():
    seen = []

    def look(client, message, replies):
        seen.extend((client, reply.content) for reply in replies)
        return replies

    with server(rounds=1, noise_multiplier=STILL) as run:
        play(run, grid(look))
    assert len(seen) == 12
    rows = []
    for _, content in seen:
        records = set(content.keys())
        assert records in ({wire.SIGN}, {wire.SIGN, "dpacct.masked"})
        assert {type(value) for value in content[wire.SIGN].values()} <= {int, str, bytes, float}
        assert "secret" not in content[wire.SIGN]
        if "dpacct.masked" in records:
            rows.append(messages.unpack_masked(content).row)
    # Bounded updates and their noise are below 2^30 units; masked they are anywhere.
    assert all(float(row.double().abs().median()) > 2.0**58 for row in rows)
    total = torch.stack(rows).sum(dim=0)
    assert int(total.abs().max()) < 2**30


def test_noise_has_the_law_that_is_charged():
    """Twelve rounds of 21 coordinates with zero updates: a chi-square variate of 252 degrees."""
    settings = {"rounds": 12, "noise_multiplier": 2.0, "local": fl.SGD(lr=1e-30)}
    drawn = []
    with server(**settings) as run:
        before = [flat(run.model)]

        def note(report):
            del report
            now = flat(run.model)
            drawn.append((now - before[0]).double() * 6)
            before[0] = now

        play(run, grid(), on_round=note)
    scaled = torch.cat(drawn) / (2.0 * 0.5 * math.sqrt(6 / 4))
    # Outside with a probability of 5e-8 (scipy.stats.chi2.cdf, .sf).
    assert 150 < float(scaled.square().sum()) < 392


@pytest.mark.parametrize(("away", "released"), [(2, True), (3, False)])
def test_who_does_not_train_is_missing_from_the_roster_and_too_few_are_no_sum(
    away, released, tmp_path
):
    def fault(client, message, replies):
        return [] if client < away and "arrays" in message.content else replies

    path = tmp_path / "run.ledger"
    network = grid(fault)
    with server(rounds=1, ledger=path) as run:
        before = flat(run.model)
        last = play(run, network).last
        assert last.released is released
        assert bool((flat(run.model) == before).all()) is not released
    assert rounds_of(path) == (1, int(released))
    asked = [c for c, message in network.sent if message.content["dpacct"]["ask"] == "roster"]
    assert asked == (list(range(away, 6)) if released else [])


def test_who_leaves_after_the_keys_costs_the_round_and_nobody_is_asked_again(tmp_path):
    def fault(client, message, replies):
        return [] if client == 5 and message.content["dpacct"]["ask"] == "roster" else replies

    path = tmp_path / "run.ledger"
    network = grid(fault)
    with server(rounds=1, ledger=path) as run:
        before = flat(run.model)
        assert not play(run, network).last.released
        assert torch.equal(flat(run.model), before)
    # It is committed: with the row that is missing the server could have read the sum.
    assert rounds_of(path) == (1, 1)
    asked = [c for c, message in network.sent if message.content["dpacct"]["ask"] == "roster"]
    assert sorted(asked) == list(range(6))


def test_committed_before_a_roster_leaves(tmp_path):
    path, seen = tmp_path / "run.ledger", []

    def look(client, message, replies):
        seen.append((message.content["dpacct"]["ask"], rounds_of(path)))
        return replies

    with server(ledger=path) as run:
        play(run, grid(look))
    first = [("round", (1, 0))] * 6 + [("roster", (1, 1))] * 6
    assert seen == first + [("round", (2, 1))] * 6 + [("roster", (2, 2))] * 6


def test_no_roster_leaves_where_the_ledger_cannot_be_written(tmp_path, monkeypatch):
    network = grid()
    with server(rounds=1, ledger=tmp_path / "run.ledger") as run:

        def broken(self, details=None):
            raise LedgerError("the disk is full")

        monkeypatch.setattr("dpacct.ledger.Ticket.commit", broken)
        with pytest.raises(LedgerError, match="full"):
            play(run, network)
    assert {message.content["dpacct"]["ask"] for _, message in network.sent} == {"round"}


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("last", [0, 3, 5])
@pytest.mark.parametrize("signed", [False, True], ids=["plain", "signed"])
@pytest.mark.parametrize("ask", ["round", "roster"])
def test_a_server_that_is_killed_goes_on_and_a_sum_it_could_read_stays_charged(
    ask, signed, last, tmp_path
):
    """Killed before the roster the round counts once; behind it its place is not used again."""
    path, check = tmp_path / "run.ledger", tmp_path / "run.pt"

    def fault(client, message, replies):
        if message.content["dpacct"]["ask"] == ask and client == 5:
            raise Killed
        return replies

    options = {"ledger": path, "checkpoint": check, "rounds": 2}
    network = grid(fault)
    with pytest.raises(Killed), server(**options) as run:
        play(run, network)
    # With the first roster that has left, all may have.
    assert rounds_of(path) == (1, 0 if ask == "round" else 1)
    network.fault = None
    with server(**options) as run:
        run.resume()
        play(run, network)
        released = run.round
    # Two rounds were planned; the one that may have been read is one of them.
    assert released == (2 if ask == "round" else 1)
    assert rounds_of(path) == (2, 2)


@pytest.mark.parametrize("times", [1, 2])
def test_an_update_is_masked_once(times):
    """A second roster without one client would show that client's row as a difference."""
    keys = {}

    def fault(client, message, replies):
        if message.content["dpacct"]["ask"] == "roster" and client == 0:
            keys["message"] = message
        return replies

    network = grid(fault)
    with server(rounds=1) as run:
        play(run, network)
    message = keys["message"]
    roster = messages.unpack_roster(message.content)
    fewer = roster.keys[:5]
    content = messages.pack_roster(
        messages.Roster(roster.about, fewer if times == 2 else roster.keys)
    )
    node = network.node_of(0)
    with pytest.raises(InvalidParameter, match="sent it before"):
        HiddenSum(4, STILL).mask(content, 0, network._contexts[node])


def test_a_small_roster_or_that_of_another_round_is_refused():
    context = Context(7, 1, {"partition-id": 0}, RecordDict(), {})
    given = assignment()
    hidden = HiddenSum(4, STILL)
    answer = messages.unpack_key(hidden.hide(given, torch.zeros(21), LAYOUT, context))
    roster = [answer.public, *(new_key()[1] for _ in range(3))]
    about = answer.about
    for changed, said in [
        (messages.Roster(about, roster[:3]), "no fewer than 4"),
        (messages.Roster(messages.About(about.run, 2, 0), roster), "nothing that waits"),
        (messages.Roster(messages.About("other", 1, 0), roster), "nothing that waits"),
        (messages.Roster(messages.About(about.run, 1, 1), roster), "nothing that waits"),
        (messages.Roster(about, [*roster[1:], new_key()[1]]), "other keys"),
    ]:
        with pytest.raises(InvalidParameter, match=said):
            hidden.mask(messages.pack_roster(changed), 0, context)
    found = messages.unpack_masked(
        hidden.mask(messages.pack_roster(messages.Roster(about, roster)), 0, context)
    )
    assert len(found.row) == 21
    assert not context.state


LAYOUT = Layout.of(dict(linear().named_parameters()))


def assignment(**changed):
    params = {name: value.detach() for name, value in linear().named_parameters()}
    fields = {
        "run": "tag", "number": 1, "client": 0, "setting": "", "params": params,
        "server_state": {}, "memory": None, "local": fl.SGD(lr=0.1), "bound": fl.Clip(0.5),
        "counted": False, "kept": None, "contributions": 6, "seed": 1, "shares": (4, 0.4),
    }  # fmt: skip
    return wire.Assignment(**(fields | changed))


def waiting(**changed):
    """A client that has trained, to zero, and its public key."""
    context = Context(7, 1, {"partition-id": 0}, RecordDict(), {})
    given = assignment(**changed)
    key = HiddenSum(4, STILL).hide(given, torch.zeros(21), LAYOUT, context)
    return context, messages.unpack_key(key)


def test_two_answers_to_rosters_hold_two_shares_of_noise():
    """A node that works on two messages at once answers both: what they show is two releases.

    With one share in both, two rosters that differ by one client would show its row with no more.
    """
    context, key = waiting()
    before = RecordDict(dict(context.state))
    found = []
    for others in (3, 4):
        keys = [new_key() for _ in range(others)]
        roster = [key.public, *(public for _, public in keys)]
        context.state = RecordDict(dict(before))
        asked = messages.pack_roster(messages.Roster(key.about, roster))
        about = purpose(key.about, str(context.state["dpacct.waiting"]["terms"]))
        row = messages.unpack_masked(HiddenSum(4, STILL).mask(asked, 0, context)).row.numpy()
        for secret, _ in keys:
            row = row + mask(secret, roster, about, 21).view(np.int64)
        found.append(row * 2.0 ** grid_exponent(fl.Clip(0.5).limits(LAYOUT)) / 0.2)
    # 21 variates of standard deviation 0.2, and those of the difference: their squares are outside
    # with a probability of 1e-7 each.
    first, second = found
    for scaled in (first, second, (first - second) / 2**0.5):
        assert 0.9 < float(np.square(scaled).sum()) < 78


def test_a_client_is_told_how_many_are_summed_and_not_who():
    """Whoever knows the cohort gains nothing from sampling; a member of it is not to."""
    network = grid(minimum=3)
    with server(sampling=fl.Uniform(4, 6), noise=fl.NoiseShares(3), rounds=1) as run:
        play(run, network)
    told = [(c, m.content["dpacct"]) for c, m in network.sent if "keys" in m.content["dpacct"]]
    assert len(told) == 4
    for client, sign in told:
        assert set(sign) == {"protocol", "version", "run", "round", "client", "ask", "keys"}
        assert sign["client"] == client
        # In an order that says nothing: keys are drawn.
        assert sign["keys"] == sorted(sign["keys"]) == told[0][1]["keys"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"shares": None}, "behind masks alone"),
        ({"shares": (3, 0.4)}, "4 shares"),
        ({"shares": (4, 0.2499)}, "at least 0.25"),
        ({"shares": (4, math.nan)}, "at least 0.25"),
    ],
)
def test_a_client_insists_on_masks_shares_and_noise(changed, said):
    HiddenSum(4, 0.5).check(assignment(shares=(4, 0.25)))
    with pytest.raises(InvalidParameter, match=said):
        HiddenSum(4, 0.5).check(assignment(**changed))


@pytest.mark.parametrize(
    ("clients", "run", "said"),
    [
        ({"minimum": 3}, {}, "at least 4 shares"),
        ({"noise": 0.8}, {}, "charges for 0.7"),
        ({}, {"noise": fl.GaussianNoise()}, "the server adds the noise"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_the_start(clients, run, said, tmp_path):
    path = tmp_path / "run.ledger"
    with server(ledger=path, **run) as found, pytest.raises(InvalidParameter, match=said):
        play(found, grid(**clients))
    assert not path.exists()


def test_clients_in_the_clear_are_refused_at_the_start(tmp_path):
    def data(context):
        return CLIENTS[context.node_config["partition-id"]]

    network = FakeGrid([client_app(linear, cross_entropy, data) for _ in CLIENTS])
    with server(ledger=tmp_path / "a") as run, pytest.raises(InvalidParameter, match="hidden"):
        play(run, network)
    assert not (tmp_path / "a").exists()


def test_a_client_that_breaks_its_bound_harms_the_sum_and_a_wrong_row_nobody():
    def fault(client, message, replies):
        if message.content["dpacct"]["ask"] == "roster" and client == 2:
            about = messages.unpack_masked(replies[0].content).about
            row = messages.MaskedRow(about, torch.zeros(20, dtype=torch.int64))
            replies[0].content = messages.pack_masked(row)
        return replies

    with server(rounds=1) as run:
        before = flat(run.model)
        assert not play(run, grid(fault)).last.released
        assert torch.equal(flat(run.model), before)


def test_fixed_cohorts_are_hidden_too():
    network = grid(minimum=3)
    with server(sampling=fl.Uniform(4, 6), noise=fl.NoiseShares(3), rounds=3) as run:
        play(run, network)
        assert run.round == 3
    assert len(network.sent) == 3 * 8


def test_a_ledger_says_whose_noise_it_was(tmp_path):
    with server(ledger=tmp_path / "a", rounds=1) as run:
        play(run, grid())
    with Ledger.open(tmp_path / "a", read_only=True) as book:
        assert book.runs[0].committed == 1
    assert b"gaussian shares" in (tmp_path / "a").read_bytes()


def test_a_strategy_that_waits_for_too_few_is_refused():
    with server() as run, pytest.raises(InvalidParameter, match="at least 4 shares"):
        PrivateStrategy(run, min_clients=3)


def test_memories_and_counts_beside_the_sum_are_refused():
    with pytest.raises(Unsupported, match="memories"):
        server(method=fl.FedAlphaNormEC(alpha=0.1, beta=0.5), clip_norm=None)
    with pytest.raises(Unsupported, match="adaptive"):
        server(bound=fl.AdaptiveClip(0.3), clip_norm=None, noise_multiplier=0.2)


def test_what_flowers_own_secure_aggregation_does_is_as_the_guide_says():
    from flwr.client.mod.secure_aggregation.secaggplus_mod import SecAggPlusState, _unmask
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    from flwr.server.workflow import SecAggPlusWorkflow

    # Two keys whose words have the same exclusive or have the same mask: 32 bits are all there is.
    one = bytes(range(32))
    folded = np.bitwise_xor.reduce(np.frombuffer(one, dtype="<u4")).tobytes()
    masks = [pseudo_rand_gen(key, 2**32, [(9,)])[0] for key in (one, folded)]
    assert (masks[0] == masks[1]).all()
    # Shares of one node as present and as gone, to whoever asks for both.
    state = SecAggPlusState(
        threshold=1, rd_seed_share_dict={5: b"seed"}, sk1_share_dict={5: b"key"}
    )
    asked = {"active_nids": [5], "dead_nids": [5]}
    names = {"active_nids": "ACTIVE_NODE_ID_LIST", "dead_nids": "DEAD_NODE_ID_LIST"}
    from flwr.common.secure_aggregation.secaggplus_constants import Key

    found = _unmask(state, {getattr(Key, names[name]): nodes for name, nodes in asked.items()})
    assert set(found[Key.SHARE_LIST]) == {b"seed", b"key"}
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(3, 2)(None, Context(7, 1, {}, RecordDict(), {}))


@pytest.mark.parametrize(
    "told",
    [
        {"std": math.inf}, {"std": math.nan}, {"local": "[" * 100_000},
        {"bound": '{"kind": "clip", "values": [1' + 400 * "0" + "]}"}, {"std": 1e300},
        {"std": 1e308},
    ],
    ids=["infinite", "none", "deep", "long", "much", "most"],
)  # fmt: skip
def test_a_client_refuses_what_no_server_sends(told):
    content = wire.pack_assignment(assignment(), wire.shared_records(assignment().params, {}, None))
    content["dpacct"] = ConfigRecord({**content["dpacct"], **told})
    context = Context(7, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises((InvalidParameter, Unsupported), match=r"all that a client|are proven"):
        app()(asking(content), context)
    assert not context.state


@pytest.mark.parametrize(
    "places",
    [[99], [-1], [3, 3], [4, 3], [[1, 2]], 3, [0.5], [True] * 21],
    ids=str,
)
def test_a_client_refuses_a_mask_that_is_none(places):
    given = assignment(kept=torch.tensor(places))
    content = wire.pack_assignment(given, wire.shared_records(given.params, {}, given.kept))
    context = Context(7, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(InvalidParameter, match="all that a client"):
        app()(asking(content), context)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.complex64, torch.int64])
def test_a_client_refuses_parameters_of_another_type(kind):
    params = {name: value.to(kind) for name, value in assignment().params.items()}
    content = wire.pack_assignment(assignment(), wire.shared_records(params, {}, None))
    context = Context(7, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(InvalidParameter, match="on the server is torch"):
        app()(asking(content), context)


def asking(content) -> Message:
    FakeGrid([])
    return carried(Message(content, dst_node_id=1, message_type="train"))


def test_the_shares_that_are_drawn_are_no_less_than_a_client_asks_for():
    """Products and square roots round either way; the noise is held to its word exactly."""
    minimum, asked, norm = 75, 3.3317501526480298, 2.6253827332905213
    hidden, std = HiddenSum(minimum, asked), asked * norm
    short = assignment(shares=(minimum, std), bound=fl.Clip(norm))
    drawn = Fraction(fl.NoiseShares(minimum).share_std(std)) ** 2 * minimum
    assert drawn < (Fraction(asked) * Fraction(norm)) ** 2
    with pytest.raises(InvalidParameter, match="at least 8"):
        hidden.check(short)
    # What a server sends that charges for as much.
    hidden.check(dataclasses.replace(short, shares=(minimum, std * (1 + STD_MARGIN))))
    for none in (math.inf, math.nan, -std, 0.0):
        with pytest.raises(InvalidParameter, match="at least 8"):
            hidden.check(dataclasses.replace(short, shares=(minimum, none)))


def failing(kind):
    """An app that fails at its examples: in its own loop, while it reads them, or in the loss."""
    found = ClientApp(mods=[private_mod(hidden=HiddenSum(4, STILL))])

    @found.train()
    def train(message, context):
        if context.node_config["partition-id"] in (1, 4):
            raise IndexError("target 3 is out of bounds")
        arrays = message.content["arrays"].to_torch_state_dict()
        moved = ArrayRecord({name: value + 0.01 for name, value in arrays.items()})
        return Message(RecordDict({"arrays": moved}), reply_to=message)

    def none(context):
        if context.node_config["partition-id"] in (1, 4):
            raise OSError("no row 3")
        return CLIENTS[0]

    def steep(output, target):
        raise IndexError("target 3 is out of bounds")

    if kind == "loop":
        return found
    given = (cross_entropy, none) if kind == "data" else (steep, lambda _: CLIENTS[0])
    return client_app(linear, *given, hidden=HiddenSum(4, STILL))


@pytest.mark.parametrize("kind", ["loop", "data", "loss"])
def test_whether_a_client_fails_at_its_examples_does_not_show(kind, caplog):
    """Flower sends the words of an error, and the server picks what leads to it."""
    seen, app = [], failing(kind)

    def look(client, message, replies):
        seen.extend((client, reply) for reply in replies)
        return replies

    network = FakeGrid([app] * 6, look)
    with server(rounds=1, noise_multiplier=STILL, clip_norm=0.1) as run:
        before = flat(run.model)
        strategy = PrivateStrategy(run, **QUICK)
        strategy._roster._check_trials = lambda: None
        strategy.start(network, timeout=0.05)
        assert strategy.last.released
    assert not any(reply.has_error() for _, reply in seen)
    assert len(seen) == 12
    moved = flat(run.model) - before
    if kind == "loop":
        # Four of six have moved by 0.01; noise of 2e-5.
        assert torch.allclose(moved, torch.full_like(moved, 0.04 / 6), atol=2e-4)
    if kind == "loss":
        assert float(moved.abs().max()) < 1e-3
    # In the client's own log.
    assert "contributes zero" in caplog.text


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_a_client_that_hides_answers_to_nothing_else(kind):
    """What it measures on its examples would leave without noise, at parameters of the server's."""
    for hidden, answers in ((HiddenSum(4, STILL), False), (None, True)):
        found, called = ClientApp(mods=[private_mod(hidden=hidden)]), []

        def say(message, context, called=called):
            called.append(kind)
            return Message(RecordDict(), reply_to=message)

        getattr(found, kind)()(say)
        FakeGrid([])
        asked = carried(Message(RecordDict(), dst_node_id=1, message_type=kind))
        context = Context(7, 1, {"partition-id": 0}, RecordDict(), {})
        if answers:
            found(asked, context)
        else:
            with pytest.raises(InvalidParameter, match="no noise covers"):
                found(asked, context)
        assert bool(called) is answers
