"""Arguments with which callers start sglang.Engine and vllm.LLM: flags of a tree, arguments that change nothing here, and
refused ones, each with its reason."""

from __future__ import annotations

from typing import Any, Mapping

from .errors import PitstopError
from .not_served import ADAPTERS, ONE_TEXT_MODEL

# Flags of a tree by another name.
RENAMED = {
    "model_path": "model",
    "tp_size": "tp",
    "tensor_parallel_size": "tp",
    "ep_size": "ep",
    "expert_parallel_size": "ep",
    "dp_size": "dp",
    "data_parallel_size": "dp",
    "mem_fraction_static": "mem_fraction",
    "gpu_memory_utilization": "mem_fraction",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "max_loaded_loras": "max_adapters",
    "max_cpu_loras": "max_adapters",
    "max_lora_rank": "max_adapter_rank",
    "enforce_eager": "no_graphs",
    "disable_cuda_graph": "no_graphs",
    "enable_deterministic_inference": "deterministic",
}
# Arguments that do not change the output here.
IGNORED = {
    "trust_remote_code": "nothing of a checkpoint is run",
    "max_model_len": "a request may be as long as the model's context and the KV memory allow",
    "context_length": "as max_model_len",
    "enable_prefix_caching": "prefixes are always cached, by the version of the weights",
    "enable_chunked_prefill": "prompts are always read in chunks",
    "enable_sleep_mode": "memory can always be given back",
    "enable_memory_saver": "memory can always be given back",
    "disable_log_stats": "logs are --log-level's",
    "disable_log_requests": "logs are --log-level's",
    "disable_custom_all_reduce": "all_reduce chooses how sums over ranks are computed",
    "skip_server_warmup": "there is none",
    "max_loras": "a step has as many adapters as its requests",
    "max_loras_per_batch": "a step has as many adapters as its requests; adapter_memory bounds their bytes",
    "lora_target_modules": "an adapter's configuration names its modules",
    "lora_dtype": "adapters are resident in float32",
    "lora_backend": "kernels are pitstop's own",
    "download_dir": "the Hugging Face cache is used",
    "generation_config": "sampling is each request's",
    "seed": "a request without a seed of its own is random",
    "random_seed": "a request without a seed of its own is random",
}
BF16 = ("auto", "bfloat16", "bf16", "torch.bfloat16")
# The only accepted values of an argument, and the reason for refusing other values.
ONLY = {
    "dtype": (BF16, "weights are resident in bfloat16; compute='fp32' computes in float32"),
    "kv_cache_dtype": (BF16, "KV has the precision of compute"),
    "quantization": ((), "quantized checkpoints are not supported"),
    "load_format": (("auto", "safetensors"), "checkpoints are safetensors; 'null' measures without weights"),
    "enable_lora": ((False, True), ADAPTERS),
    "lora_paths": ((), ADAPTERS),
    "lora_eviction_policy": (("lru",), "with adapter_memory, the least recently used adapter is evicted first"),
    "limit_mm_per_prompt": ((), ONE_TEXT_MODEL),
    "pipeline_parallel_size": ((1,), "layers are not spread over machines; tp splits them, and nodes spreads tp"),
    "pp_size": ((1,), "layers are not spread over machines; tp splits them, and nodes spreads tp"),
    "swap_space": ((0,), "KV is not swapped to the host; retracted requests are computed again"),
    "cpu_offload_gb": ((0,), "weights stay on one device"),
    "worker_extension_cls": (("",), "nothing that is received is run"),
    "distributed_executor_backend": (("mp",), "ranks are processes of this machine; pitstop.fleet has Ray"),
    "attention_backend": ((), "kernels are pitstop's own"),
    "disable_radix_cache": ((False,), "prefixes are always cached, by the version of the weights"),
    "skip_tokenizer_init": ((False,), "the tree has the tokenizer; input_ids= takes tokens"),
    "revision": ((), "write it with the model: org/name@revision"),
    "tokenizer": ((), "the tokenizer is the model's"),
    "tokenizer_path": ((), "the tokenizer is the model's"),
}
OVER_RANKS = "enable_expert_parallel"  # vLLM's: each expert is on one rank
NO_DRAFT_MODEL = "drafts come from texts (NGRAM; vLLM's methods ngram and suffix), not from a model"
DRAFTS = 8  # drafts per row, if the caller names no number
FLAG_TOO = {"load_format": ("null",)}  # values that are accepted because the tree's flag has them, too


def tree_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of serve among these arguments, by their names. PitstopError "unsupported": a feature of another engine
    that pitstop does not have."""
    flags: dict[str, Any] = _speculation(options)
    if options.get(OVER_RANKS):
        flags["ep"] = next((options[name] for name in ("tensor_parallel_size", "tp_size", "tp") if name in options), 1)
    for name, value in options.items():
        if name in IGNORED or name == OVER_RANKS or name.startswith("speculative_"):
            continue
        if name in ONLY:
            accepted, why = ONLY[name]
            if name in FLAG_TOO and value in FLAG_TOO[name]:
                flags[name] = value
            elif (
                value is not None
                and not (name.startswith("tokenizer") and value == options.get("model"))
                and not any(str(value) == str(each) for each in accepted)
            ):
                raise PitstopError("unsupported", f"Engine: {name}={value!r} is not served: {why}")
            continue
        flags[RENAMED.get(name, name)] = value
    return flags


def _speculation(options: Mapping[str, Any]) -> dict[str, Any]:
    """serve's --speculate for SGLang's speculative_algorithm NGRAM and vLLM's speculative_config of n-grams and
    suffixes. Their match lengths have no counterpart: pitstop drafts as many tokens as earlier guesses justify."""
    config = options.get("speculative_config")
    if config:
        what = f"Engine: speculative_config={config!r} is not served"
        if not isinstance(config, Mapping):
            raise PitstopError("unsupported", f"{what}: it is a dict, such as {{'method': 'ngram'}}")
        if config.get("method") not in ("ngram", "ngram_gpu", "suffix"):
            raise PitstopError("unsupported", f"{what}: {NO_DRAFT_MODEL}")
        return {"speculate": config.get("num_speculative_tokens") or DRAFTS}
    algorithm = options.get("speculative_algorithm")
    is_ngram = str(algorithm).upper() == "NGRAM"
    for name, value in options.items():
        is_served = is_ngram and (
            name in ("speculative_algorithm", "speculative_num_draft_tokens") or name.startswith("speculative_ngram_")
        )
        if name.startswith("speculative_") and value and not is_served:
            raise PitstopError("unsupported", f"Engine: {name}={value!r} is not served: {NO_DRAFT_MODEL}")
    if not is_ngram:
        return {}
    num = options.get("speculative_num_draft_tokens")  # also counts the token before the drafts
    return {"speculate": max(int(num) - 1, 1) if num else DRAFTS}
