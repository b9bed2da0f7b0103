"""The methods without noise, from their papers' equations, in numpy: oracles for the engine.

Clients have losses 0.5 (w - c_i)' H (w - c_i) and take full-batch steps; every client takes part.
Nothing is shared with src. Segments are those of the model's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Setting:
    start: np.ndarray
    centers: np.ndarray
    hessian: np.ndarray
    segments: list[tuple[int, int]]
    lr: float
    steps: int
    clip: float
    rounds: int
    shrink: float  # share of a bound that the engine leaves to rounding

    def gradient(self, client: int, w: np.ndarray) -> np.ndarray:
        return self.hessian @ (w - self.centers[client])

    def clipped(self, update: np.ndarray) -> np.ndarray:
        limit = self.clip * (1 - self.shrink)
        return update * min(1.0, limit / max(float(np.linalg.norm(update)), 1e-300))


def descend(s: Setting, client: int, x: np.ndarray, direction, project=None) -> np.ndarray:
    w = x.copy()
    for _ in range(s.steps):
        w = w - s.lr * direction(client, w)
        if project is not None:
            w = project(w)
    return w - x


def averaging(s: Setting, direction=None, project=None, sparsify=None, after=None) -> np.ndarray:
    """x + mean of clipped updates."""
    x = s.start.copy()
    for _ in range(s.rounds):
        anchor = x.copy()

        def own(client, w, anchor=anchor):
            if direction is None:
                return s.gradient(client, w)
            return direction(client, w, anchor)

        inside = None if project is None else (lambda w, anchor=anchor: project(w, anchor))
        updates = [descend(s, i, x, own, inside) for i in range(len(s.centers))]
        if sparsify is not None:
            updates = [sparsify(update) for update in updates]
        mean = sum(s.clipped(update) for update in updates) / len(updates)
        x = x + (mean if after is None else after(mean))
    return x


def top(s: Setting, fraction: float):
    def keep(update: np.ndarray) -> np.ndarray:
        result = np.zeros_like(update)
        for start, stop in s.segments:
            count = int(np.ceil(fraction * (stop - start) - 1e-9))
            chosen = start + np.argsort(-np.abs(update[start:stop]), kind="stable")[:count]
            result[chosen] = update[chosen]
        return result

    return keep


def circulant(size: int, strength: float) -> np.ndarray:
    """I + s L for the cycle graph; with one or two nodes, edges that coincide count twice."""
    matrix = np.eye(size)
    for node in range(size):
        for other in ((node + 1) % size, (node - 1) % size):
            matrix[node, node] += strength
            matrix[node, other] -= strength
    return matrix


def smoothed(s: Setting, strength: float):
    def apply(update: np.ndarray) -> np.ndarray:
        result = update.copy()
        for start, stop in s.segments:
            matrix = circulant(stop - start, strength)
            result[start:stop] = np.linalg.solve(matrix, update[start:stop])
        return result

    return apply


def sam(s: Setting, rho: float):
    def direction(client, w, _anchor):
        g = s.gradient(client, w)
        return s.gradient(client, w + rho * g / np.linalg.norm(g))

    return direction


def adaptive_sam(s: Setting, rho: float):
    def direction(client, w, _anchor):
        g = s.gradient(client, w)
        return s.gradient(client, w + rho * w**2 * g / np.linalg.norm(w * g))

    return direction


def blur(s: Setting, penalty: float, radius: float):
    def direction(client, w, anchor):
        gap = w - anchor
        outside = np.linalg.norm(gap) > radius
        return s.gradient(client, w) + (penalty * gap if outside else 0)

    return direction


def pgn(
    s: Setting, rho: float, beta: float, smoothing: float = 0.0, momentum: float = 0.0
) -> np.ndarray:
    """Algorithm 1 line by line: the public part is re-added by each client.

    With momentum a client walks the public direction alone to learn how far it goes.
    """
    velocity, far = 0.0, 0.0
    for _ in range(s.steps):
        velocity = momentum * velocity + 1
        far += velocity
    x, g = s.start.copy(), np.zeros_like(s.start)
    count = len(s.centers)
    smooth = smoothed(s, smoothing)
    for _ in range(s.rounds):
        u = rho * g / np.linalg.norm(g) if np.any(g) else np.zeros_like(g)
        total = np.zeros_like(x)
        for i in range(count):
            y, moving = x.copy(), np.zeros_like(x)
            for _ in range(s.steps):
                moving = momentum * moving + beta * s.gradient(i, y + u) + (1 - beta) * g
                y = y - s.lr * moving
            bar = y - x + (1 - beta) * far * s.lr * g
            total += s.clipped(bar) - (1 - beta) * far * s.lr * g
        g = smooth(-total / (s.lr * count * far))
        x = x - s.lr * far * g
    return x


def normec(s: Setting, alpha: float, beta: float, eta: float, *, normalize: bool, steps=None):
    x, vhat = s.start.copy(), np.zeros_like(s.start)
    count = len(s.centers)
    memories = [np.zeros_like(x) for _ in range(count)]
    steps = s.steps if steps is None else steps
    for _ in range(s.rounds):
        sent = []
        for i in range(count):
            y = x.copy()
            for _ in range(steps):
                y = y - s.lr * s.gradient(i, y)
            gap = (x - y) / (s.lr * steps) - memories[i]
            sent.append((1 - s.shrink) * gap / (alpha + np.linalg.norm(gap)))
            memories[i] = memories[i] + beta * sent[i]
        vhat = vhat + beta / count * sum(sent)
        length = np.linalg.norm(vhat)
        x = x - (eta * vhat / length if normalize else eta * vhat)
    return x


def smoothed_fedavg(s: Setting, alpha: float, factor: float) -> np.ndarray:
    x = s.start.copy()
    for _ in range(s.rounds):
        updates = [descend(s, i, x, s.gradient) for i in range(len(s.centers))]
        scaled = [(1 - s.shrink) * u / (alpha + np.linalg.norm(u)) for u in updates]
        x = x + factor * sum(scaled) / len(scaled)
    return x


def scaffold(s: Setting) -> np.ndarray:
    """SCAFFOLD as printed, option II, with control variates that are means of gradients."""
    x, c = s.start.copy(), np.zeros_like(s.start)
    own = [np.zeros_like(s.start) for _ in s.centers]
    for _ in range(s.rounds):
        moved, changed = [], []

        def direction(k, w, c=c):
            return s.gradient(k, w) - own[k] + c

        for i in range(len(s.centers)):
            moved.append(s.clipped(descend(s, i, x, direction)))
            after = own[i] - c - moved[-1] / (s.steps * s.lr)
            changed.append(after - own[i])
            own[i] = after
        x = x + sum(moved) / len(moved)
        c = c + sum(changed) / len(changed)
    return x


def feddyn(s: Setting, strength: float) -> np.ndarray:
    """FedDyn as printed: the mean of the clients' models, minus h over the strength."""
    x, h = s.start.copy(), np.zeros_like(s.start)
    own = [np.zeros_like(s.start) for _ in s.centers]
    for _ in range(s.rounds):
        ends = []
        for i in range(len(s.centers)):

            def direction(k, w, x=x):
                return s.gradient(k, w) - own[k] + strength * (w - x)

            ends.append(x + s.clipped(descend(s, i, x, direction)))
            own[i] = own[i] - strength * (ends[-1] - x)
        h = h - strength * sum(end - x for end in ends) / len(ends)
        x = sum(ends) / len(ends) - h / strength
    return x


def cm(s: Setting, alpha: float) -> np.ndarray:
    """FedCM as printed, with a server rate that makes its step the mean of the updates."""
    x, delta = s.start.copy(), np.zeros_like(s.start)
    for _ in range(s.rounds):

        def direction(k, w, delta=delta):
            return alpha * s.gradient(k, w) + (1 - alpha) * delta

        moved = [s.clipped(descend(s, i, x, direction)) for i in range(len(s.centers))]
        mean = sum(moved) / len(moved)
        delta = -mean / (s.lr * s.steps)
        x = x + mean
    return x
