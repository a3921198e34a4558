"""Routes of requests: how clients ask for and read them, and what must hold for a record that has
them.

A prompt token's row is of the pass that first computed it, in the last prefill before the first
output. An output token's row is of the pass that sampled it. Tokens that are computed again after a
retraction get no row.
"""

import base64
import io

import numpy

from .weights import layers_with_experts, num_experts


def of_bus(record, chunk):
    """Appends a chunk's rows to the record."""
    routes = chunk.routes
    if routes is None or record.routes is None:
        return
    rows = routes.array().astype(numpy.int64)
    record.routes = numpy.concatenate([record.routes, rows]) if len(record.routes) else rows
    record.route_epochs += [span.epoch for span in routes.spans for _ in range(span.rows)]


def of_sglang(record, meta, config):
    """Reads the rows of a /generate answer into the record; null: the request ended before it had any."""
    if meta.get("routed_experts") is None:
        return
    ids = numpy.frombuffer(base64.b64decode(meta["routed_experts"]), "<i4")
    shape = config["num_hidden_layers"], config["num_experts_per_tok"]
    record.routes = ids.reshape(-1, *shape).astype(numpy.int64)
    record.route_epochs = _epochs(meta["routed_experts_spans"])


def of_choice(record, choice):
    """Reads the rows of a choice, in vLLM's .npy form, into the record."""
    if choice.get("routed_experts") is None:
        return
    rows = numpy.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
    record.routes = rows.astype(numpy.int64)
    record.route_epochs = _epochs(choice["routed_experts_spans"])


def _epochs(spans):
    return [span["epoch"] for span in spans for _ in range(span["end"] - span["start"])]


def shape_problem(record, config):
    """The error in a record's rows that holds for any weights, or None."""
    rows, num = record.routes, len(record.prompt) - 1 + len(record.tokens)
    if rows is None:
        return None
    if len(rows) != num or len(record.route_epochs) != num:
        return f"{len(rows)} rows of routes, of {len(record.route_epochs)} epochs, for {num} passes"
    if not num:
        return None
    sparse, layers, k = layers_with_experts(config), config["num_hidden_layers"], config["num_experts_per_tok"]
    if rows.shape[1:] != (layers, k):
        return f"rows of routes of shape {rows.shape[1:]}"
    if rows.min() < 0 or rows.max() >= num_experts(config):
        return f"routes with experts {rows.min()} to {rows.max()}"
    if rows[:, [layer for layer in range(layers) if layer not in sparse]].any():
        return "routes in a layer without experts"
    ordered = numpy.sort(rows[:, sparse], axis=2)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        return "an expert twice in a row of routes"
    if record.brought is not None:
        both = min(num, len(record.brought))
        if (rows[:both] != record.brought[:both]).any():
            return "the rows of routes are not those that were brought"
    of_tokens = [span[0] for span in record.spans for _ in range(span[2])]
    if of_tokens and record.route_epochs[len(record.prompt) - 1 :] != of_tokens:
        return f"rows of epochs {record.route_epochs[len(record.prompt) - 1 :]} for tokens of epochs {of_tokens}"
    of_prompt = record.route_epochs[: len(record.prompt) - 1] or [0]
    if record.spans and any(a > b for a, b in zip(of_prompt, of_prompt[1:])):
        return "a prompt's rows go back to an older epoch"
    return None


class Known:
    """The rows of routes that the passes over a record's positions must have followed."""

    def __init__(self, record, config):
        self._has_experts = bool(num_experts(config))
        self._record, self._num = record, len(record.prompt) + len(record.tokens)
        if self._has_experts:
            self._none = numpy.full((self._num, config["num_hidden_layers"], config["num_experts_per_tok"]), -1)
        self.num_brought = 0 if record.brought is None else len(record.brought)

    def rows(self, first, last, num_told):
        """Rows of positions [first, last): the request's own brought rows, or else the rows reported for positions
        before `num_told`."""
        if not self._has_experts:
            return None
        rows = self._none[first:last].copy()
        if self._record.routes is not None:
            told = self._record.routes[first : min(last, num_told)]
            rows[: len(told)] = told
        if self.num_brought > first:
            brought = self._record.brought[first : min(last, self.num_brought)]
            rows[: len(brought)] = brought
        return rows

    def num_same(self, versions):
        """The number of leading positions whose version is the epoch of their reported row. The same version computes
        the same routes again (P6)."""
        if self._record.routes is None:
            return 0
        for at, (version, epoch) in enumerate(zip(versions, self._record.route_epochs)):
            if version != epoch:
                return at
        return min(len(versions), len(self._record.route_epochs))
