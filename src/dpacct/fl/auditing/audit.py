"""`audit`: does a method, with its bound and noise, do what it is charged for?

Runs rounds on neighboring sets of clients and checks what the engine cannot enforce. It finds
faults; passing it is evidence, not a proof. Write it into the tests of a method of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from dpacct.fl.auditing.bench import Bench
from dpacct.fl.auditing.indicator import check_indicator
from dpacct.fl.auditing.problem import default_problem
from dpacct.fl.clients import ClientData
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.findings import Audit, check_charge
from dpacct.fl.privacy.noise import GaussianNoise, Noise
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import choose_bound, choose_sampling
from dpacct.fl.surroundings import undisturbed
from dpacct.rounds import Adjacency, Full, Sampling, Uniform


# Where a caller has switched gradients off, no client would move a sum.
@undisturbed()
def audit(
    method: Method | None = None,
    *,
    clip_norm: float | None = None,
    bound: Bound | None = None,
    noise: Noise | None = None,
    noise_multiplier: float = 1.0,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
    local: SGD | None = None,
    model: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    clients: Sequence[ClientData] | None = None,
    draws: int = 16,
    vectorize: bool | Literal["auto"] = "auto",
) -> Audit:
    """Check a method, its bound and its noise against what a round of them is charged for.

    Args:
        method, clip_norm, bound, noise, noise_multiplier, sampling, adjacency, local: as for
            `Federation`; default DP-FedAvg, clip norm 0.5 where the method has no bound of its
            own, Gaussian noise, everybody.
        model, loss, clients: what to train; default a small classifier on made-up clients. Give
            all three or none; at least three clients.
        draws: rounds of noise that are looked at.
        vectorize: which trainers are looked at; "auto": both, where the method can be batched.
    Returns:
        The findings: ``bound``, ``alone``, ``sensitivity``, ``charge``, ``noise``, ``empty
        cohort``, ``fresh``, ``release`` and ``memory``; for an adaptive clip norm also
        ``indicator`` and ``joint charge``.
    Raises:
        InvalidParameter, Unsupported: as for `Federation`.
    """
    method = DPFedAvg() if method is None else method
    if clip_norm is None and bound is None and method.bound is None:
        clip_norm = 0.5
    scheme = choose_sampling(Full() if sampling is None else sampling)
    problem = default_problem(model, loss, clients)
    # The clients of an audit are no secret: their number may be declared.
    declares = adjacency == Adjacency.ADD_REMOVE and not isinstance(scheme, Uniform)
    declared = len(problem.clients) if declares else None
    public = PublicSize.choose(declared, scheme, len(problem.clients))
    bench = Bench(
        problem,
        method,
        choose_bound(bound, clip_norm, method),
        noise or GaussianNoise(),
        NoisePlan(scheme, public.adjacency(scheme, adjacency), noise_multiplier, public),
        method.prepare(SGD(lr=0.5, epochs=1, batch_size=4) if local is None else local),
        vectorize=vectorize,
    )
    return Audit(
        (
            bench.check_bound(),
            bench.check_alone(),
            bench.check_sensitivity(),
            check_charge(bench.plan, bench.bound, bench.noise),
            *bench.check_noise(draws),
            *check_indicator(bench),
            bench.check_release(),
            bench.check_memory(),
        )
    )
