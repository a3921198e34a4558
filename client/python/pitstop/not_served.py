"""Features of sglang.Engine and vllm.LLM that a tree does not have: refused by name, never ignored silently."""

from __future__ import annotations

from typing import Any, Mapping

from .errors import PitstopError

ADAPTERS = "load_adapter() loads one, and adapter= names it"
EXPERTS = "no statistics of experts are kept; return_routed_experts of /generate over HTTP has those of each token"
ONE_TEXT_MODEL = "models read and write only text"
# Calls of other engines -> why a tree lacks them.
CALLS = {
    "encode": "models generate; there are no embeddings",
    "embed": "models generate; there are no embeddings",
    "async_encode": "models generate; there are no embeddings",
    "rerank": "the engine only generates; it does not score pairs",
    "async_rerank": "the engine only generates; it does not score pairs",
    "classify": "models generate; there are no classes",
    "score": "models generate; for prompt logprobs call generate with logprob_start_len=0",
    "async_score": "models generate; for prompt logprobs call generate with logprob_start_len=0",
    "reward": "models generate; there are no rewards",
    "beam_search": "tokens are drawn or greedy",
    "add_lora": ADAPTERS,
    "start_profile": "bench/ has programs that measure",
    "stop_profile": "bench/ has programs that measure",
    "start_expert_distribution_record": EXPERTS,
    "stop_expert_distribution_record": EXPERTS,
    "dump_expert_distribution_record": EXPERTS,
    "apply_model": "weights are in processes of C++: get_weights_by_name reads one",
    "get_tokenizer": "use tokenize and detokenize of `client`",
    "set_tokenizer": "the tokenizer is the model's",
    "save_sharded_model": "serve --keep-committed writes each version that is committed",
    "save_remote_model": "serve --keep-committed writes each version that is committed",
    "freeze_gc": "no Python runs in the tree",
    "init_weights_send_group_for_remote_instance": "weights are read from a directory or sent by a trainer",
    "send_weights_to_remote_instance": "weights are read from a directory or sent by a trainer",
}
# Arguments that change the output -> why they are refused. Unset ones are accepted.
ARGUMENTS = {
    "image_data": ONE_TEXT_MODEL,
    "audio_data": ONE_TEXT_MODEL,
    "video_data": ONE_TEXT_MODEL,
    "mm_processor_kwargs": ONE_TEXT_MODEL,
    "lora_request": ADAPTERS,
    "input_embeds": "prompts are text or tokens",
    "custom_logit_processor": "nothing that is received is run",
    "return_hidden_states": "hidden states do not leave the tree",
    "bootstrap_host": "prefill and decode are in one tree",
    "bootstrap_port": "prefill and decode are in one tree",
    "bootstrap_room": "prefill and decode are in one tree",
    "tokenization_kwargs": "the tokenizer is the model's",
}
# Arguments that do not change the output.
IGNORED = {"external_trace_header", "background", "log_metrics", "extra_key", "validation_time", "reasoning"}


def check_arguments(call: str, given: Mapping[str, Any]) -> None:
    """PitstopError "unsupported": an argument of another engine. TypeError: an unknown one."""
    for name, value in given.items():
        if name in ARGUMENTS:
            if value is not None and value is not False:
                raise PitstopError("unsupported", f"{call}: {name} is not served: {ARGUMENTS[name]}")
        elif name not in IGNORED:
            raise TypeError(f"{call}() got an unexpected keyword argument '{name}'")


def refuse_call(engine: str, name: str) -> Any:
    """For __getattr__: a call of another engine raises PitstopError "unsupported". AttributeError: an unknown name."""
    if name not in CALLS:
        raise AttributeError(f"'{engine}' object has no attribute '{name}'")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PitstopError("unsupported", f"{engine}.{name} is not served: {CALLS[name]}")

    return refuse
