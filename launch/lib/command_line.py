"""Defines the commands and their flags. Each command's work is in a module of its own."""

import argparse
import difflib
import re
import sys

import demo
import programs
import serve
import talk
from client_flags import add_client_flags
from problem import EXIT_OK, EXIT_PLACE, EXIT_USAGE, Problem
from tree_flags import add_http_flags, add_node_flags, add_tcp_doors, add_tree_flags, seconds

# argparse's error for an unknown command: the word, and all commands.
NO_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(.*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Prints one line per problem; prints the usage only on request."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)  # an abbreviation could change its meaning in a later version

    def error(self, message):
        if unknown := NO_COMMAND.match(message):
            near = difflib.get_close_matches(unknown[1], unknown[2].replace("'", "").split(", "), 1)
            hint = f"did you mean {near[0]}? " if near else ""
            self.exit(EXIT_USAGE, f"{self.prog}: no command '{unknown[1]}'; {hint}{self.prog} help lists them\n")
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (--help lists the flags)\n")


def add_place(parser):
    """Adds the flags that name the running tree a command is for."""
    add = parser.add_argument
    add("--run-dir", metavar="DIR", help="run directory of the tree, if several trees run")
    add("--tcp-door", metavar="H:P", help="data door of a tree on another machine, with --key")
    add("--admin-tcp-door", metavar="H:P", help="admin door of the same tree, for control commands")
    add("--key", metavar="FILE", help="a client's key file, for --tcp-door")


SERVE = "Serves a model over HTTP and over the bus, until Ctrl-C. docs/flags.md explains each flag."


def add_serve(commands):
    tree = commands.add_parser(
        "serve", help="start a tree and supervise it", description=SERVE, usage="pitstop serve [MODEL] [flags]"
    )
    tree.add_argument("checkpoint", nargs="?", metavar="MODEL", help="the same as --model")
    first = add_tree_flags(tree)
    add_http_flags(tree, first)
    first("--run-dir", metavar="DIR", help="directory of the tree's sockets (default: a new private one)")
    add_tcp_doors(tree)
    add_node_flags(tree)
    tree = tree.add_argument_group("restarts and shutdown")
    tree.add_argument(
        "--restart",
        action="store_true",
        help="when a process dies, start the tree again with the version that was committed last; "
        "if that version is lost, wait for another one",
    )
    tree.add_argument(
        "--keep-committed",
        metavar="DIR",
        help="write each committed version to this directory, so that a restart can load it; "
        "at most two versions are kept",
    )
    tree.add_argument(
        "--end-with-parent",
        action="store_true",
        help="end the tree when the thread that started this command ends; for a program's own tree",
    )
    tree.add_argument(
        "--progress",
        action="store_true",
        help="during the start, print a line on standard error for each process that is ready",
    )


def add_generate(commands, is_asked):
    """Adds `generate`; its flags of pitstop_cli are added only if the user asks for this command."""
    generate = commands.add_parser(
        "generate",
        help="stream the continuation of a prompt",
        usage="pitstop generate PROMPT [flags]",
        description="Uses the running tree. If none runs, or with --own, it starts one for this call, with the "
        "flags of serve.",
    )
    generate.add_argument("prompt", nargs="?", help="the text to continue; -: read it from standard input")
    generate.add_argument("--prompt-file", metavar="FILE", help="read the text to continue from this file")
    add_place(generate)
    if is_asked:
        add_client_flags(generate, "generate", talk.GENERATE_DEFAULTS)
    generate.add_argument("--own", action="store_true", help="start a tree for this call, even if one runs")
    before = set(generate._option_string_actions)
    add_tree_flags(generate)
    tree_flags = set(generate._option_string_actions) - before
    generate.set_defaults(tree_flags=tree_flags)


def add_talk(commands):
    """Adds the commands that query or control a running tree."""
    status = commands.add_parser("status", help="what a running tree is doing")
    add_place(status)
    status.add_argument("--json", action="store_true", help="print the whole answer as one JSON object")
    status.add_argument(
        "--timeout-s", type=seconds, default=5.0, metavar="S", help="seconds to wait for the answer (default 5)"
    )

    commands.add_parser("trees", help="this user's trees on this machine: model, port, directory, age")

    show = commands.add_parser(
        "demo",
        help="a story that changes its author in mid-sentence",
        usage="pitstop demo [--run-dir DIR] [flags]",
        description="Starts a tree of its own. With --run-dir it uses that tree, and restores its weights at the end.",
    )
    show.add_argument("--run-dir", metavar="DIR", help="run directory of a tree that serves a bundled model")
    tree_flags = set(show._option_string_actions)
    add_tree_flags(show)
    show.set_defaults(tree_flags=set(show._option_string_actions) - tree_flags)

    for name, meaning in talk.CONTROL.items():
        control = commands.add_parser(name, help=meaning, add_help=False)
        add_place(control)


def add_tools(commands):
    """Adds the commands that need no tree."""
    commands.add_parser("keygen", help="make the keys of the tcp doors", add_help=False)

    tokenize = commands.add_parser(
        "tokenize",
        help='JSON lines in ({"text": ...} or {"ids": [...]}), JSON lines out',
        description='{"text": ...} returns {"ids": [...], "text": decoded}; {"ids": [...]} decodes.',
    )
    tokenize.add_argument("--tokenizer", required=True, metavar="DIR", help="a directory with tokenizer.json")
    tokenize.add_argument("--add-special-tokens", action="store_true", help="add the model's special tokens")


def parser(arguments=()):
    """Returns the parser of these arguments. Problem: they name a command whose program is not built."""
    top = Parser(
        prog="pitstop",
        description="An LLM rollout engine whose weights may change while it generates.",
        epilog=f"{programs.COMMAND} COMMAND --help explains a command. Start with: {programs.COMMAND} demo",
    )
    top.add_argument("--version", action="version", version=f"pitstop {programs.version()}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("version", help="the version of pitstop")
    of_help = commands.add_parser("help", help="list the commands, or explain one")
    of_help.add_argument("topic", nargs="?", metavar="COMMAND")
    add_serve(commands)
    add_generate(commands, is_asked="generate" in arguments[:2])
    add_talk(commands)
    add_tools(commands)
    return top


def print_help(options):
    top = parser(options.arguments)
    commands = next(action for action in top._actions if action.choices).choices
    if options.topic is None:
        top.print_help()
    elif options.topic in talk.CONTROL or options.topic == "keygen":
        talk.print_help(options.topic)
    elif options.topic in commands:
        commands[options.topic].print_help()
    else:
        raise Problem(f"no command '{options.topic}'; there are {', '.join(commands)}", EXIT_USAGE)
    return EXIT_OK


def print_version(_options):
    print(f"pitstop {programs.version()}")
    return EXIT_OK


COMMANDS = {
    "help": print_help,
    "version": print_version,
    "serve": serve.serve,
    "generate": talk.generate,
    "status": talk.status,
    "trees": talk.trees,
    "demo": demo.demo,
    "keygen": talk.keygen,
    "tokenize": talk.tokenize,
    **dict.fromkeys(talk.CONTROL, talk.control),
}


def main(arguments):
    if not arguments:
        parser().print_help(sys.stderr)
        return EXIT_USAGE
    try:
        options, options.rest = parser(arguments).parse_known_args(arguments)
        options.arguments = arguments
        if options.rest and options.command not in (*talk.CONTROL, "keygen"):
            parser(arguments).parse_args(arguments)  # prints which argument is unknown
        return COMMANDS[options.command](options)
    except OSError as error:  # not handled by the command: the system ran out of space, memory or descriptors
        problem = Problem.of(arguments[0], error, EXIT_PLACE)
    except Problem as told:
        problem = told
    serve.say(str(problem))
    return problem.exit_code
