"""Where clients side by side go in a step: tensors that nothing else is written through.

Rule: parameters and momenta are changed in place, directions never. Autograd may give one tensor
for two parameters, and a method may give back the parameters themselves.
"""

from __future__ import annotations

from dpacct.fl.layout import Params
from dpacct.fl.local.sgd import SGD


def apart(directions: Params, params: Params) -> Params:
    """The directions, in storage of their own where it was that of a parameter."""
    held = {value.untyped_storage().data_ptr() for value in params.values()}
    return {
        name: value.clone() if value.untyped_storage().data_ptr() in held else value
        for name, value in directions.items()
    }


def accumulated(momenta: Params, directions: Params, params: Params, local: SGD) -> Params:
    """The momentum buffers with the weight decay in them, updated in place.

    Args:
        momenta: empty before the first step, which fills them.
        directions: of this step. params: before it. local: its momentum is above 0.
    """
    decay = local.weight_decay
    for name, value in directions.items():
        # Filled, they are tensors of our own.
        whole = value.add(params[name], alpha=decay) if decay else value
        if name in momenta:
            momenta[name].mul_(local.momentum).add_(whole)
        else:
            momenta[name] = whole if decay else whole.clone()
    return momenta
