"""A model whose greedy output a test chooses, token by token.

Its tokenizer has a token for each piece of each script. Its layers pass their input through. For each token, its head
points in the direction of the token before it, so each piece is followed by the next.
"""

import contextlib
import json

import numpy

from control_tree import STORIES
from places import short_directory
from process_tree import live_tree
from trainers import load, write_checkpoint

EOS = 2047
ONE, MINUS_ONE = 0x3F80, 0xBF80  # in bfloat16


def write_scripted_model(directory, scripts):
    """The model's directory, and each script's prompt: a token, given as input_ids. A script is a
    list of pieces, each of them once and not in the vocabulary yet; a piece given as a tuple,
    (piece,), is a special token.
    """
    contents, successors, prompts = [], {}, {}
    for name, pieces in scripts.items():
        first = EOS + 1 + len(contents)
        prompts[name] = [first]
        contents += [f"<script {name}>", *pieces]
        ids = list(range(first, first + len(pieces) + 1))
        successors.update(zip(ids, ids[1:] + [EOS]))
    vocab_size = EOS + 1 + len(contents)

    tensors = load(STORIES)
    hidden = tensors["model.norm.weight"].size
    directions = numpy.random.default_rng(1).choice([ONE, MINUS_ONE], (vocab_size, hidden))
    directions = directions.astype(numpy.uint16)
    for key, array in tensors.items():
        fill = ONE if key.endswith("norm.weight") else 0
        tensors[key] = numpy.full_like(array, fill)
    tensors["model.embed_tokens.weight"] = directions
    head = numpy.zeros((vocab_size, hidden), numpy.uint16)
    for token, following in successors.items():
        if following == EOS:
            continue  # several scripts may end with this token: see below
        head[following] = directions[token]
    last = [token for token, following in successors.items() if following == EOS]
    as_float = (directions[last].astype("<u4") << 16).view("<f4")
    head[EOS] = (as_float.sum(axis=0).astype("<f4").view("<u4") >> 16).astype(numpy.uint16)
    tensors["lm_head.weight"] = head
    model = write_checkpoint(directory, STORIES, tensors, tie_word_embeddings=False, vocab_size=vocab_size)

    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for i, piece in enumerate(contents):
        is_special = isinstance(piece, tuple)
        tokenizer["added_tokens"].append({
            "id": EOS + 1 + i, "content": piece[0] if is_special else piece, "special": is_special,
            "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        })  # fmt: skip
    path.write_text(json.dumps(tokenizer))
    return model, prompts


@contextlib.contextmanager
def serve_scripts(scripts, chat_template=None):
    """A tree that serves such a model and reads calls of tools in Hermes' format; `prompts` has each script's prompt.
    `chat_template`: the model's own, if it has one."""
    with short_directory() as path:
        model, prompts = write_scripted_model(path / "model", scripts)
        if chat_template is not None:
            (path / "model" / "chat_template.jinja").write_text(chat_template)
        flags = ("--port", 0, "--model", model, "--tool-call-parser", "hermes")
        with live_tree(path / "tree", *flags) as served:
            served.prompts = prompts
            yield served
