"""PyTorch on the same shapes, if the machine's python3 has it, and the table of both."""

import json
import pathlib
import shutil
import tempfile

from timed_call import call

SCRIPT = pathlib.Path(__file__).resolve().parent / "peers_torch.py"
ASK_S = 90.0  # an import of torch from a cold disk takes long
OURS = "qwen3-0.6b, random weights"  # the part of our run whose model PyTorch generates with, too
GENERATED = {1: "decode_1", 8: "decode_8"}  # {requests: our engine's benchmark of this many}


def find(environment, device):
    """Returns (python3, None), or (None, the reason why not)."""
    python = shutil.which("python3", path=environment.get("PATH"))
    if python is None:
        return None, "there is no python3 on the path"
    ask = "import torch; print('cuda', torch.cuda.is_available())"
    ended = call([python, "-c", ask], environment, ASK_S)
    if ended.code != 0:
        return None, f"{python} has no PyTorch"
    if device == "cuda" and "cuda True" not in ended.output:
        return None, f"the PyTorch of {python} sees no GPU"
    return python, None


def measure(sizes, device, model, environment, timeout_s):
    """Returns (the results of peers_torch.py, how it ended)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "peers.json"
        command = [shutil.which("python3", path=environment.get("PATH")), SCRIPT]
        command += [f"--json={path}", f"--sizes={sizes}", f"--device={device}"]
        if model is not None:
            command.append(f"--model={model}")
        ended = call(command, environment, timeout_s)
        print(ended.output, end="", flush=True)
        return (json.loads(path.read_text()) if path.exists() else None), ended


def as_lines(peers, kernels, parts):
    """The table of PyTorch's figures next to ours. Ours are from the same run if it measured both."""
    ours = {row["what"]: row["us"] for row in (kernels or {}).get("kernels", [])}
    lines = [
        f"PyTorch {peers['torch']}, CUDA {peers['cuda']}, cuDNN {peers['cudnn']}.",
        "",
        "| what | peer | its us | ours, us | ours / its |",
        "|---|---|---|---|---|",
    ]
    for row in peers["rows"]:
        mine = ours.get(row["what"])
        own = "not measured" if mine is None else f"{mine:.1f}"
        if "us" not in row:
            lines.append(f"| {row['what']} | {row['peer']} | {row['why'].replace('|', '/')} | {own} | |")
            continue
        share = "" if mine is None else f"{mine / row['us']:.2f}"
        lines.append(f"| {row['what']} | {row['peer']} | {row['us']:.1f} | {own} | {share} |")
    return lines + generation_lines(peers.get("generation"), parts)


def generation_lines(found, parts):
    if not found:
        return []
    if "why" in found:
        return ["", f"transformers: {found['why']}"]
    lines = ["", "| generation | transformers, tokens/s | ours, tokens/s |", "|---|---|---|"]
    for requests, bench in GENERATED.items():
        mine = parts.get(OURS, {}).get(bench, {}).get("decode.tokens_per_s")
        lines.append(f"| {requests} requests | {found.get(f'tokens_per_s_{requests}')} | {mine or '-'} |")
    return lines
