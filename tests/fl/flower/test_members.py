"""Signed keys: a server that lies about keys reads nothing, and rounds go on as without."""

from __future__ import annotations

import contextlib
import dataclasses
from hashlib import sha256

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import Context, RecordDict

import dpacct
from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.flower import HiddenSum, Membership, client_app, new_identity
from dpacct.fl.flower import hidden_wire as messages
from dpacct.fl.flower.hidden import purpose
from dpacct.fl.flower.masks import mask, new_key
from dpacct.fl.privacy.secure_noise import grid_exponent
from tests.fl.flower.fake import FakeGrid
from tests.fl.flower.test_hidden import (
    CLIENTS,
    LAYOUT,
    STILL,
    assignment,
    play,
    server,
)
from tests.fl.flower.test_strategy import Spent, rounds_of
from tests.fl.problems import cross_entropy, flat, linear

pytestmark = pytest.mark.usefixtures("uncounted")

IDENTITIES = [new_identity() for _ in CLIENTS]
MEMBERS = {client: public for client, (_, public) in enumerate(IDENTITIES)}


@pytest.fixture(autouse=True)
def _uncounted_epsilon(monkeypatch):
    spent = Spent(dpacct.Budget(1.0, 1e-5))
    monkeypatch.setattr("dpacct.fl.report.reports.Report.epsilon", spent)


def membership(context) -> Membership:
    return Membership(IDENTITIES[context.node_config["partition-id"]][0], MEMBERS)


def app(member=membership, **options):
    def data(context):
        return CLIENTS[context.node_config["partition-id"]]

    hidden = HiddenSum(4, STILL, membership=member, **options)
    return client_app(linear, cross_entropy, data, hidden=hidden)


def context_of(client: int) -> Context:
    return Context(7, 1, {"partition-id": client}, RecordDict(), {})


def waiting(hidden: HiddenSum, value: float = 0.0, **changed):
    """A client that has trained to an update of ``value`` everywhere, and its key."""
    context = context_of(0)
    row = torch.full((21,), value)
    key = hidden.hide(assignment(**changed), row, LAYOUT, context)
    return context, messages.unpack_key(key)


def terms_of(context: Context) -> str:
    return str(context.state["dpacct.waiting"]["terms"])


def signed_by(client: int, about: messages.About, public: bytes) -> tuple[int, bytes]:
    whose = dataclasses.replace(about, client=client)
    return client, Membership(IDENTITIES[client][0], MEMBERS).sign(whose, public)


def honest(key: messages.Key, clients=(1, 2, 3)) -> messages.Roster:
    """The roster of client 0 and others, each signed by whom it belongs to."""
    keys, names = [key.public], [(0, key.signature)]
    for client in clients:
        keys.append(new_key()[1])
        names.append(signed_by(client, key.about, keys[-1]))
    return messages.Roster(key.about, keys, names)


def ask(hidden: HiddenSum, roster: messages.Roster, context: Context) -> messages.MaskedRow:
    return messages.unpack_masked(hidden.mask(messages.pack_roster(roster), 0, context))


def test_rounds_go_on_with_signed_keys(tmp_path):
    path = tmp_path / "run.ledger"
    network = FakeGrid([app() for _ in CLIENTS])
    with server(ledger=path, noise_multiplier=STILL) as run:
        before = flat(run.model)
        assert play(run, network).last.released
        assert not torch.equal(flat(run.model), before)
    assert rounds_of(path) == (2, 2)
    told = [m.content["dpacct"] for _, m in network.sent if "keys" in m.content["dpacct"]]
    assert all(sorted(sign["clients"]) == list(range(6)) for sign in told)


def test_keys_of_the_server_read_an_update_that_signatures_keep():
    """What a lying server gains where keys are not signed; where they are it gains nothing."""
    own = [new_key() for _ in range(3)]

    def swapped(key):
        return [key.public, *(public for _, public in own)]

    plain = HiddenSum(4, STILL)
    context, key = waiting(plain, value=0.05)
    terms = terms_of(context)
    roster = swapped(key)
    row = ask(plain, messages.Roster(key.about, roster), context).row.numpy()
    for secret, _ in own:
        row = row + mask(secret, roster, purpose(key.about, terms), 21).view(np.int64)
    unit = 2.0 ** grid_exponent(fl.Clip(0.5).limits(LAYOUT))
    # One share of noise, of standard deviation 0.4 / 2; the mean over coordinates within 7 of its.
    assert abs(float((row * unit).mean()) - 0.05) < 0.2 * 7 / 21**0.5
    assert float(np.abs(row * unit).max()) < 2.0

    safe = HiddenSum(4, STILL, membership=membership)
    context, key = waiting(safe, value=0.05)
    false = [signed_by(0, key.about, new_key()[1])[1] for _ in range(3)]
    names = [(0, key.signature), *zip((1, 2, 3), false, strict=True)]
    for lie in (
        messages.Roster(key.about, swapped(key)),
        messages.Roster(key.about, swapped(key), names),
    ):
        with pytest.raises(InvalidParameter, match="roster"):
            ask(safe, lie, context)
    # It still waits for the roster of the round, and answers that.
    assert len(ask(safe, honest(key), context).row) == 21


def replaced(roster, place, **changed):
    client, signature = roster.signed[place]
    new = (changed.get("client", client), changed.get("signature", signature))
    names = [new if at == place else old for at, old in enumerate(roster.signed)]
    return dataclasses.replace(roster, signed=names)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda r, _: dataclasses.replace(r, signed=[]), "without signatures"),
        (lambda r, _: replaced(r, 1, client=2), "has signed its key"),
        (lambda r, _: replaced(r, 1, client=9), "key of client 9"),
        (lambda r, _: replaced(r, 1, signature=bytes(64)), "has signed its key"),
        (lambda r, _: replaced(r, 1, signature=r.signed[2][1]), "has signed its key"),
        (lambda r, k: twice(r, k.about), "one client twice"),
        (lambda r, k: of_another(r, dataclasses.replace(k.about, number=2)), "for this round"),
        (lambda r, k: of_another(r, dataclasses.replace(k.about, run="b")), "for this round"),
    ],
    ids=["none", "other", "stranger", "zero", "moved", "twice", "round", "run"],
)
def test_a_roster_of_others_than_members_is_refused(lie, said):
    hidden = HiddenSum(4, STILL, membership=membership)
    context, key = waiting(hidden)
    with pytest.raises(InvalidParameter, match=said):
        ask(hidden, lie(honest(key), key), context)
    # Nothing was sent, and the round's own roster is still answered.
    assert len(ask(hidden, honest(key), context).row) == 21


def twice(roster, about):
    """A member with two keys of its own stands for two clients."""
    public = new_key()[1]
    keys, names = [*roster.keys[:3], public], [*roster.signed[:3], signed_by(1, about, public)]
    return messages.Roster(about, keys, names)


def of_another(roster, about):
    """Keys that members have signed in another round, or for another process of the server."""
    names = [roster.signed[0]]
    names += [signed_by(client, about, roster.keys[client]) for client in (1, 2, 3)]
    return dataclasses.replace(roster, signed=names)


def unmasked(changed) -> float:
    """The largest number, in units of the grid, in the sum of two rows without others' masks."""
    hidden = HiddenSum(4, STILL)
    first, second = waiting(hidden), waiting(hidden, client=1, **changed)
    others = [new_key() for _ in range(2)]
    roster = [first[1].public, second[1].public, *(public for _, public in others)]
    # Those who help the server know their masks with both, as their terms want them.
    total = np.zeros(21, dtype=np.uint64)
    for client, (context, key) in enumerate((first, second)):
        about = purpose(key.about, terms_of(context))
        asked = messages.pack_roster(messages.Roster(key.about, roster))
        total += messages.unpack_masked(hidden.mask(asked, client, context)).row.numpy().view("u8")
        for secret, _ in others:
            total += pair_mask(secret, roster, key.public, about)
    return float(np.abs(total.view(np.int64)).max())


def pair_mask(secret, roster, public, about):
    """What one member adds against one other: of all others but one it is told no stream."""
    whole = mask(secret, roster, about, 21)
    own = X25519PrivateKey.from_private_bytes(secret)
    mine = own.public_key().public_bytes_raw()
    for other in set(roster) - {mine, public}:
        whole -= stream(own, mine, other, roster, about)
    return whole


def stream(own, mine, other, roster, about):
    """The masks' words, from the library alone."""
    everybody = sha256(
        b"".join([b"dpacct masked sum 2", sha256(about).digest(), *sorted(roster)])
    ).digest()
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    pair = everybody + min(mine, other) + max(mine, other)
    key = HKDF(SHA256(), length=32, salt=None, info=pair).derive(shared)
    drawn = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * 21))
    words = np.frombuffer(drawn, dtype="<u8")
    return words if mine < other else np.zeros(21, dtype=np.uint64) - words


def test_who_was_told_other_terms_shares_no_masks():
    """A larger bound for one client alone would give it too little noise from the others."""
    # Shares of 0.2 in units of 2^-20 or so: below 2^32 but for a probability of e^-10^6.
    assert unmasked({}) < 2**32
    for changed in ({"shares": (4, 0.5)}, {"bound": fl.Clip(0.25)}, {"contributions": 7}):
        # The masks of the two do not cancel: 21 uniform numbers, which are all below 2^40 with a
        # probability of 2^-483.
        assert unmasked(changed) > 2**40


def test_a_client_asks_for_more_members_than_shares():
    hidden = HiddenSum(4, STILL, roster=5, membership=membership)
    context, key = waiting(hidden)
    with pytest.raises(InvalidParameter, match="no fewer than 5"):
        ask(hidden, honest(key), context)
    assert len(ask(hidden, honest(key, (1, 2, 3, 4)), context).row) == 21


@pytest.mark.parametrize(("away", "released"), [(1, True), (2, False)])
def test_a_round_with_fewer_than_its_clients_ask_for_is_no_sum(away, released, tmp_path):
    def fault(client, message, replies):
        return [] if client < away and "arrays" in message.content else replies

    path = tmp_path / "run.ledger"
    # One of them asks for more than the others.
    apps = [app(roster=5 if client == 2 else 4) for client in range(6)]
    with server(rounds=1, ledger=path) as run:
        assert play(run, FakeGrid(apps, fault)).last.released is released
    # No roster left, so nothing could be read.
    assert rounds_of(path) == (1, int(released))


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        ({"member": None}, "signed"),
        ({"roster": 7}, "at most 6 clients"),
        ({"member": lambda _: Membership(IDENTITIES[3][0], MEMBERS)}, "is that of client 5"),
    ],
    ids=["unsigned", "large", "identity"],
)
def test_a_client_that_does_not_fit_is_refused_at_the_start(strange, said, tmp_path):
    path = tmp_path / "run.ledger"
    network = FakeGrid([*(app() for _ in range(5)), app(**strange)])
    with server(ledger=path) as run, pytest.raises(InvalidParameter, match=said):
        play(run, network)
    assert not path.exists()


def test_a_key_without_its_signature_counts_as_none(tmp_path):
    def fault(client, message, replies):
        if client == 0 and message.content["dpacct"]["ask"] == "round":
            key = messages.unpack_key(replies[0].content)
            replies[0].content = messages.pack_key(dataclasses.replace(key, signature=b""))
        return replies

    network = FakeGrid([app() for _ in CLIENTS], fault)
    with server(rounds=1) as run:
        assert play(run, network).last.released
    asked = [c for c, m in network.sent if m.content["dpacct"]["ask"] == "roster"]
    assert asked == [1, 2, 3, 4, 5]


def test_identities_that_are_none_are_refused():
    secret, public = IDENTITIES[0]
    for arguments, said in [
        ((secret[:31], MEMBERS), "keys are 32 bytes"),
        ((secret, MEMBERS | {4: "a" * 32}), r"members\[4\]"),
        ((secret, {0: public, 1: public}), "one key twice"),
        ((new_identity()[0], MEMBERS), "other keys"),
    ]:
        with pytest.raises(InvalidParameter, match=said):
            Membership(*arguments)
    with pytest.raises(InvalidParameter, match="at least 4 shares"):
        HiddenSum(4, STILL, roster=3)
    assert secret.hex() not in repr(Membership(secret, MEMBERS))
    assert repr(secret) not in repr(Membership(secret, MEMBERS))


def test_a_signature_is_one_of_ed25519_over_the_words_that_are_documented():
    """By the library alone, so that another program can sign and check."""
    about, public = messages.About("tag", 3, 1), new_key()[1]
    _, signature = signed_by(1, about, public)
    said = b"dpacct key of a hidden sum 1" + sha256(b"tag").digest()
    said += (3).to_bytes(16) + (1).to_bytes(16) + public
    assert Ed25519PrivateKey.from_private_bytes(IDENTITIES[1][0]).sign(said) == signature


def test_a_client_is_in_a_sum_once_however_many_states_it_has():
    """Each of Flower's runs has a state of its own; a helper's name would bring in its second key.

    Both rows were in one sum, whose noise is made for one.
    """
    hidden = HiddenSum(4, STILL, roster=5, membership=membership)
    (first, key), (second, again) = waiting(hidden), waiting(hidden)
    roster = honest(key)
    names = [*roster.signed, signed_by(4, key.about, again.public)]
    roster = messages.Roster(key.about, [*roster.keys, again.public], names)
    assert len(ask(hidden, roster, first).row) == 21
    with pytest.raises(InvalidParameter, match="under its own number"):
        ask(hidden, roster, second)


@pytest.mark.parametrize("client", [-1, True, 1.0, "1", 2**63], ids=str)
def test_members_are_numbered_as_clients_are(client):
    secret, public = IDENTITIES[0]
    with pytest.raises(InvalidParameter, match="numbered from 0"):
        Membership(secret, {0: public, client: IDENTITIES[1][1]})


@pytest.mark.parametrize("number", [-1, 0, 2**62])
def test_a_round_that_is_none_is_not_signed(number):
    context = context_of(0)
    given, row = assignment(number=number), torch.zeros(21)
    with pytest.raises(InvalidParameter, match="round is"):
        HiddenSum(4, STILL, membership=membership).hide(given, row, LAYOUT, context)
    assert not context.state


def test_a_client_that_asks_for_more_than_there_are_is_left_out_of_the_sum():
    """Alone it would have each round charged, with nothing released."""
    apps = [app(roster=6 if client == 2 else 4) for client in range(6)]

    def fault(client, message, replies):
        return [] if client == 0 and "arrays" in message.content else replies

    network = FakeGrid(apps, fault)
    with server(rounds=1) as run:
        assert play(run, network).last.released
    asked = [c for c, m in network.sent if m.content["dpacct"]["ask"] == "roster"]
    assert asked == [1, 3, 4, 5]


# Points of order 1, 2, 4 and 8, and the other ways in which some of them can be written.
NOBODYS = [f"{first}{'00' * 30}{last}" for first in ("00", "01") for last in ("00", "80")] + [
    f"{first}{'ff' * 30}{last}" for first in ("ec", "ed", "ee") for last in ("7f", "ff")
]
NOBODYS += [
    f"{point[:-2]}{last}"
    for point, ends in (
        ("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05", ("05", "85")),
        ("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a", ("7a", "fa")),
    )
    for last in ends
]


@pytest.mark.parametrize("key", NOBODYS)
def test_a_key_for_which_anybody_can_sign_is_no_members(key):
    secret, public = IDENTITIES[0]
    with pytest.raises(InvalidParameter, match=r"members\[1\].*nobody else can sign"):
        Membership(secret, {0: public, 1: bytes.fromhex(key)})
    # Of statements every eighth, or more, has a signature that needs no secret.
    assert any(signed_by_nobody(bytes.fromhex(key), bytes([number])) for number in range(64))


def signed_by_nobody(key, statement) -> bool:
    """Whether a signature with nothing secret in it passes."""
    for point in NOBODYS:
        with contextlib.suppress(InvalidSignature):
            forged = bytes.fromhex(point) + bytes(32)
            Ed25519PublicKey.from_public_bytes(key).verify(forged, statement)
            return True
    return False
