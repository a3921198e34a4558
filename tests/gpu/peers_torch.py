"""peers_torch: what PyTorch takes for the shapes of pitstop_gpu_bench; run by the machine's own python3.

    peers_torch.py --json FILE [--sizes real|small] [--device cuda|cpu] [--model DIR]

Scaled dot-product attention by flash and by cuDNN, products by cuBLAS, sampling; with --model also what transformers
generates with that model. A row that cannot be measured says why. FILE is written anew after each row.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

REAL = {"H": 4096, "F": 12288, "Q": 32, "K": 8, "D": 128, "V": 151936, "T": 8192, "R": 64, "keys": 4096, "many": 4096}
SMALL = {"H": 64, "F": 96, "Q": 4, "K": 1, "D": 16, "V": 500, "T": 64, "R": 4, "keys": 32, "many": 64}
ROTATE_BYTES = 256 << 20  # weights rotate so that the L2 cache cannot hold them
SAMPLES = 10
SAMPLE_S = 0.02


class Rows:
    def __init__(self, path, device):
        self._path = path
        self._device = device
        self.found = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "rows": [],
        }

    def measure(self, what, peer, prepare):
        """`prepare` returns a call that takes the number of the call, or raises."""
        try:
            call = prepare()
            row = {"what": what, "peer": peer, "us": self._seconds(call) * 1e6}
        except Exception as error:  # a backend that does not accept the shape, or missing memory
            row = {"what": what, "peer": peer, "why": " ".join(str(error).split())[:200]}
        self.found["rows"].append(row)
        print(row, flush=True)
        self.write()
        if self._device == "cuda":
            torch.cuda.empty_cache()

    def write(self):
        with open(self._path, "w") as file:
            json.dump(self.found, file, indent=1)

    def _seconds(self, call):
        number = 0

        def run(num):
            nonlocal number
            if self._device != "cuda":
                begin = time.perf_counter()
                for _ in range(num):
                    call(number)
                    number += 1
                return time.perf_counter() - begin
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(num):
                call(number)
                number += 1
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e-3

        run(3)
        num = max(1, min(2000, int(SAMPLE_S / max(run(3) / 3, 1e-7))))
        return statistics.median(run(num) / num for _ in range(SAMPLES))


def products(rows, s, device):
    shapes = {
        "qkv": ((s["Q"] + 2 * s["K"]) * s["D"], s["H"]),
        "o": (s["H"], s["Q"] * s["D"]),
        "gate, up": (2 * s["F"], s["H"]),
        "down": (s["H"], s["F"]),
        "head": (s["V"], s["H"]),
    }
    for name, (n, depth) in shapes.items():
        copies = max(1, ROTATE_BYTES // (2 * n * depth) + 1) if device == "cuda" else 1
        for m in (1, 2, 4, 8, 16, 32, 64, 4096):
            if m == 4096 and name == "head":
                continue

            def prepare(n=n, depth=depth, m=m, copies=copies):
                w = [torch.randn(n, depth, device=device, dtype=torch.bfloat16) for _ in range(copies)]
                x = torch.randn(min(m, s["many"]), depth, device=device, dtype=torch.bfloat16)
                return lambda i: F.linear(x, w[i % copies])

            rows.measure(f"{name}, M = {m}", "torch (cuBLAS)", prepare)


def attention(rows, s, device):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION}
    if device != "cuda":
        backends = {"SDPA math": SDPBackend.MATH}
    cases = (
        ("decode, 64 requests x 4096, GQA 4:1", s["R"], 1, s["keys"], False),
        ("prefill, 8192, causal, wgmma", 1, s["T"], s["T"], True),
    )
    for what, requests, q_len, keys, is_causal in cases:
        for peer, backend in backends.items():

            def prepare(requests=requests, q_len=q_len, keys=keys, is_causal=is_causal, backend=backend):
                def made(heads, length):
                    return torch.randn(requests, heads, length, s["D"], device=device, dtype=torch.bfloat16)

                q, k, v = made(s["Q"], q_len), made(s["K"], keys), made(s["K"], keys)

                def attend(_):
                    with sdpa_kernel([backend]):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

                return attend

            rows.measure(what, peer, prepare)


def top_p(probabilities, p):
    """As in the fallbacks of trainers and engines: a sort, a running sum, a draw."""
    ordered, index = probabilities.sort(dim=-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > p] = 0
    return index.gather(-1, torch.multinomial(ordered, 1))


def sampling(rows, s, device):
    def logits():
        return torch.randn(s["R"], s["V"], device=device)

    def over(compute):
        def prepare():
            x = logits()
            return lambda _: compute(x)

        return prepare

    rows.measure("64 x 151936, plain draw", "torch.multinomial", over(lambda x: torch.multinomial(x.softmax(-1), 1)))
    rows.measure("64 x 151936, top-p 0.95", "torch sort + multinomial", over(lambda x: top_p(x.softmax(-1), 0.95)))
    rows.measure("64 x 151936, greedy", "torch.argmax", over(lambda x: x.argmax(-1)))
    rows.measure("top 20 of 64 x 151936", "torch.topk", over(lambda x: x.topk(20)))


def generation(rows, model_dir, device):
    """Tokens per second of one request, and of 8, as many as fit here."""
    try:
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(model_dir).to(device, torch.bfloat16).eval()
    except Exception as error:
        rows.found["generation"] = {"why": " ".join(str(error).split())[:300]}
        return rows.write()
    found = {"transformers": transformers.__version__}
    num = 64 if device == "cuda" else 4
    for requests in (1, 8):
        ids = torch.randint(0, 256, (requests, 128 if device == "cuda" else 4), device=device)
        options = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, **options)
        begin = time.perf_counter()
        model.generate(ids, max_new_tokens=num, min_new_tokens=num, **options)
        found[f"tokens_per_s_{requests}"] = round(requests * num / (time.perf_counter() - begin), 1)
        rows.found["generation"] = found
        rows.write()
    print(found, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True)
    parser.add_argument("--sizes", choices=("real", "small"), default="real")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    sizes = REAL if options.sizes == "real" else SMALL
    rows = Rows(options.json, options.device)
    with torch.inference_mode():
        attention(rows, sizes, options.device)
        sampling(rows, sizes, options.device)
        products(rows, sizes, options.device)
        if options.model:
            generation(rows, options.model, options.device)
    rows.write()


if __name__ == "__main__":
    main()
