"""Prompts in the forms that callers of the engines pass."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

from .messages import Prompt

Prompts = Union[Prompt, Mapping[str, Any], Sequence[Union[Prompt, Mapping[str, Any]]]]


def _is_ids(value: Any) -> bool:
    """Whether this is one prompt's token ids: a list, or a row of a NumPy array or a tensor."""
    if isinstance(value, (str, Mapping)):
        return False
    return getattr(value, "ndim", None) == 1 or (len(value) > 0 and hasattr(value[0], "__index__"))


def _prompt(value: Any) -> Prompt:
    if isinstance(value, Mapping):
        if "prompt_token_ids" in value:
            value = value["prompt_token_ids"]
        elif "prompt" in value:
            value = value["prompt"]
        else:
            raise TypeError(f"a prompt must have prompt or prompt_token_ids, not {', '.join(map(str, value))}")
    if isinstance(value, str):
        return value
    if not _is_ids(value):
        raise TypeError(f"a prompt is text or token ids, not {type(value).__name__}")
    return [int(token) for token in value]


def read_prompts(prompt: Optional[Prompts], input_ids: Any) -> tuple[list[Prompt], bool]:
    """Returns the prompts, and whether a list was given. TypeError: give prompt or input_ids, not both."""
    if (prompt is None) == (input_ids is None):
        raise TypeError("give prompt or input_ids")
    given = prompt if prompt is not None else input_ids
    if isinstance(given, (str, Mapping)) or _is_ids(given):
        return [_prompt(given)], False
    return [_prompt(each) for each in given], True
