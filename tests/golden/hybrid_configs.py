"""Random configurations of hybrid models, whose layers have gated delta nets or gated attention (compare_configs.py)."""

import sys

import torch
import transformers

HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
WRAPPERS = {  # text family -> (model_type, architecture) of the model with vision
    "qwen3_5_text": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
}


def hybrid(rng, family, architecture, rope, experts):
    """A random configuration of the family, with the keys of `rope`, and those of `experts` if it has any."""
    heads = rng.choice([2, 4, 6])
    layers = rng.choice([1, 2, 3, 5])
    key_heads = rng.choice([1, 2, 4])
    config = {
        "architectures": [architecture],
        "model_type": family,
        "vocab_size": rng.choice([61, 67, 96]),
        "hidden_size": heads * rng.choice([8, 12, 20]),
        "intermediate_size": rng.choice([24, 56, 100]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([k for k in (1, 2, heads) if heads % k == 0]),
        "head_dim": rng.choice([16, 24, 32, 64]),
        "max_position_embeddings": rng.choice([256, 512, 512, 4096]),
        "rms_norm_eps": rng.choice([1e-3, 1e-5, 1e-6]),
        "tie_word_embeddings": rng.random() < 0.4,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * rng.choice([1, 2, 3]),
        "linear_key_head_dim": rng.choice([8, 12, 16, 33, 64]),
        "linear_value_head_dim": rng.choice([8, 12, 20, 32, 64]),
        "linear_conv_kernel_dim": rng.choice([2, 3, 4, 4]),
        "eos_token_id": rng.choice([2, [2, 3], None]),
    }
    if rng.random() < 0.2:
        config["attention_bias"] = True
    how = rng.random()
    if how < 0.5:
        kinds = [rng.choice(["linear_attention", "linear_attention", "full_attention"]) for _ in range(layers)]
        kinds[rng.randrange(layers)] = "full_attention"
        config["layer_types"] = kinds
    elif how < 0.8 or layers < 4:
        config["full_attention_interval"] = rng.choice([n for n in (1, 2, 3) if n <= layers])
    if family != "qwen3_5_text":
        config.update(experts(rng, "qwen2_moe", layers))
        config.pop("qkv_bias", None)
    if family == "qwen3_5_moe_text":
        for key in ("norm_topk_prob", "decoder_sparse_step", "intermediate_size"):
            config.pop(key, None)
        if rng.random() < 0.5:
            config["mlp_only_layers"] = []
    factor = rng.choice([None, 0.25, 0.5, 1.0])
    config.update(rope)
    if factor is not None and "rope_parameters" in config and rng.random() < 0.5:
        config["rope_parameters"]["partial_rotary_factor"] = factor
    elif factor is not None:
        config["partial_rotary_factor"] = factor
    return config


def wrapped(rng, config):
    """Returns (the configuration, perhaps in the form of a model with vision; whether it has that form)."""
    if config.get("model_type") not in WRAPPERS or rng.random() < 0.5:
        return config, False
    model_type, architecture = WRAPPERS[config["model_type"]]
    text = dict(config)
    text.pop("architectures", None)
    whole = {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text,
        "vision_config": {"depth": 1, "hidden_size": 8, "model_type": f"{model_type}_vision"},
    }
    where = rng.choice(["outside", "both"])  # transformers' text class reads the inner tie_word_embeddings
    if "tie_word_embeddings" in text and where == "both":
        whole["tie_word_embeddings"] = text["tie_word_embeddings"]
    return whole, True


def odd_hybrids(config, deleted):
    layers = config["num_hidden_layers"]
    return [
        {"linear_num_value_heads": config["linear_num_key_heads"] + 1}, {"linear_conv_kernel_dim": 1},
        {"linear_conv_kernel_dim": 9}, {"linear_key_head_dim": 0}, {"linear_value_head_dim": 512},
        {"layer_types": ["linear_attention"] * layers}, {"layer_types": ["full_attention"] * layers},
        {"layer_types": ["linear_attention"] * (layers + 1)}, {"layer_types": ["sliding_attention"] * layers},
        {"full_attention_interval": 0, "layer_types": deleted}, {"full_attention_interval": 2},
        {"attn_output_gate": False}, {"attn_output_gate": True}, {"output_gate_type": "sigmoid"},
        {"output_gate_type": "swish"}, {"mtp_use_dedicated_embeddings": True}, {"mtp_num_hidden_layers": 1},
        {"mamba_ssm_dtype": "float32"}, {"mamba_ssm_dtype": "bfloat16"}, {"partial_rotary_factor": 0.01},
        {"partial_rotary_factor": 2.0}, {"head_dim": deleted}, {"linear_num_key_heads": deleted},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5,
                             "mrope_section": [3, 3, 2], "mrope_interleaved": True}},
        {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e6}},
    ]  # fmt: skip


def exact_delta_rule(query, key, value, g, beta, **_):
    """The recurrence of the gated delta net (arXiv:2412.06464), token by token in double precision."""
    repeats = value.shape[2] // key.shape[2]
    q, k = (x.double().repeat_interleave(repeats, 2) for x in (query, key))
    v, decay, beta = value.double(), g.double().exp(), beta.double()
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q = q / q.shape[-1] ** 0.5
    state = torch.zeros(*v.shape[:1], *v.shape[2:3], k.shape[-1], v.shape[-1], dtype=torch.float64)
    out = torch.zeros_like(v)
    for t in range(v.shape[1]):
        state = state * decay[:, t, :, None, None]
        known = (state * k[:, t].unsqueeze(-1)).sum(-2)
        state = state + k[:, t].unsqueeze(-1) * ((v[:, t] - known) * beta[:, t].unsqueeze(-1)).unsqueeze(-2)
        out[:, t] = (state * q[:, t].unsqueeze(-1)).sum(-2)
    return out.to(query.dtype), None


def exact_logits(directory, prompts, **options):
    """The logits of transformers' modules in double precision, with exact_delta_rule()."""
    options = {"attn_implementation": "eager", **options}
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, **options)
    rule = "torch_chunk_gated_delta_rule"
    modules = {sys.modules[type(module).__module__] for module in model.modules() if "linear_attn" in dir(module)}
    kept = {module: getattr(module, rule) for module in modules}
    try:
        for module in modules:
            setattr(module, rule, exact_delta_rule)
        for module in model.modules():
            if hasattr(module, rule):
                setattr(module, rule, exact_delta_rule)
        with torch.no_grad():
            return [model.eval()(torch.tensor([prompt]), use_cache=False).logits[0].double() for prompt in prompts]
    finally:
        for module, original in kept.items():
            setattr(module, rule, original)
