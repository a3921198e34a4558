"""Gated delta nets in NumPy: the layers of a Qwen3.5 that have a state instead of keys and values.

Yang et al. 2024 (arXiv:2412.06464), eq. 10, token by token; transformers 5.24, Qwen3_5GatedDeltaNet. The inputs of the
convolution are not rounded, as the engine does not round them either.
"""

import dataclasses

import numpy

NORM_EPS = 1e-6  # for the norms of queries and keys


class Weights:
    def __init__(self, at, values, matrix):
        self.into = matrix(*(f"{at}in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")))
        self.out = matrix(at + "out_proj.weight")
        self.conv = values[at + "conv1d.weight"][:, 0].T  # [kernel, channels]
        self.rates = numpy.exp(values[at + "A_log"])
        self.dt_bias = values[at + "dt_bias"]
        self.norm = values[at + "norm.weight"]


@dataclasses.dataclass
class State:
    """The state after a request's tokens so far. Its arrays are replaced, not changed."""

    recurrent: object = None  # [value heads, dk, dv]
    inputs: object = None  # the convolution's last inputs, [kernel - 1, channels]


def _silu(x):
    return x / (1 + numpy.exp(-x))


def _unit(x):
    return x / numpy.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(NORM_EPS))


def forward(oracle, state, weights, x):
    """x: [T, hidden], normed. Returns the addition to the residual stream, and advances the state by these tokens."""
    config, T = oracle.config, len(x)
    nk, nv = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    channels = weights.conv.shape[1]
    mixed, z, b, a = numpy.split(x @ weights.into, numpy.cumsum([channels, nv * dv, nv]), axis=1)
    if state.inputs is None:
        state.inputs = numpy.zeros((len(weights.conv) - 1, channels), x.dtype)
        state.recurrent = numpy.zeros((nv, dk, dv), x.dtype)
    inputs = numpy.concatenate([state.inputs, mixed])
    state.inputs = inputs[T:]
    mixed = _silu(sum(weight * inputs[j : j + T] for j, weight in enumerate(weights.conv)))
    q, k, v = numpy.split(mixed, [nk * dk, 2 * nk * dk], axis=1)
    q, k = (numpy.repeat(_unit(each.reshape(T, nk, dk)), nv // nk, axis=1) for each in (q, k))
    q, v = q * x.dtype.type(dk**-0.5), v.reshape(T, nv, dv)
    beta = 1 / (1 + numpy.exp(-b))
    decay = numpy.exp(-weights.rates * numpy.logaddexp(a + weights.dt_bias, x.dtype.type(0)))
    S, out = state.recurrent, numpy.empty((T, nv, dv), x.dtype)
    for t in range(T):
        S = S * decay[t, :, None, None]
        change = beta[t, :, None] * (v[t] - (k[t, :, None] @ S)[:, 0])
        S = S + k[t, :, :, None] * change[:, None]
        out[t] = (q[t, :, None] @ S)[:, 0]
    state.recurrent = S
    out = oracle.normed(out, weights.norm) * _silu(z.reshape(T, nv, dv))
    return oracle.stored(out.reshape(T, nv * dv)) @ weights.out
