#!/usr/bin/env python3
"""Makes the bundled hybrid models' parts of tests/data/models/reference.json: transformers' results in
double precision.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers
    /tmp/golden/bin/python tests/golden/make_bundled.py
"""

import json
import os
import pathlib

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import torch  # noqa: E402
import transformers  # noqa: E402

from hybrid_configs import exact_logits  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "data" / "models" / "reference.json"
OF = {"stories-hybrid": "stories", "bard-hybrid": "bard"}  # hybrid model -> the model with its prompts
ABOUT = " Of the hybrid models: transformers in double precision (tests/golden/make_bundled.py)."
NUM_GREEDY = 64
NUM_CASES = 4  # cases, of the dense models' eight


def greedy(directory, case):
    """An entry like the dense model's, of the same prompt. fp32 proposes the tokens, and double precision must agree."""
    ids = torch.tensor([case["ids"]])
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=NUM_GREEDY,
                          max_new_tokens=NUM_GREEDY, eos_token_id=[], suppress_tokens=[], pad_token_id=0)[0].tolist()  # fmt: skip
    rows = exact_logits(directory, [made[:-1]])[0][len(case["ids"]) - 1 :]
    continuation = made[len(case["ids"]) :]
    if rows.argmax(-1).tolist() != continuation:
        raise SystemExit(f"{directory.name}, {case['prompt']!r}: fp32 and double precision choose differently")
    best = rows.topk(2, -1).values
    logprobs = rows.log_softmax(-1).gather(-1, torch.tensor(continuation)[:, None])[:, 0]
    return {"prompt": case["prompt"], "ids": case["ids"], "continuation": continuation,
            "text": transformers.AutoTokenizer.from_pretrained(directory).decode(continuation),
            "gaps": rounded(best[:, 0] - best[:, 1]), "logprobs": rounded(logprobs)}  # fmt: skip


def rounded(values):
    return [round(float(each), 5) for each in values]


def logits(directory, case):
    rows = exact_logits(directory, [case["ids"]])[0]
    positions = [{"first16": rounded(row[:16]), "logsumexp": round(float(row.logsumexp(-1)), 5), "argmax": int(row.argmax())}
                 for row in rows]  # fmt: skip
    return {"prompt": case["prompt"], "ids": case["ids"], "positions": positions}


def main():
    torch.set_num_threads(1)
    reference = json.loads(REFERENCE.read_text())
    if ABOUT not in reference["about"]:
        reference["about"] += ABOUT
    for name, dense in OF.items():
        directory, cases = ROOT / "launch" / "models" / name, reference["models"][dense]
        reference["models"][name] = {
            "greedy": [greedy(directory, case) for case in cases["greedy"][:NUM_CASES]],
            "logits": [logits(directory, case) for case in cases["logits"]],
        }
    REFERENCE.write_text(json.dumps(reference, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
