"""Fed-alpha-NormEC: smoothed normalization with an error-feedback memory against its bias."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Noised, Params, State
from dpacct.fl.local.sgd import SGD, LocalAdam
from dpacct.fl.methods.protocol import MEMORY, Cohort, Context, ZeroMemory, step_along, steps_taken
from dpacct.fl.privacy.bounds import Bound, SmoothedNormalization
from dpacct.validate import above_zero, flag, one_of

OPERATORS = ("gradient", "incremental")


@dataclass(frozen=True)
class FedAlphaNormEC(ZeroMemory):
    """Clients send the normalized difference of their average gradient to a memory of it.

    Let P_i(x) = (x - T_i(x)) / gamma be the average gradient along the client's steps. gamma is
    their number times their size, and Norm(v) = v / (alpha + |v|)::

        D_i = Norm(P_i(x) - v_i),  v_i <- v_i + beta D_i            every client, in every round
        vhat <- vhat + beta (sum over the cohort of D_i + N(0, z^2)) / (p N)
        x <- x - server_lr vhat          or  x - server_lr vhat / |vhat|  (no move where vhat = 0)

    |D_i| < 1 bounds every contribution, so the run takes no clip norm, and epsilon depends neither
    on alpha nor on beta nor on rates. Partial participation is ``sampling=Poisson(p)``. All
    memories begin at zero: if they began at local gradients, vhat would release the exact mean.

    Memories follow from a client's data and the broadcasts alone, never from cohorts or noise.
    Amplification by sampling rests on it. So in a deployment every client must compute in every
    round, in the cohort or not, and keep a memory as large as the model.

    Args:
        alpha: of the normalization, in [1e-12, 1e12]. Published: 0.01.
        beta: of the memory, above 0. Published: 0.01 as the best of 0.001, 0.01, 0.1.
        server_normalization: divide the server's step by |vhat|. Off in the published runs.
        operator: ``"gradient"``: the run's own local steps. ``"incremental"``: one pass, example by
            example, in the order in which the client holds them.
        as_printed: each participant adds the noise of a whole sum, so its spread shows how many
            took part, and an empty cohort has none. Memories begin at zero all the same.
    Source: "Fed-alpha-NormEC", its algorithm (lines 4-8: all memories are updated).
    """

    alpha: float = 0.01
    beta: float = 0.01
    server_normalization: bool = False
    operator: str = "gradient"
    as_printed: bool = field(default=False, kw_only=True, repr=False)
    bound: Bound | None = field(init=False, repr=False, default=None)

    name = "fed-alpha-normec"
    printed = "participants alone add noise, which shows how many took part"
    everyone_computes = True

    def __post_init__(self) -> None:
        put = object.__setattr__
        bound = SmoothedNormalization(self.alpha)
        put(self, "bound", bound)
        put(self, "alpha", bound.alpha)
        put(self, "beta", above_zero("beta", self.beta, "the rate of the memories"))
        flag("server_normalization", self.server_normalization)
        one_of("operator", self.operator, "a local operator", OPERATORS)

    def prepare(self, local: SGD) -> SGD:
        """Return the local operator: for ``"incremental"`` one ordered pass over the examples."""
        if self.operator == "gradient":
            return local
        return replace(local, steps=None, epochs=1, batch_size=1, shuffle=False)

    def local_update(self, delta: Tensor, client_state: State | None, context: Context) -> Tensor:
        """Return P_i(x) - v_i, which the bound normalizes to D_i."""
        average = -delta / (context.lr * steps_taken(context.steps))
        return average if client_state is None else average - client_state[MEMORY]

    def client_state(self, client_state: State, bounded: Tensor, context: Context) -> State:
        """Return v_i + beta D_i."""
        del context
        return {MEMORY: client_state[MEMORY] + self.beta * bounded}

    def published(self, cohort: Cohort) -> tuple[Tensor, float]:
        """Return the sum, with the noise of each participant."""
        std, size = cohort.std * math.sqrt(len(cohort.rows)), cohort.rows.shape[1]
        return cohort.rows.sum(dim=0) + std * cohort.normals(size), std

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """Return vhat, and the step along it."""
        mean, rate = noised.tensors, noised.server_lr
        memory = {name: server_state[name] + self.beta * mean[name] for name in params}
        if self.server_normalization:
            step = step_along(memory, rate)
        else:
            step = {name: rate * value for name, value in memory.items()}
        return {name: value - step[name] for name, value in params.items()}, memory


@dataclass(frozen=True)
class AlphaNormEC(FedAlphaNormEC):
    """Fed-alpha-NormEC with one full gradient per round: P_i(x) = grad f_i(x), for any rate.

    Its arguments and errors are those of `FedAlphaNormEC`. One step on all examples replaces the
    run's local steps and batches.

    Source: "Smoothed normalization for efficient distributed private optimization"
        (arXiv:2502.13482), as a special case of `FedAlphaNormEC`.
    """

    name = "alpha-normec"

    def prepare(self, local: SGD) -> SGD:
        """Return settings of one step on all examples."""
        if isinstance(local, LocalAdam):
            rule = f"{self.name} reads the gradient off one step, which Adam rescales"
            raise InvalidParameter("local", "LocalAdam", rule, "Take fl.SGD.")
        return replace(local, steps=1, epochs=None, batch_size=None)
