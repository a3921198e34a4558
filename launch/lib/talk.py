"""Runs commands on a tree through the built programs; finds the tree for them."""

import ctypes
import os
import signal
import subprocess
import sys

import programs
import registry
from problem import EXIT_OK, EXIT_USAGE, Problem
from serve import Served, say
from tree import Asked, Signals, exit_code_of

PR_SET_PDEATHSIG = 1
FAREWELL_S = 2.0  # time for a client to print its error after its tree has ended

# The launcher's own defaults of pitstop_cli's flags: (value, the flag's explanation).
GENERATE_DEFAULTS = {"max-new-tokens": ("200", "at most this many output tokens; -1: as many as fit (default 200)")}


def _run(command):
    """Replaces this program by the command."""
    sys.stdout.flush()
    os.execv(command[0], command)


PLACE_FLAGS = ("tcp_door", "admin_tcp_door", "key")


def _remote_flags(options):
    """Returns the flags of a tree on another machine, for pitstop_cli; none: the tree is on this machine."""
    given = [(name, getattr(options, name)) for name in PLACE_FLAGS]
    return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def _place_flags(options, is_told=False):
    """Returns the flags of the tree that a command is for; with is_told, prints which tree. Problem: none runs."""
    remote = _remote_flags(options)
    if remote:
        if is_told:
            say(f"{options.command}: the tree with the door {options.admin_tcp_door or options.tcp_door}")
        return remote + ([f"--run-dir={options.run_dir}"] if options.run_dir else [])
    tree = registry.require(options.run_dir, programs.COMMAND)
    if is_told:
        say(f"{options.command}: {tree}")
    return [f"--run-dir={tree.run_dir}"]


def _generate_command(options, place):
    return [programs.program("cli"), "generate", *place, *options.client_flags, "--", options.prompt]


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def flags_of_a_tree(options):
    """Returns the given flags that configure a tree's start, which a running tree cannot use."""
    names = options.arguments[: options.arguments.index("--")] if "--" in options.arguments else options.arguments
    typed = {argument.partition("=")[0] for argument in names}
    return sorted(typed & options.tree_flags)


def _refuse_flags_beside(options, tree):
    if given := flags_of_a_tree(options):
        raise Problem(
            f"{tree}: it runs already, and {', '.join(given)} would not change it. Leave them out, or start "
            "another tree for this call with --own",
            EXIT_USAGE,
        )


def _read_prompt(options):
    """Returns the prompt. Problem: there is none, or two."""
    if (options.prompt is None) == (options.prompt_file is None):
        raise Problem("generate takes one prompt: in quotes, - for standard input, or --prompt-file FILE", EXIT_USAGE)
    if options.prompt_file is not None:
        try:
            with open(options.prompt_file, encoding="utf-8") as file:
                options.prompt = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise Problem(f"--prompt-file {options.prompt_file}: {error}", EXIT_USAGE) from error
    elif options.prompt == "-":
        options.prompt = sys.stdin.read()


def generate(options):
    """Generates on the running tree if there is one, otherwise on a tree for this call."""
    _read_prompt(options)
    if options.own and (_remote_flags(options) or options.run_dir):
        raise Problem("--own starts a tree for this call; leave out --run-dir and the doors", EXIT_USAGE)
    is_remote = bool(_remote_flags(options))
    tree = None if options.own or is_remote else registry.find(options.run_dir)
    if is_remote or tree is not None:
        _refuse_flags_beside(options, tree or f"the tree with the door {options.tcp_door}")
        _run(_generate_command(options, _place_flags(options)))
    served = Served(options, Signals())
    try:
        return _generate_on(served, options)
    except Asked:
        return 128 + signal.SIGINT
    finally:
        served.close()


def _generate_on(served, options):
    served.start()
    client = subprocess.Popen(
        _generate_command(options, [f"--run-dir={served.run_dir.path}"]), preexec_fn=_die_with_parent
    )
    try:
        dead = served.watch(client)
        if dead is None:
            return client.returncode
        try:
            client.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            say("the client did not end with its tree")
        return exit_code_of(dead)
    finally:
        if client.poll() is None:
            client.terminate()
            client.wait()


def status(options):
    command = [programs.program("cli"), "status", *_place_flags(options)]
    _run([*command, f"--timeout-s={options.timeout_s:g}", *(["--json"] if options.json else [])])


def trees(_options):
    """Prints the running trees; trees of programs come last."""
    found = sorted(registry.running(), key=lambda tree: (tree.of_program != 0, tree.started))
    print("\n".join(tree.listed().strip() for tree in found) or "no tree runs")
    return EXIT_OK


# The admin door's commands, which `pitstop_cli` runs; their flags are passed on unchanged.
CONTROL = {
    "pause": "stop generating; requests wait (--mode abort, in_place, retract, wait)",
    "continue": "generate again",
    "abort": "end requests by their ids, or --all",
    "flush": "forget all cached prefixes",
    "update": "swap in a checkpoint, or a bundled model, while the tree generates",
    "push": "send a checkpoint from another process, over shared memory, as a checkpoint engine does",
    "stage": "load a new version without serving it, the first half of an update",
    "commit": "serve the staged version: all ranks swap at one step boundary",
    "drop": "discard the staged version",
    "rollback": "return to the previous version",
    "digests": "digest the resident weights",
    "label": "give the version that serves another label",
    "load-adapter": "load a LoRA adapter, or replace the one of this name, while the tree generates",
    "rollback-adapter": "return to the version before an adapter's last load",
    "unload-adapter": "unload an adapter: new requests cannot use it, open ones continue with it",
    "release": "give the memory of the weights or the KV cache back",
    "resume": "take released memory again",
    "shutdown": "end the tree",
}

CONTROL_VALUE_FLAGS = ("--label", "--kv-policy", "--epoch", "--digest", "--timeout-s", "--bucket-size", "--workers")


def print_help(command):
    _run([programs.program("cli"), command, "--help"])


def control(options):
    if "--help" in options.rest or "-h" in options.rest:
        _run([programs.program("cli"), options.command, "--help"])
    command = [programs.program("cli"), options.command, *_place_flags(options, options.command != "digests")]
    # The checkpoint may be a bundled model's name. A label may have the same name, and stays unchanged.
    names_model = options.command in ("update", "stage", "push")
    for before, argument in zip(["", *options.rest], options.rest):
        is_value = before in CONTROL_VALUE_FLAGS
        if names_model and not is_value and (programs.MODELS / argument).is_dir():
            argument = str(programs.MODELS / argument)
        command.append(argument)
    _run(command)


def keygen(options):
    _run([programs.program("cli"), "keygen", *options.rest])


def tokenize(options):
    command = [programs.program("tokenize"), f"--tokenizer={options.tokenizer}"]
    _run(command + (["--add-special-tokens"] if options.add_special_tokens else []))
