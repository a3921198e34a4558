"""What a Qwen3 computes, in NumPy, with a version of the weights per position.

A pass over some positions computes their keys and values under the version that it is given, and
attends to whatever versions computed those before: as the promise says that a request goes on when
weights change under it.

Arithmetic is float32 on the checkpoint's bf16. With Rounding.BF16 what the engine stores as bf16 is
rounded where it stores it (docs/design.md, section 7: weights, activations and KV are bf16, sums and
the residual stream fp32). With Rounding.EXACT everything is float64, which gives the tolerance.
"""

import enum
import math

import numpy

from .weights import from_bf16, to_bf16


class Rounding(enum.Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    EXACT = "exact"


class Weights:
    """One version, ready for products: matrices are transposed once."""

    def __init__(self, config, tensors, rounding):
        self.dtype = numpy.float64 if rounding is Rounding.EXACT else numpy.float32
        values = {name: from_bf16(bits).astype(self.dtype) for name, bits in tensors.items()}

        def matrix(*names):
            return numpy.ascontiguousarray(numpy.concatenate([values[name] for name in names]).T)

        self.embedding = values["model.embed_tokens.weight"]
        self.norm = values["model.norm.weight"]
        is_tied = config["tie_word_embeddings"]
        self.head = matrix("model.embed_tokens.weight" if is_tied else "lm_head.weight")
        self.layers = []
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            attention, mlp = at + "self_attn.", at + "mlp."
            self.layers.append(
                {
                    "input_norm": values[at + "input_layernorm.weight"],
                    "post_norm": values[at + "post_attention_layernorm.weight"],
                    "q_norm": values[attention + "q_norm.weight"],
                    "k_norm": values[attention + "k_norm.weight"],
                    "qkv": matrix(*(attention + f"{part}_proj.weight" for part in "qkv")),
                    "o": matrix(attention + "o_proj.weight"),
                    "gate_up": matrix(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
                    "down": matrix(mlp + "down_proj.weight"),
                }
            )


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
        # Angles are rounded to fp32 before their sine is taken, as transformers does.
        half = numpy.arange(0, self.head_dim, 2, dtype=numpy.float32) / numpy.float32(self.head_dim)
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self.frequencies = (1.0 / numpy.float32(theta) ** half).astype(numpy.float32)

    def weights(self, tensors):
        return Weights(self.config, tensors, self.rounding)

    def stored(self, values):
        """As the engine keeps activations and KV."""
        return from_bf16(to_bf16(values)) if self.rounding is Rounding.BF16 else values

    def _normed(self, x, weight):
        with numpy.errstate(over="ignore", invalid="ignore"):
            square = (x * x).mean(axis=-1, keepdims=True)
            # One over infinity would make a healthy zero of it.
            square = numpy.where(numpy.isfinite(square), square, numpy.nan)
            return x / numpy.sqrt(square + self.eps) * weight

    def _rotated(self, x, cos, sin):
        """x: [T, heads, D]; the first half of D is rotated with the second."""
        half = self.head_dim // 2
        first, second = x[..., :half], x[..., half:]
        return numpy.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def forward(self, sequence, weights, ids, logits_from):
        """One pass: `ids` follow what the sequence holds. Logits [n, V] of ids[logits_from:]."""
        begin, count = sequence.length, len(ids)
        end = begin + count
        sequence.reserve(end)
        angles = numpy.arange(begin, end, dtype=numpy.float32)[:, None] * self.frequencies[None, :]
        cos = numpy.cos(angles.astype(numpy.float64)).astype(self.dtype)[:, None, :]
        sin = numpy.sin(angles.astype(numpy.float64)).astype(self.dtype)[:, None, :]
        D, Q, K = self.head_dim, self.num_q, self.num_kv
        scale = self.dtype(1.0 / math.sqrt(D))
        hidden = numpy.arange(end)[None, :] > numpy.arange(begin, end)[:, None]  # [T, end]
        x = weights.embedding[numpy.asarray(ids)]
        for index, layer in enumerate(weights.layers):
            qkv = self.stored(self._normed(x, layer["input_norm"])) @ layer["qkv"]
            q = qkv[:, : Q * D].reshape(count, Q, D)
            k = qkv[:, Q * D : (Q + K) * D].reshape(count, K, D)
            v = qkv[:, (Q + K) * D :].reshape(count, K, D)
            q = self.stored(self._rotated(self._normed(q, layer["q_norm"]), cos, sin))
            keys, values = sequence.keys[index], sequence.values[index]  # [K, len, D]
            keys[:, begin:end] = self.stored(
                self._rotated(self._normed(k, layer["k_norm"]), cos, sin)
            ).transpose(1, 0, 2)
            values[:, begin:end] = self.stored(v).transpose(1, 0, 2)
            grouped = q.reshape(count, K, Q // K, D).transpose(1, 2, 0, 3).reshape(K, Q // K * count, D)
            scores = (grouped @ keys[:, :end].transpose(0, 2, 1)) * scale
            scores = scores.reshape(K, Q // K, count, end)
            scores[..., hidden] = -numpy.inf
            scores -= scores.max(axis=-1, keepdims=True)
            weight = numpy.exp(scores)
            weight /= weight.sum(axis=-1, keepdims=True)
            attended = weight.reshape(K, Q // K * count, end) @ values[:, :end]
            attended = attended.reshape(K, Q // K, count, D).transpose(2, 0, 1, 3).reshape(count, Q * D)
            x = x + self.stored(attended) @ layer["o"]
            gate, up = numpy.split(
                self.stored(self._normed(x, layer["post_norm"])) @ layer["gate_up"], 2, axis=1
            )
            x = x + self.stored(gate / (1 + numpy.exp(-gate)) * up) @ layer["down"]
        sequence.length = end
        return self.stored(self._normed(x[logits_from:], weights.norm)) @ weights.head


class Sequence:
    """The keys and values of a request, whoever computed them."""

    def __init__(self, oracle, capacity=64):
        self._oracle = oracle
        self.length = 0
        self.keys, self.values = [], []
        self._capacity = 0
        self.reserve(capacity)

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
    """How far a right engine's logprob may be from the oracle's.

    The oracle's own arithmetic is compared with float64 over the whole vocabulary after random tokens
    of each version, half a million logprobs and more: e, the error that rounding makes in a right program.
    The engine rounds in the same places and adds in another order, so it is off by as much and the two
    differ by twice that at most: twice the largest e, and, as the largest of ever more tokens grows, at
    least ten deviations of the difference. The engine's exp and log add 2^-18 (KERNELS.md)."""
    rng = numpy.random.default_rng(seed)
    errors = []
    for tensors in versions:
        ids = rng.integers(0, config["vocab_size"], num_tokens)
        logprobs = []
        for each in (rounding, Rounding.EXACT):
            oracle = Oracle(config, each)
            logits = oracle.forward(Sequence(oracle), oracle.weights(tensors), ids, 0)
            logprobs.append(log_softmax(logits))
        errors.append((logprobs[0] - logprobs[1]).ravel())
    errors = numpy.concatenate(errors)
    rms = math.sqrt(float((errors**2).mean()))
    return max(10 * math.sqrt(2) * rms, 2 * float(numpy.abs(errors).max())) + 2.0**-18
