#!/usr/bin/env python3
"""GRPO on a laptop: the bundled model learns to tell happier stories while it generates.

    pip install torch matplotlib            besides pitstop
    python examples/grpo.py --out reward.png

Each step samples a batch while the previous one is used for training. The last group of a batch is sampled while the
new weights are pushed, so one version begins these outputs and the next one ends them. Every token has the version that
generated it and the logprob of that pass; both are checked here against PyTorch, token by token.

With --model stories-moe, a mixture of experts, each output has the experts that its tokens used, and PyTorch
follows them.

GRPO: Shao et al. 2024 (arXiv:2402.03300), eq. 3, without the KL term.
"""

import argparse
import json
import pathlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

import pitstop

BEGINNINGS = [
    "Once upon a time",
    "One day, a little dog",
    "There was a girl who",
    "Tom and his mom",
    "The old king",
    "A bird in the garden",
    "It was a sunny day and",
    "Lily and Ben were",
]
HAPPY = re.compile(r"\b(happy|happily|smiled?|laughed|laugh|fun|loved?|friends?|hugs?|hugged|proud|nice|kind|best)\b")
MANY = 12  # this many happy words earn the full reward


def reward(story):
    return min(len(HAPPY.findall(story)), MANY) / MANY


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Experts(nn.Module):
    """The MLP of a Qwen3-MoE layer. All experts are computed; those not chosen have weight 0."""

    def __init__(self, c):
        super().__init__()
        H, F, linear = c["hidden_size"], c["moe_intermediate_size"], lambda i, o: nn.Linear(i, o, bias=False)
        self.per_token, self.is_normed = c["num_experts_per_tok"], c["norm_topk_prob"]
        self.gate = linear(H, c["num_experts"])
        self.experts = nn.ModuleList(
            nn.ModuleDict({"gate_proj": linear(H, F), "up_proj": linear(H, F), "down_proj": linear(F, H)})
            for _ in range(c["num_experts"])
        )

    def forward(self, h, given=None):  # given: [B, T, per_token]; -1 and None: the router's own choice
        probabilities = self.gate(h).softmax(-1)
        chosen = probabilities.topk(self.per_token).indices
        chosen = chosen if given is None else torch.where(given < 0, chosen, given)
        weights = torch.zeros_like(probabilities).scatter(-1, chosen, probabilities.gather(-1, chosen))
        weights = weights / weights.sum(-1, keepdim=True) if self.is_normed else weights
        part = lambda name, dim: torch.cat([expert[name].weight for expert in self.experts], dim)  # noqa: E731
        gated = F.silu(h @ part("gate_proj", 0).T) * (h @ part("up_proj", 0).T)
        gated = gated.unflatten(-1, (len(self.experts), -1)) * weights[..., None]
        return gated.flatten(-2) @ part("down_proj", 1).T


class Layer(nn.Module):
    """One of Qwen3 or Qwen3-MoE; its parameters have the checkpoint's names."""

    def __init__(self, c, index):
        super().__init__()
        H, FF, D = c["hidden_size"], c["intermediate_size"], c["head_dim"]
        self.heads, self.kv_heads, self.D = c["num_attention_heads"], c["num_key_value_heads"], D
        eps, linear = c["rms_norm_eps"], lambda i, o: nn.Linear(i, o, bias=False)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(H, eps), RmsNorm(H, eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": linear(H, self.heads * D),
                "k_proj": linear(H, self.kv_heads * D),
                "v_proj": linear(H, self.kv_heads * D),
                "o_proj": linear(self.heads * D, H),
                "q_norm": RmsNorm(D, eps),
                "k_norm": RmsNorm(D, eps),
            }
        )
        self.has_experts = "num_experts" in c and index not in c["mlp_only_layers"]
        self.mlp = (
            Experts(c)
            if self.has_experts
            else nn.ModuleDict({"gate_proj": linear(H, FF), "up_proj": linear(H, FF), "down_proj": linear(FF, H)})
        )

    def forward(self, x, cos, sin, given=None):  # x [B, T, H], cos and sin [T, D]
        a, (B, T, _) = self.self_attn, x.shape
        h = self.input_layernorm(x)
        split = lambda y, n: y.view(B, T, n, self.D).transpose(1, 2)  # noqa: E731
        q, k = a["q_norm"](split(a["q_proj"](h), self.heads)), a["k_norm"](split(a["k_proj"](h), self.kv_heads))
        rotate = lambda y: y * cos + torch.cat((-y[..., self.D // 2 :], y[..., : self.D // 2]), -1) * sin  # noqa: E731
        repeat = lambda y: y.repeat_interleave(self.heads // self.kv_heads, 1)  # noqa: E731
        k, v = repeat(rotate(k)), repeat(split(a["v_proj"](h), self.kv_heads))
        y = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        x = x + a["o_proj"](y.transpose(1, 2).reshape(B, T, -1))
        h, m = self.post_attention_layernorm(x), self.mlp
        if self.has_experts:
            return x + m(h, given)
        return x + m["down_proj"](F.silu(m["gate_proj"](h)) * m["up_proj"](h))


class Qwen3(nn.Module):
    """Returns logprobs [B, T - 1] of ids [B, T] without the first of each row. The head is the embedding.

    With `routes` [B, T - 1, layers, per_token], tokens use the experts of the passes that sampled the ids.
    """

    def __init__(self, c):
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(c["vocab_size"], c["hidden_size"]),
                "layers": nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"])),
                "norm": RmsNorm(c["hidden_size"], c["rms_norm_eps"]),
            }
        )
        self.rates = c["rope_theta"] ** -(torch.arange(0, c["head_dim"], 2) / c["head_dim"])

    def logits(self, ids, routes=None):
        angles = torch.outer(torch.arange(ids.shape[1]), self.rates).repeat(1, 2)
        x = self.model["embed_tokens"](ids)
        for i, layer in enumerate(self.model["layers"]):
            x = layer(x, angles.cos(), angles.sin(), None if routes is None else routes[:, :, i])
        return self.model["norm"](x) @ self.model["embed_tokens"].weight.T

    def forward(self, ids, routes=None):
        return self.logits(ids[:, :-1], routes).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def padded(rows, of_tokens):
    """Returns ids [B, T], the prompts with their output tokens, and values [B, T - 1]: of_tokens(output), placed where
    Qwen3.logprobs has the output tokens' logprobs, and NaN elsewhere."""
    T = max(len(prompt) + len(out.output_ids) for prompt, out in rows)
    ids, values = torch.zeros(len(rows), T, dtype=torch.long), torch.full((len(rows), T - 1), torch.nan)
    for i, (prompt, out) in enumerate(rows):
        end = len(prompt) + len(out.output_ids)
        ids[i, :end] = torch.tensor(prompt + out.output_ids)
        values[i, len(prompt) - 1 : end - 1] = torch.tensor(of_tokens(out), dtype=torch.float32)
    return ids, values


def routes_of(rows, T, epoch=None):
    """The experts that the passes of ids [B, T] used, [B, T - 1, layers, per_token]; -1 where no row is known, or the
    row is of another epoch. None: the model has no experts."""
    if rows[0][1].routes is None:
        return None
    routes = torch.full((len(rows), T - 1, *rows[0][1].routes.array().shape[1:]), -1)
    for i, (_, out) in enumerate(rows):
        told = torch.tensor(out.routes.array(), dtype=torch.long)
        epochs = torch.tensor([span.epoch for span in out.routes.spans for _ in range(span.rows)])
        told[(epochs != epoch) & (epoch is not None)] = -1
        routes[i, : len(told)] = told
    return routes


def check_versions(rows, versions, newest):
    """Checks that every token was made by the version it names, one of the last two. Returns the largest error
    of a logprob."""
    worst = 0.0
    for epoch in {span.epoch for _, out in rows for span in out.spans}:
        assert newest - 1 <= epoch <= newest, f"a token of version {epoch}, and {newest} is the newest"
        digest, model = versions[epoch]
        assert all(span.digest == digest for _, out in rows for span in out.spans if span.epoch == epoch)
        ids, theirs = padded(
            rows, lambda out: [p if e == epoch else torch.nan for p, e in zip(out.logprobs, out.epochs)]
        )
        with torch.no_grad():
            mine = model(ids, routes_of(rows, ids.shape[1], epoch))
            worst = max(worst, float((mine - theirs).abs().nan_to_num(0).max()))
    assert all(out.epochs == sorted(out.epochs) for _, out in rows), "a version came back"
    assert worst < 1e-3, f"a logprob is off by {worst}: another version made that token"
    return worst


def train(model, optimizer, rows, group, between, epsilon=0.2):
    """One GRPO step in two halves, with between() in the middle. Returns the mean reward and the result of between()."""
    rewards = torch.tensor([reward(out.text) for _, out in rows]).view(-1, group)
    advantage = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    # logprobs of the passes that sampled the tokens, of whatever version
    ids, old = padded(rows, lambda out: out.logprobs)
    routes = routes_of(rows, ids.shape[1])
    optimizer.zero_grad()
    for half in torch.arange(len(rows)).chunk(2):
        mask = ~old[half].isnan()
        ratio = (model(ids[half], None if routes is None else routes[half]) - old[half].nan_to_num(0)).exp()
        gain = torch.minimum(ratio * advantage[half], ratio.clamp(1 - epsilon, 1 + epsilon) * advantage[half])
        (-(gain * mask).sum() / (~old.isnan()).sum()).backward()
        if half[0] == 0:
            given = between()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(rewards.mean()), given


def write_report(path, report):
    """Writes the plot, and its numbers as JSON."""
    pathlib.Path(path).with_suffix(".json").write_text(json.dumps(report) + "\n")
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    plt.plot(report["rewards"])
    plt.xlabel("step"), plt.ylabel("mean reward"), plt.title(f"{report['spanning']} outputs span two versions")
    plt.savefig(path)


def read_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="stories", help="a bundled model: stories, bard, stories-moe or bard-moe")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", type=int, default=12, help="samples per beginning")
    parser.add_argument("--out", default="reward.png", help="the plot; a .json file is written next to it")
    return parser.parse_args()


def main():
    options = read_flags()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the engine has the other core
    begin = time.monotonic()

    with pitstop.Engine(options.model, threads=1, compute="fp32") as engine, ThreadPoolExecutor(2) as pool:
        info = engine.get_server_info()
        config = json.loads(pathlib.Path(info["model_path"], "config.json").read_text())

        def copy_of(source):  # as in the engine, in bf16; source(name) returns a tensor
            model = Qwen3(config)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(source(name).bfloat16())
            return model

        model = copy_of(lambda name: torch.tensor(engine.get_weights_by_name(name)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
        newest = info["weight_epoch"]
        versions = {newest: (info["weight_digest"], copy_of(model.get_parameter))}
        prompts = [engine.tokenize(text) for text in BEGINNINGS for _ in range(options.group)]

        def sample(step, first, end, is_begun=threading.Event()):
            ids, latest = prompts[first:end], {}
            how = [{"max_new_tokens": 80, "seed": 1000003 * options.seed + 1009 * step + i} for i in range(first, end)]
            for out in engine.generate(
                input_ids=ids,
                sampling_params=how,
                return_logprob=True,
                stream=True,
                return_routed_experts="num_experts" in config,
            ):
                latest[out.index] = out
                is_begun.set()
            return [(prompt, latest[i]) for i, prompt in enumerate(ids)]

        rewards, spanning, worst, last = [], 0, 0.0, len(prompts) - options.group
        ahead, rest = pool.submit(sample, 0, 0, last), pool.submit(sample, 0, last, len(prompts))
        for step in range(options.steps):
            rows = ahead.result() + rest.result()
            worst = max(worst, check_versions(rows, versions, newest))
            spanning += sum(len(out.spans) > 1 for _, out in rows)
            # The next batch begins during training, and its last group runs while the weights change.
            mean, ahead = train(model, optimizer, rows, options.group, lambda: pool.submit(sample, step + 1, 0, last))
            rewards.append(mean)
            pushed, is_begun = copy_of(model.get_parameter), threading.Event()
            rest = pool.submit(sample, step + 1, last, len(prompts), is_begun)
            is_begun.wait(60)
            answer = engine.update_weights(
                ((name, p.bfloat16()) for name, p in pushed.named_parameters()),
                label=f"step {step}",
                kv_policy="recompute",
            )
            newest, versions[answer.epoch] = answer.epoch, (answer.digest, pushed)
            versions.pop(newest - 2, None)
            print(
                f"step {step:2}  reward {rewards[-1]:.3f}  version {newest}  {time.monotonic() - begin:.0f} s",
                flush=True,
            )
        check_versions(ahead.result() + rest.result(), versions, newest)

    seconds = time.monotonic() - begin
    write_report(
        options.out, {"rewards": rewards, "spanning": spanning, "logprob_error_max": worst, "seconds": seconds}
    )


if __name__ == "__main__":
    main()
