"""Converts the sampling parameters of SGLang's and vLLM's callers to the tree's."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

from .errors import PitstopError
from .messages import SAMPLING_FIELDS

MAX_NEW_TOKENS = 128  # SGLang's default
RENAMED = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "sampling_seed": "seed",
    "include_stop_str_in_output": "no_stop_trim",
}
# vLLM's SamplingParams that only format the answer, or have no effect here.
OF_ANSWERS = {"detokenize", "output_kind", "flat_logprobs", "skip_reading_prefix_cache", "skip_clone"}
LATER_FORM = "vLLM's structured_outputs has replaced it"
# Grammars: the name in vLLM's structured_outputs -> the name in the tree.
OF_STRUCTURED_OUTPUTS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf", "structural_tag": "structural_tag"}
# Parameters of other engines that change the output -> why they are refused.
REFUSED = {
    **dict.fromkeys(
        ("guided_decoding", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        LATER_FORM,
    ),
    "response_format": "json_schema takes the schema",
    "truncate_prompt_tokens": "prompts are taken whole or refused",
    "best_of": "there is no beam; n gives samples",
    "use_beam_search": "tokens are drawn or greedy",
    "logits_processors": "nothing that is received is run",
    "custom_params": "nothing that is received is run",
}
LOGPROBS = {"logprobs", "prompt_logprobs"}


@dataclass(frozen=True)
class Drawing:
    """The sampling of one prompt: `n` samples with these `fields` of docs/protocol.md's SamplingParams."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    logprobs: Optional[int] = None  # vLLM's: the number of most probable tokens per position, besides the sampled one
    prompt_logprobs: Optional[int] = None

    def of_sample(self, index: int) -> dict[str, Any]:
        """Sample i of a seeded prompt has seed + i."""
        fields = dict(self.fields)
        if fields.get("seed") is not None:
            fields["seed"] += index
        return fields


def _said(params: Any) -> dict[str, Any]:
    """The parameters that the caller has set, by name."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return dict(params)
    if dataclasses.is_dataclass(params):
        given = {each.name: getattr(params, each.name) for each in dataclasses.fields(params)}
    elif hasattr(params, "__struct_fields__"):  # a msgspec.Struct, such as vLLM's
        given = {name: getattr(params, name) for name in params.__struct_fields__}
    else:
        raise TypeError(f"sampling_params must be a dict, or an object with fields, not {type(params).__name__}")
    return {name: value for name, value in given.items() if not name.startswith("_")}


def _json_text(value: Any) -> str:
    """A schema or a structural tag as text: given as text, as a pydantic class, or as the object itself."""
    if isinstance(value, str):
        return value
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    return json.dumps(value)


def _structured(value: Any) -> dict[str, Any]:
    """vLLM's structured_outputs as one of GRAMMARS."""
    grammars: dict[str, Any] = {}
    for name, given in _said(value).items():
        if name in OF_STRUCTURED_OUTPUTS:
            if given is not None:
                grammars[OF_STRUCTURED_OUTPUTS[name]] = given
        elif name == "json_object" and given:
            grammars["json_schema"] = {"type": "object"}
        elif name == "choice" and given is not None:
            if not given:
                raise ValueError("sampling_params: structured_outputs: choice is empty; it must have at least one text")
            grammars["ebnf"] = "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in given)
        elif name != "disable_fallback" and given:
            raise PitstopError("unsupported", f"sampling_params: structured_outputs: {name} is not served")
    return grammars


def read_sampling(params: Union[Mapping[str, Any], Any, None]) -> Drawing:
    """Reads a caller's parameters. TypeError names an unknown parameter; ValueError: allowed_token_ids is empty. An unset
    value (None) means the default."""
    given = _said(params)
    structured = given.pop("structured_outputs", None)
    if structured is not None:
        for name, value in _structured(structured).items():
            if given.get(name):
                raise ValueError(f"sampling_params: structured_outputs and {name}: a request has at most one grammar")
            given[name] = value
    fields: dict[str, Any] = {}
    for name, value in given.items():
        ours = RENAMED.get(name, name)
        if ours in SAMPLING_FIELDS:
            if value is not None or ours == "max_new_tokens":
                fields[ours] = value
        elif name in REFUSED and value:
            raise PitstopError("unsupported", f"sampling_params: {name} is not served: {REFUSED[name]}")
        elif name not in LOGPROBS and name not in OF_ANSWERS and name != "n" and value:
            known = ", ".join(sorted(SAMPLING_FIELDS | set(RENAMED) | LOGPROBS | {"n"}))
            raise TypeError(f"sampling_params: unknown parameter {name}; accepted are {known}")
    fields.setdefault("max_new_tokens", MAX_NEW_TOKENS)
    if fields["max_new_tokens"] is None:  # as many as fit the context
        del fields["max_new_tokens"]
    if fields.get("top_k") in (-1, 0):  # the engines' values for "all"
        del fields["top_k"]
    for name in ("stop", "bad_words"):
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    for name in ("json_schema", "structural_tag"):
        if name in fields:
            fields[name] = _json_text(fields[name])
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(token): float(bias) for token, bias in fields["logit_bias"].items()}
    if "allowed_token_ids" in fields and not fields["allowed_token_ids"]:  # in a message, an empty list means all ids
        raise ValueError("sampling_params: allowed_token_ids is empty; it must have at least one token")
    n = given.get("n") or 1
    if not isinstance(n, int) or n < 1:
        raise TypeError(f"sampling_params: n must be a whole number of 1 or more, not {n!r}")
    return Drawing(fields, n, given.get("logprobs"), given.get("prompt_logprobs"))
