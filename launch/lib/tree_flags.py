"""Defines the flags that a tree is started with."""

import argparse
import os

import http_limits

# The upper limits of flags. The processes refuse larger values, too, each in its own words. A test
# compares both, so that the launcher's one line comes first.
MOST = {
    "--tp": 64,
    "--ep": 64,
    "--dp": 1024,
    "--max-total-tokens": (1 << 31) - 1,
    "--page-size": 4096,
    "--chunked-prefill-size": 126976,
    "--max-running-requests": 4096,
    "--max-queued-requests": 1 << 24,
    "--max-adapters": 4096,
    "--max-adapter-rank": 512,
    "--adapter-memory": 1 << 50,
    "--state-checkpoints": 65536,
    "--state-checkpoint-tokens": 1 << 24,
    "--threads": 1024,
    "--nodes": 64,
}


def whole_number(low, high=None):
    accepted = f"of {low} or more" if high is None else f"from {low} to {high}"

    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"takes a whole number {accepted}, not '{text}'")
        return value

    return parse


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0, not '{text}'")
    return value


DRAFTS_MAX = 32
DRAFT_MEMORY_MAX = 1 << 40  # bytes; with 0, outputs of ended requests are not kept


def drafts(text):
    if text in ("off", "auto"):
        return text
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= DRAFTS_MAX:
        raise argparse.ArgumentTypeError(f"takes off, auto, or drafts per row, from 1 to {DRAFTS_MAX}, not '{text}'")
    return value


def share(text):
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"takes a number in (0, 1], not '{text}'")
    return value


def add_count(parser, name, help, **more):
    parser.add_argument(name, type=whole_number(1, MOST[name]), metavar="N", help=help, **more)


def add_first_flags(parser):
    """Flags that matter first: the model, the number of ranks and replicas, the memory."""
    parser = parser.add_argument_group("the flags that matter first")
    add = parser.add_argument
    add(
        "--model",
        default="stories",
        metavar="DIR",
        help="a checkpoint directory, a bundled model (stories, bard, stories-moe, bard-moe, stories-hybrid, "
        "bard-hybrid), or org/name of the Hugging Face cache; huggingface_hub downloads missing files (default stories)",
    )
    add_count(parser, "--tp", "tensor-parallel ranks per replica", default=1)
    add_count(parser, "--dp", "data-parallel replicas", default=1)
    add_count(
        parser,
        "--max-total-tokens",
        "tokens in the KV pool of a replica (default on a CPU: a quarter of the memory; on a GPU: by --mem-fraction)",
    )
    return add


def add_limit_flags(parser):
    """Flags of concurrency: how much runs at once, and whose request is next."""
    parser = parser.add_argument_group("how much at once")
    add = parser.add_argument
    add_count(parser, "--page-size", "tokens per page of KV (default 16)")
    add_count(parser, "--chunked-prefill-size", "maximum number of tokens in a step (default 512)")
    add_count(parser, "--max-running-requests", "maximum number of requests that run at once (default 256)")
    add_count(parser, "--max-queued-requests", "maximum number of requests that wait (default 16384)")
    add_count(parser, "--max-adapters", "maximum number of loaded adapters (LoRA) (default 16)")
    add_count(parser, "--max-adapter-rank", "the highest accepted rank of an adapter (default 64)")
    add_count(
        parser,
        "--adapter-memory",
        "bytes for adapters in each worker; above it, the least recently used are evicted to files (default: no limit)",
    )
    add_count(
        parser,
        "--state-checkpoints",
        "hybrid models: places for copies of requests' recurrent states, from which later requests continue "
        "(default: by the memory of the machine, 8 or more)",
    )
    add_count(
        parser,
        "--state-checkpoint-tokens",
        "hybrid models: tokens of a long prompt between two copies of its state, while places are free (default 1024)",
    )
    add(
        "--speculate",
        type=drafts,
        default="off",
        metavar="off|auto|K",
        help="maximum number of drafts per row that a pass verifies, 1 to 32; auto: the number that gives the most "
        "tokens per second. Drafts are guesses from prompts and outputs (default off)",
    )
    parser.add_argument(
        "--draft-memory",
        type=whole_number(0, DRAFT_MEMORY_MAX),
        metavar="BYTES",
        help="with --speculate: bytes for outputs of ended requests, the source of drafts (default 64 MiB)",
    )
    parser.add_argument(
        "--session-memory",
        type=share,
        metavar="SHARE",
        help="share of the KV pool that sessions hold between their turns, in (0, 1] (default 0.5)",
    )
    add(
        "--scheduling",
        choices=("fair", "fcfs"),
        help="order of requests of one priority: fair (clients take turns) or fcfs (by arrival) (default fair)",
    )
    add(
        "--served-model-name",
        metavar="S",
        nargs="+",
        action="extend",
        help="the model's names: answers have the first, requests may use any (default: the name of its directory)",
    )


def add_engine_flags(parser):
    """Flags of the computation: how, on which device, and from which weights."""
    parser = parser.add_argument_group("the engine ('on a GPU': no effect on CPUs)")
    add = parser.add_argument
    add("--compute", choices=("bf16", "fp32"), help="precision of activations and KV (default bf16)")
    add_count(
        parser,
        "--ep",
        "models of experts: number of groups of ranks that experts are divided over. A group has --tp / N ranks, which "
        "split each of its experts (default 1)",
    )
    add(
        "--expert-weights",
        choices=("fp32", "bf16"),
        help="models of experts: precision of the weights of a token's experts. bf16 rounds them before the sum, as "
        "transformers does for Qwen (default fp32)",
    )
    add(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        help="cuda: a GPU for each rank; auto: the same if there are enough usable GPUs, otherwise the CPU "
        "(default auto)",
    )
    add(
        "--mem-fraction",
        type=share,
        metavar="X",
        help="on a GPU: share of the free memory for weights, activations and KV, in (0, 1] (default 0.9)",
    )
    add(
        "--update-mode",
        choices=("auto", "staged", "host", "lend", "direct"),
        help="on a GPU: where updates are staged. staged: in a second copy of the weights. host: in host memory, "
        "uploaded at the commit. lend: in the memory of KV, while nothing is generated. direct: nowhere; "
        "overwrites the weights that serve. auto: the first of the four that fits (default auto)",
    )
    add(
        "--all-reduce",
        choices=("auto", "own", "nccl"),
        help="on GPUs with --tp: what sums activations over the ranks. own: kernels that read each other's memory. "
        "nccl: NCCL in each step that is not a graph; refused with --device cpu, --tp 1 or --deterministic. "
        "auto: own with --deterministic; otherwise NCCL for sizes where the start measured it faster (default auto)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="on a GPU: no result depends on the rest of the batch (on a CPU none ever does)",
    )
    add(
        "--no-graphs",
        action="store_true",
        help="on a GPU: launch each kernel of a step separately, without CUDA graphs; the results are the same",
    )
    add(
        "--load-format",
        choices=("auto", "null"),
        help="null: load no weights and compute nothing, to measure everything else (default auto)",
    )
    add(
        "--ignore-extra-tensors",
        action="store_true",
        help="skip tensors of a checkpoint or an update that the model does not have",
    )
    add_count(parser, "--threads", "threads of each worker (default: the cores divided by the number of workers)")


def add_patience_flags(parser):
    """Flags of the start and the run: logs, and time limits."""
    parser = parser.add_argument_group("logs, starts and deadlines")
    add = parser.add_argument
    add(
        "--log-level",
        default="warning",
        choices=("trace", "debug", "info", "warning", "error", "off"),
        help="least severe messages that the processes write to standard error (default warning)",
    )
    add(
        "--stall-timeout",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds that a process may be stopped (SIGSTOP) before it is killed and the tree ends (default 30)",
    )
    add(
        "--stage-share",
        type=share,
        metavar="X",
        help="share of a core's time that staging weights may take while passes run, in (0, 1] (default 0.25)",
    )
    add(
        "--step-timeout",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds that a forward pass may take before the tree ends (default 300)",
    )
    add(
        "--tuning-dir",
        metavar="DIR",
        help="on a GPU: directory that keeps the fastest algorithms, timed at the first start; "
        "none: time nothing (default ~/.cache/pitstop)",
    )
    add(
        "--wait-for-initial-weights",
        "--checkpoint-engine-wait-weights-before-ready",
        action="store_true",
        help="load no weights at the start; the tree is ready after the first complete update",
    )
    add(
        "--start-timeout",
        type=seconds,
        default=600.0,
        metavar="S",
        help="seconds to wait for the tree to become ready (default 600)",
    )


def add_tree_flags(parser):
    """The flags that a tree is started with."""
    first = add_first_flags(parser)
    add_limit_flags(parser)
    add_engine_flags(parser)
    add_patience_flags(parser)
    return first


def port(text):
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"takes a port, or 0 for any free one, not '{text}'")
    return value


def add_http_limits(parser):
    for names, kind, metavar in (
        (http_limits.COUNTS, whole_number(1), "N"),
        (http_limits.TIMES, seconds, "S"),
    ):
        for name, text in names.items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=kind, metavar=metavar, help=text)


def add_http_flags(parser, first):
    """Flags of the tree's own front end: its address, its users and its limits; `first` adds to the
    first group.
    """
    first("--host", default="127.0.0.1", metavar="H", help="IP address of HTTP (default 127.0.0.1)")
    first("--port", type=port, default=30000, metavar="P", help="port of HTTP; 0: any free one (default 30000)")
    first(
        "--api-key",
        default=os.environ.get("PITSTOP_API_KEY"),
        metavar="K",
        help="key that HTTP requests must have (default: PITSTOP_API_KEY of the environment)",
    )
    parser = parser.add_argument_group("HTTP")
    add = parser.add_argument
    add(
        "--admin-api-key",
        default=os.environ.get("PITSTOP_ADMIN_API_KEY"),
        metavar="K",
        help="key that calls for pause, weights and memory must have "
        "(default: PITSTOP_ADMIN_API_KEY of the environment)",
    )
    add("--insecure", action="store_true", help="let others reach HTTP without an API key")
    add(
        "--tool-call-parser",
        metavar="NAME",
        help="chats: format of the model's tool calls: hermes, llama3, mistral, ...; auto: as the chat template "
        "shows it (default: return calls as text)",
    )
    add(
        "--reasoning-parser",
        metavar="NAME",
        help="chats: format of the model's thinking: qwen3, deepseek-r1, glm45, ..., or two markers with a space "
        "between; auto: as the chat template shows it (default: return thinking as text)",
    )
    add(
        "--return-routed-experts",
        choices=("npy", "envelope"),
        help="models of experts: completions, chats and /inference/v1/generate always return routed experts, as with "
        "vLLM's --enable-return-routed-experts. npy: vLLM's form; envelope: prime-rl's form",
    )
    add(
        "--return-sampling-mask",
        action="store_true",
        help="/inference/v1/generate always returns the sampling mask of requests that truncate, as with vLLM's flag",
    )
    add("--cors-origin", metavar="O", help="origin whose pages may call HTTP from a browser")
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that requests without a key may use, besides IP addresses and localhost; "
        ".NAME: all names below it; '*': any; may be given again",
    )
    add(
        "--incremental-streaming-output",
        action="store_true",
        help="/generate streams only new output by default, not all output so far",
    )
    add_http_limits(parser)
    add("--no-http", action="store_true", help="open no HTTP port; serve the bus alone")


def door(text):
    """Parses HOST:PORT, which the process checks further."""
    host, _, port_text = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"takes HOST:PORT with a numeric address, not '{text}'")
    port(port_text)
    return text


def add_tcp_doors(parser):
    """Flags for the doors of other machines."""
    parser = parser.add_argument_group("doors for other machines")
    add = parser.add_argument
    add(
        "--tcp-door",
        type=door,
        metavar="H:P",
        help="HOST:PORT at which the data door also accepts other machines; port 0: any free one",
    )
    add(
        "--admin-tcp-door",
        type=door,
        metavar="H:P",
        help="HOST:PORT at which the admin door also accepts other machines; port 0: any free one",
    )
    add("--door-keys", metavar="DIR", help="directory of the keys of clients and nodes, made by keygen")


def node_door(text):
    """Parses HOST:PORT that other machines know, so the port is never a free one."""
    if door(text).endswith(":0"):
        raise argparse.ArgumentTypeError(f"takes a port that the other machines know, not '{text}'")
    return text


def add_node_flags(parser):
    """Flags that spread a replica over several machines."""
    parser = parser.add_argument_group("a replica over several machines")
    add = parser.add_argument
    add_count(parser, "--nodes", "number of machines that share a replica's ranks equally (default 1)", default=1)
    add(
        "--node-rank",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="this machine's number; 0: the head, which has the doors; machines above 0 have only workers (default 0)",
    )
    add(
        "--head",
        type=node_door,
        metavar="H:P",
        help="HOST:PORT at which the head accepts the other machines; the same value on all machines",
    )
    add("--node-key", metavar="FILE", help="file with this machine's key, made by keygen --node; not on the head")
