"""The flags of a command of pitstop_cli, which the launcher passes on unchanged. The program's own --help lists them, so
that the launcher needs no list of its own."""

import argparse
import re
import subprocess

import programs
from problem import EXIT_PLACE, Problem

# A line of the program's --help: the flag, the placeholder of its value unless it is a switch, the explanation.
LINE = re.compile(r"^  --([\w-]+)(?: ([A-Z:]+)(?= ))? +(\S.*)$", re.MULTILINE)


class _PassOn(argparse.Action):
    """Appends the flag to options.client_flags, as it was typed."""

    def __call__(self, parser, namespace, value, option_string=None):
        flag = option_string if self.nargs == 0 else f"{option_string}={value}"
        namespace.client_flags = [*namespace.client_flags, flag]


def add_client_flags(parser, command, defaults):
    """Adds the flags of pitstop_cli's command that the parser does not have yet. `defaults` has the launcher's own
    default values, with their explanations. Problem: the program is not built."""
    asked = [programs.program("cli"), command, "--help"]
    told = subprocess.run(asked, capture_output=True, text=True)
    if told.returncode != 0:
        raise Problem(f"{' '.join(asked)} failed: {told.stderr.strip()}", EXIT_PLACE)
    parser.set_defaults(client_flags=[f"--{name}={value}" for name, (value, _) in defaults.items()])
    for name, placeholder, meaning in LINE.findall(told.stdout):
        if f"--{name}" in parser._option_string_actions:
            continue
        meaning = defaults[name][1] if name in defaults else meaning
        value = {"metavar": placeholder} if placeholder else {"nargs": 0}
        parser.add_argument(f"--{name}", action=_PassOn, dest="client_flags", help=meaning.replace("%", "%%"), **value)
