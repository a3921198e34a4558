"""Computes a Qwen3, a Qwen3-MoE or a Qwen3.5 in NumPy, with a version of the weights for each position.

A pass over some positions computes their keys and values under the version that it is given. It
attends to earlier keys and values, whichever versions computed them, as a request continues when weights
change. The state of a layer without keys and values (delta.py) depends on all those versions, too.

Arithmetic is float32 on the checkpoint's bf16. Rounding.BF16 rounds whatever the engine stores as
bf16, at the same places (docs/design.md, section 7: weights, activations and KV are bf16, sums and
the residual stream fp32). With Rounding.EXACT everything is float64, from which the tolerance
follows.

A pass may follow the routes that the engine reports, as rounding decides between two experts with
nearly equal logits. After the pass, Sequence has the distance of those routes from this router's own
choice.
"""

import copy
import dataclasses
import enum
import math

import numpy

from . import adapters, delta
from .weights import from_bf16, is_hybrid, is_linear, layers_with_experts, num_experts, to_bf16


class Rounding(enum.Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    EXACT = "exact"


class Matrix:
    """The weights of several products of one input, transposed and side by side, for x @ matrix.
    `pairs`: an adapter's additions to some outputs.
    """

    __array_ufunc__ = None  # this class computes the product

    def __init__(self, names, tensors):
        self._places = {}  # name -> (first, end) of its outputs
        end = 0
        for name, tensor in zip(names, tensors):
            self._places[name] = end, end + len(tensor)
            end += len(tensor)
        self._array = numpy.ascontiguousarray(numpy.concatenate(tensors).T)
        self._pairs = []

    def adapted(self, pairs):
        """Returns a copy that adds an adapter's pairs to the product. `pairs`: {name: (A transposed, B
        transposed and scaled)}; names of other matrices are ignored.
        """
        other = copy.copy(self)
        other._pairs = [(*place, *pairs[name]) for name, place in self._places.items() if name in pairs]
        return other

    def __rmatmul__(self, x):
        y = x @ self._array
        for first, end, a, b in self._pairs:
            y[:, first:end] += (x @ a) @ b
        return y


def _adapted(part, pairs):
    """Returns a version's entry, with the adapter's pairs if it is a Matrix."""
    if isinstance(part, Matrix):
        return part.adapted(pairs)
    if isinstance(part, (list, tuple)):
        return type(part)(_adapted(each, pairs) for each in part)
    if isinstance(part, dict):
        return {name: _adapted(each, pairs) for name, each in part.items()}
    if isinstance(part, (Weights, delta.Weights)):
        other = copy.copy(part)
        vars(other).update(_adapted(vars(part), pairs))
        return other
    return part


class Weights:
    """One version, ready for products: matrices are transposed once."""

    def __init__(self, config, tensors, rounding):
        self.dtype = numpy.float64 if rounding is Rounding.EXACT else numpy.float32
        values = {name: from_bf16(bits).astype(self.dtype) for name, bits in tensors.items()}

        def matrix(*names):
            return Matrix(names, [values[name] for name in names])

        # A hybrid's norms are stored less 1, except those of its delta nets.
        offset = self.dtype(1 if is_hybrid(config) else 0)

        def norm(name):
            return values[name] + offset

        self.embedding = values["model.embed_tokens.weight"]
        self.norm = norm("model.norm.weight")
        is_tied = config["tie_word_embeddings"]
        self.head = matrix("model.embed_tokens.weight" if is_tied else "lm_head.weight")
        self.layers = []
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            mlps = [at + "mlp."]
            if layer in layers_with_experts(config):
                mlps = [f"{at}mlp.experts.{expert}." for expert in range(num_experts(config))]
            parts = {
                "input_norm": norm(at + "input_layernorm.weight"),
                "post_norm": norm(at + "post_attention_layernorm.weight"),
                "router": matrix(at + "mlp.gate.weight") if len(mlps) > 1 else None,
                "mlps": [
                    (matrix(mlp + "gate_proj.weight", mlp + "up_proj.weight"), matrix(mlp + "down_proj.weight"))
                    for mlp in mlps
                ],
            }
            if is_linear(config, layer):
                parts["delta"] = delta.Weights(at + "linear_attn.", values, matrix)
            else:
                attention = at + "self_attn."
                parts |= {
                    "q_norm": norm(attention + "q_norm.weight"),
                    "k_norm": norm(attention + "k_norm.weight"),
                    "qkv": matrix(*(attention + f"{part}_proj.weight" for part in "qkv")),
                    "o": matrix(attention + "o_proj.weight"),
                }
            self.layers.append(parts)


class Oracle:
    """The shape of a model. The state of a request is a Sequence."""

    def __init__(self, config, rounding=Rounding.FP32):
        self.config = config
        self.rounding = rounding
        self.dtype = numpy.float64 if rounding is Rounding.EXACT else numpy.float32
        self.eps = self.dtype(config["rms_norm_eps"])
        self.head_dim = config["head_dim"]
        self.num_q = config["num_attention_heads"]
        self.num_kv = config["num_key_value_heads"]
        self.is_gated = is_hybrid(config)
        # Angles are rounded to fp32 before their sine is taken, as transformers does.
        rope = config.get("rope_parameters") or {}
        self.rotary = int(self.head_dim * rope.get("partial_rotary_factor", 0.25 if self.is_gated else 1.0))
        half = numpy.arange(0, self.rotary, 2, dtype=numpy.float32) / numpy.float32(self.rotary)
        theta = config.get("rope_theta") or rope["rope_theta"]
        self.frequencies = (1.0 / numpy.float32(theta) ** half).astype(numpy.float32)

    def weights(self, tensors):
        return Weights(self.config, tensors, self.rounding)

    def adapted(self, weights, described, adapter):
        """The version with an adapter, which shares its matrices."""
        return _adapted(weights, adapters.pairs_of(described, adapter, weights.dtype))

    def stored(self, values):
        """Rounds as the engine stores activations and KV."""
        return from_bf16(to_bf16(values)) if self.rounding is Rounding.BF16 else values

    def normed(self, x, weight):
        with numpy.errstate(over="ignore", invalid="ignore"):
            square = (x * x).mean(axis=-1, keepdims=True)
            # NaN instead of an infinity, whose inverse root would be 0: a healthy number.
            square = numpy.where(numpy.isfinite(square), square, numpy.nan)
            return x / numpy.sqrt(square + self.eps) * weight

    def _rotated(self, x, cos, sin):
        """x: [T, heads, D]; of the rotated dimensions, the first half is paired with the second."""
        first, second, rest = numpy.split(x, [self.rotary // 2, self.rotary], axis=-1)
        return numpy.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def _mlp(self, x, gate_up, down):
        gate, up = numpy.split(x @ gate_up, 2, axis=1)
        return self.stored(gate / (1 + numpy.exp(-gate)) * up) @ down

    def _experts(self, sequence, x, layer, given):
        """`given`: [T, k] of the routes, -1: the router's own choice."""
        logits = x @ layer["router"]
        order = numpy.argsort(-logits, axis=1, kind="stable")
        k = self.config["num_experts_per_tok"]
        chosen = numpy.where(given < 0, order[:, :k], given)
        sequence.note_choice(logits, chosen, is_given=given[:, 0] >= 0)
        shifted = numpy.exp(logits - logits.max(axis=1, keepdims=True))
        of_chosen = numpy.take_along_axis(shifted, chosen, axis=1)
        total = of_chosen if self.config["norm_topk_prob"] else shifted
        of_chosen = of_chosen / total.sum(axis=1, keepdims=True)
        result = numpy.zeros_like(x)
        for expert, (gate_up, down) in enumerate(layer["mlps"]):
            rows, places = numpy.nonzero(chosen == expert)
            if len(rows):
                result[rows] += of_chosen[rows, places, None] * self._mlp(x[rows], gate_up, down)
        return result

    def _attended(self, sequence, index, layer, x, begin, end, cos, sin):
        count, D, Q, K = end - begin, self.head_dim, self.num_q, self.num_kv
        width = 2 * D if self.is_gated else D  # a head's queries, then its gate
        qkv = x @ layer["qkv"]
        q = qkv[:, : Q * width].reshape(count, Q, width)
        gate, q = q[..., D:], q[..., :D]
        k = qkv[:, Q * width : Q * width + K * D].reshape(count, K, D)
        v = qkv[:, Q * width + K * D :].reshape(count, K, D)
        q = self.stored(self._rotated(self.normed(q, layer["q_norm"]), cos, sin))
        keys, values = sequence.keys[index], sequence.values[index]  # [K, len, D]
        keys[:, begin:end] = self.stored(self._rotated(self.normed(k, layer["k_norm"]), cos, sin)).transpose(1, 0, 2)
        values[:, begin:end] = self.stored(v).transpose(1, 0, 2)
        grouped = q.reshape(count, K, Q // K, D).transpose(1, 2, 0, 3).reshape(K, Q // K * count, D)
        scores = (grouped @ keys[:, :end].transpose(0, 2, 1)) * self.dtype(1.0 / math.sqrt(D))
        scores = scores.reshape(K, Q // K, count, end)
        scores[..., numpy.arange(end)[None, :] > numpy.arange(begin, end)[:, None]] = -numpy.inf
        scores -= scores.max(axis=-1, keepdims=True)
        weight = numpy.exp(scores)
        weight /= weight.sum(axis=-1, keepdims=True)
        attended = weight.reshape(K, Q // K * count, end) @ values[:, :end]
        attended = attended.reshape(K, Q // K, count, D).transpose(2, 0, 1, 3)
        attended = self.stored(attended.reshape(count, Q, D))
        if self.is_gated:
            attended = self.stored(attended / (1 + numpy.exp(-gate)))
        return attended.reshape(count, Q * D) @ layer["o"]

    def forward(self, sequence, weights, ids, logits_from, routes=None):
        """One pass over `ids`, which continue the sequence. Returns logits [n, V] of ids[logits_from:]. `routes`:
        the experts of these tokens, [n, layers, k]; -1: the oracle's router chooses."""
        begin, count = sequence.length, len(ids)
        sequence.begin_pass(count)
        end = begin + count
        sequence.reserve(end)
        angles = numpy.arange(begin, end, dtype=numpy.float32)[:, None] * self.frequencies[None, :]
        cos = numpy.cos(angles.astype(numpy.float64)).astype(self.dtype)[:, None, :]
        sin = numpy.sin(angles.astype(numpy.float64)).astype(self.dtype)[:, None, :]
        x = weights.embedding[numpy.asarray(ids)]
        for index, layer in enumerate(weights.layers):
            normed = self.stored(self.normed(x, layer["input_norm"]))
            if "delta" in layer:
                x = x + delta.forward(self, sequence.states[index], layer["delta"], normed)
            else:
                x = x + self._attended(sequence, index, layer, normed, begin, end, cos, sin)
            normed = self.stored(self.normed(x, layer["post_norm"]))
            if layer["router"] is None:
                x = x + self._mlp(normed, *layer["mlps"][0])
            else:
                given = (
                    numpy.full((count, self.config["num_experts_per_tok"]), -1) if routes is None else routes[:, index]
                )
                x = x + self._experts(sequence, normed, layer, given)
        sequence.length = end
        return self.stored(self.normed(x[logits_from:], weights.norm)) @ weights.head


class Sequence:
    """The keys, values and states of a request, whichever versions computed them. Also two differences of the router's
    logits per position of the last pass:

    excess    over the layers with given experts: the largest amount by which these deviate from the router's own choice
              or order; 0: no deviation
    margin    over the layers where the router chose: the smallest distance between the last chosen expert and the next
              one; inf: all layers had given experts
    """

    def __init__(self, oracle, capacity=64):
        self._oracle = oracle
        self.length = 0
        self.keys, self.values = [], []
        layers = range(oracle.config["num_hidden_layers"])
        self.states = [delta.State() if is_linear(oracle.config, layer) else None for layer in layers]
        self._capacity = 0
        self.reserve(capacity)

    def mark(self):
        """The state for return_to()."""
        return self.length, [dataclasses.replace(state) if state else None for state in self.states]

    def return_to(self, mark):
        """Forgets the passes since that mark."""
        self.length, states = mark
        self.states = [dataclasses.replace(state) if state else None for state in states]

    def begin_pass(self, count):
        self.excess, self.margin = numpy.zeros(count), numpy.full(count, numpy.inf)
        self.router_logits = []  # [count, E] per layer with experts

    def note_choice(self, logits, chosen, is_given):
        """Notes the choice of one layer: logits [T, E], and the experts that are used [T, k]."""
        self.router_logits.append(logits)
        used = numpy.take_along_axis(logits, chosen, axis=1)
        others = logits.copy()
        numpy.put_along_axis(others, chosen, -numpy.inf, axis=1)
        next_best = others.max(axis=1, initial=-numpy.inf)
        excess = numpy.maximum(next_best - used[:, -1], numpy.diff(used, axis=1).max(axis=1, initial=0.0))
        self.excess = numpy.maximum(self.excess, numpy.where(is_given, excess, 0.0))
        self.margin = numpy.minimum(self.margin, numpy.where(is_given, numpy.inf, used[:, -1] - next_best))

    def reserve(self, length):
        if length <= self._capacity:
            return
        self._capacity = max(length, 2 * self._capacity)
        oracle = self._oracle
        for name in ("keys", "values"):
            grown = [
                numpy.zeros((oracle.num_kv, self._capacity, oracle.head_dim), oracle.dtype)
                for _ in range(oracle.config["num_hidden_layers"])
            ]
            for old, new in zip(getattr(self, name), grown):
                new[:, : self.length] = old[:, : self.length]
            setattr(self, name, grown)


def log_softmax(logits):
    shifted = logits.astype(numpy.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def tolerance(config, versions, rounding, seed=0, num_tokens=192):
    """The largest difference between a correct engine's logprob and the oracle's: the first of tolerances()."""
    return tolerances(config, versions, rounding, seed, num_tokens)[0]


def tolerances(config, versions, rounding, seed=0, num_tokens=192, adapters=()):
    """The largest differences between a correct engine's logprobs, and its routers' logits, and the oracle's.

    The oracle's own arithmetic is compared with float64, over the whole vocabulary after random tokens of each version,
    and of the first version with each adapter: half a million logprobs and more. The differences are the errors that
    rounding makes in a correct program. The engine rounds in the same places but adds in another order, so its errors
    are as large, and the two may differ by twice the largest error. The largest error grows with the number of tokens,
    so the result is at least ten standard deviations of the difference. The engine's exp and log add 2^-18
    (KERNELS.md). Both sides follow the same routes.
    """
    rng = numpy.random.default_rng(seed)
    errors, router_errors = [], []
    versions = list(versions)
    pairs = [(tensors, None) for tensors in versions] + [(versions[0], each) for each in adapters]
    for tensors, adapter in pairs:
        ids = rng.integers(0, config["vocab_size"], num_tokens)
        logprobs, router_logits, routes = [], [], None
        for each in (rounding, Rounding.EXACT):
            oracle = Oracle(config, each)
            sequence = Sequence(oracle)
            ready = oracle.weights(tensors)
            ready = oracle.adapted(ready, *adapter) if adapter else ready
            logits = oracle.forward(sequence, ready, ids, 0, routes)
            logprobs.append(log_softmax(logits))
            router_logits.append(sequence.router_logits)
            routes = routes_of(config, sequence)
        errors.append((logprobs[0] - logprobs[1]).ravel())
        router_errors += [(mine - exact).ravel() for mine, exact in zip(*router_logits)]
    return _allowed(errors), _allowed(router_errors) if router_errors else 0.0


def routes_of(config, sequence):
    """[n, layers, k] that the routers chose in a sequence's last pass; None: there is no router."""
    layers, k = layers_with_experts(config), config.get("num_experts_per_tok")
    if not layers:
        return None
    routes = numpy.zeros((len(sequence.margin), config["num_hidden_layers"], k), int)
    for layer, logits in zip(layers, sequence.router_logits):
        routes[:, layer] = numpy.argsort(-logits, axis=1, kind="stable")[:, :k]
    return routes


def _allowed(errors):
    errors = numpy.concatenate(errors)
    rms = math.sqrt(float((errors**2).mean()))
    return max(10 * math.sqrt(2) * rms, 2 * float(numpy.abs(errors).max())) + 2.0**-18
