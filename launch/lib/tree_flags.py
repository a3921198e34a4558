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
        help="a checkpoint directory, a bundled model (stories, the default, bard, stories-moe, bard-moe, stories-hybrid, "
        "bard-hybrid), or org/name of the Hugging Face cache, into which it is downloaded if huggingface_hub is installed",
    )
    add_count(parser, "--tp", "tensor-parallel ranks per replica", default=1)
    add_count(parser, "--dp", "data-parallel replicas", default=1)
    add_count(
        parser,
        "--max-total-tokens",
        "tokens in the KV memory of a replica (default: those that fit into a quarter of the memory)",
    )
    return add


def add_limit_flags(parser):
    """Flags of concurrency: how much runs at once, and whose request is next."""
    parser = parser.add_argument_group("how much at once")
    add = parser.add_argument
    add_count(parser, "--page-size", "tokens per page of KV")
    add_count(parser, "--chunked-prefill-size", "maximum number of tokens of a step")
    add_count(parser, "--max-running-requests", "maximum number of requests that run at once")
    add_count(parser, "--max-queued-requests", "maximum number of requests that wait")
    add_count(parser, "--max-adapters", "maximum number of adapters (LoRA) that are loaded")
    add_count(parser, "--max-adapter-rank", "the highest rank of an adapter")
    add_count(
        parser,
        "--adapter-memory",
        "bytes of each worker's memory for adapters; the least recently used of the others go to files (default: no limit)",
    )
    add_count(
        parser,
        "--state-checkpoints",
        "of a hybrid model: how many copies of requests' recurrent states are kept, from which later requests continue "
        "(default: by the memory of the machine, 8 to 520)",
    )
    add_count(
        parser,
        "--state-checkpoint-tokens",
        "of a hybrid model: a long prompt keeps a copy every N tokens, while places are free (default 1024)",
    )
    add(
        "--speculate",
        type=drafts,
        default="off",
        metavar="off|auto|K",
        help="the most drafts per row that a pass verifies, guessed from prompts and outputs; auto: the number "
        "that gives the most tokens per second; tokens and logprobs are the same bits with any value (default off)",
    )
    parser.add_argument(
        "--draft-memory",
        type=whole_number(0, DRAFT_MEMORY_MAX),
        metavar="BYTES",
        help="with --speculate: memory for ended outputs, from which drafts are made (default 64 MiB)",
    )
    parser.add_argument(
        "--session-memory",
        type=share,
        metavar="SHARE",
        help="the share of the KV pool that sessions hold between their turns (default 0.5)",
    )
    add(
        "--scheduling",
        choices=("fair", "fcfs"),
        help="the order of requests: fair (clients take turns) or fcfs (by arrival) (default fair)",
    )
    add(
        "--served-model-name",
        metavar="S",
        nargs="+",
        action="extend",
        help="the model's names; answers have the first; default: its directory",
    )


def add_engine_flags(parser):
    """Flags of the computation: how, on which device, and from which weights."""
    parser = parser.add_argument_group("the engine ('on a GPU': no effect on CPUs)")
    add = parser.add_argument
    add("--compute", choices=("bf16", "fp32"), help="precision of activations and KV")
    add_count(
        parser,
        "--ep",
        "of a model of experts: its experts are divided over N groups of --tp / N ranks each; the ranks of a group split each "
        "of its experts (default 1: all ranks split every expert)",
    )
    add(
        "--expert-weights",
        choices=("fp32", "bf16"),
        help="of a model of experts: bf16 rounds the weights of a token's experts before the sum, as transformers does for "
        "Qwen (default fp32, as trainers and the other engines compute)",
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
        help="on a GPU: the part of its free memory for weights, activations and KV (default 0.9)",
    )
    add(
        "--update-mode",
        choices=("auto", "staged", "host", "lend", "direct"),
        help="on a GPU: staged leaves room for a second copy of the weights; with the others KV has that room: host stages "
        "in the host's memory and uploads at the commit, lend stages in the memory of KV while nothing is generated, "
        "direct overwrites the weights that serve; auto: the first that fits (default auto)",
    )
    add(
        "--all-reduce",
        choices=("auto", "own", "nccl"),
        help="on GPUs with --tp: what sums activations over the ranks: own, kernels that read each other's memory; "
        "nccl, NCCL wherever a step is not a graph, refused with --device cpu, --tp 1 and --deterministic; auto: NCCL "
        "from the size at which the start measured it faster; with --deterministic own (default auto)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="on a GPU: no result depends on the rest of the batch (on a CPU none ever does)",
    )
    add(
        "--no-graphs",
        action="store_true",
        help="on a GPU: launch every kernel of a step by itself, not small steps as CUDA graphs; the results are the same",
    )
    add(
        "--load-format",
        choices=("auto", "null"),
        help="null: no weights and no arithmetic, to measure everything else",
    )
    add(
        "--ignore-extra-tensors",
        action="store_true",
        help="skip tensors of a checkpoint or an update that the model does not have",
    )
    add_count(parser, "--threads", "threads of each worker; default: the cores divided by the number of workers")


def add_patience_flags(parser):
    """Flags of the start and the run: logs, and time limits."""
    parser = parser.add_argument_group("logs, starts and deadlines")
    add = parser.add_argument
    add(
        "--log-level",
        default="warning",
        choices=("trace", "debug", "info", "warning", "error", "off"),
        help="what the processes write to standard error",
    )
    add(
        "--stall-timeout",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds a process may be stopped (SIGSTOP) before the tree is ended (default 30)",
    )
    add(
        "--stage-share",
        type=share,
        metavar="X",
        help="the part of a core's time that staging weights may take while passes run (default 0.25)",
    )
    add(
        "--step-timeout",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds a forward pass may take before the tree is ended (default 300)",
    )
    add(
        "--tuning-dir",
        metavar="DIR",
        help="on a GPU: the directory that keeps the fastest algorithms, timed at the first start; "
        "none: time nothing (default ~/.cache/pitstop)",
    )
    add(
        "--wait-for-initial-weights",
        "--checkpoint-engine-wait-weights-before-ready",
        action="store_true",
        help="load no weights: the tree answers from the start, and is ready after the first complete update",
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
    first("--host", default="127.0.0.1", metavar="H", help="address of HTTP (default 127.0.0.1)")
    first("--port", type=port, default=30000, metavar="P", help="port of HTTP (default 30000)")
    first(
        "--api-key",
        default=os.environ.get("PITSTOP_API_KEY"),
        metavar="K",
        help="the key that HTTP requests must have; default: PITSTOP_API_KEY of the environment",
    )
    parser = parser.add_argument_group("HTTP")
    add = parser.add_argument
    add(
        "--admin-api-key",
        default=os.environ.get("PITSTOP_ADMIN_API_KEY"),
        metavar="K",
        help="the key that calls for pause, weights and memory must have; default: PITSTOP_ADMIN_API_KEY",
    )
    add("--insecure", action="store_true", help="let others reach HTTP without an API key")
    add(
        "--tool-call-parser",
        metavar="NAME",
        help="chats: the format of the model's tool calls (hermes, llama3, mistral, ...; auto: as the chat template "
        "shows it); without it, calls are returned as text",
    )
    add(
        "--reasoning-parser",
        metavar="NAME",
        help="chats: the format of the model's thinking (qwen3, deepseek-r1, glm45, ...; auto: as the chat template "
        "shows it; or two markers with a space between); without it, thinking is returned as text",
    )
    add(
        "--return-routed-experts",
        choices=("npy", "envelope"),
        help="a model of experts: completions, chats and /inference/v1/generate return routed experts without a field, "
        "as with vLLM's --enable-return-routed-experts; npy: vLLM's form; envelope: prime-rl's",
    )
    add(
        "--return-sampling-mask",
        action="store_true",
        help="/inference/v1/generate returns the sampling mask of each request that truncates, as with vLLM's flag of this "
        "name",
    )
    add("--cors-origin", metavar="O", help="pages of this origin may call HTTP from a browser")
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
    add("--no-http", action="store_true", help="no HTTP: the bus alone")


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
    add("--tcp-door", type=door, metavar="H:P", help="also open the data door to other machines at this address")
    add("--admin-tcp-door", type=door, metavar="H:P", help="also open the admin door to other machines at this address")
    add(
        "--door-keys", metavar="DIR", help="the directory with the keys of these doors and of the nodes, made by keygen"
    )


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
        help="this machine's number (default 0, the head, which has the doors; the others have only workers)",
    )
    add(
        "--head",
        type=node_door,
        metavar="H:P",
        help="the address at which the head accepts the other machines, the same on all",
    )
    add("--node-key", metavar="FILE", help="on machines other than the head: this machine's key, from keygen --node")
