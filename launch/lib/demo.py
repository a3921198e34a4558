"""demo tells a story whose author changes in mid-sentence, and shows how long the swap took.

One request streams from the serving model. Meanwhile the other bundled model of the same shape is staged, verified
and swapped in. Colours show the spans of the request's output: which words came from which weights. Plain text if
there is no terminal (or NO_COLOR is set). The demo starts a tree of its own; a tree named by --run-dir gets its
weights back at the end.
"""

import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time

import programs
import registry
import talk
from problem import EXIT_PLACE, EXIT_USAGE, Problem
from serve import Served, say
from tree import Asked, Signals

PROMPT = "Once upon a time, there was a little dragon who"
SWAP_AFTER_TOKENS = 24  # of output; the swap takes effect some tokens later
TOKENS_AFTER_SWAP = 100  # the story ends with the first sentence end after these
TYPING_S = 0.018  # per token on a terminal: slower than the engine, so that one can read along
INDENT = "  "

# Digests of the bundled models. They identify the serving model, whose label may be anything. A test compares them with
# the trees'.
DIGESTS = {
    "stories": "fdafc7b3",
    "bard": "9b3f4ea4",
    "stories-moe": "8fd386a8",
    "bard-moe": "db87884a",
    "stories-hybrid": "c72994d0",
    "bard-hybrid": "3524663f",
}
OTHERS = {"stories": "bard", "stories-moe": "bard-moe", "stories-hybrid": "bard-hybrid"}  # of the same shape
OTHERS |= {other: name for name, other in OTHERS.items()}
ROLES = ("user", "assistant", "system")  # lines of a chat template, between its special tokens

BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"
COLOURS = ("\033[38;5;80m", "\033[38;5;213m", "\033[38;5;221m")  # by version: teal, pink, gold


class Paint:
    """Adds colours on a terminal, nothing elsewhere."""

    def __init__(self, out):
        self.is_on = out.isatty() and "NO_COLOR" not in os.environ
        self.has_blocks = self.is_on and (out.encoding or "").lower().startswith("utf")

    def __call__(self, style, text):
        return f"{style}{text}{PLAIN}" if self.is_on and text else text


class CleanText:
    """Leaves out the lines of a chat template: a turn's role, and all of a user's turn."""

    def __init__(self):
        self._line = ""  # the line's beginning, as long as the line may be a role
        self._is_at_start = False
        self._is_in_turn = False

    def take(self, text):
        shown = ""
        for char in text:
            if char == "\n":
                shown += self._end_line()
            elif self._is_in_turn or (self._is_at_start and any(role.startswith(self._line + char) for role in ROLES)):
                self._line += char
            else:
                shown += self._line + char
                self._line = ""
                self._is_at_start = False
        return shown

    def _end_line(self):
        line, self._line = self._line, ""
        was_whole, self._is_at_start = self._is_at_start, True
        if was_whole and line in ROLES:
            self._is_in_turn = line != "assistant"
            return ""
        return "" if self._is_in_turn else line + "\n"


class Page:
    """Writes text that arrives in pieces, wrapped at words, each piece in its style."""

    def __init__(self, out, paint):
        self.out = out
        self.paint = paint
        self.width = min(shutil.get_terminal_size((88, 24)).columns - len(INDENT), 88)
        self.column = 0
        self.word = []  # (style, char) of a word that is not complete yet
        self.style = ""

    def write(self, style, text):
        for char in text:
            if char in " \n":
                self._end_word()
                if char == "\n":
                    self._break()
                elif 0 < self.column < self.width:
                    self._put(style, char)
            else:
                self.word.append((style, char))

    def end(self):
        self._end_word()
        self._set_style("")
        self._break()

    def _end_word(self):
        if self.column + len(self.word) > self.width and self.column > 0:
            self._break()
        for style, char in self.word:
            self._put(style, char)
        self.word = []
        self.out.flush()

    def _put(self, style, char):
        if self.column == 0:
            self.out.write(INDENT)
        self._set_style(style)
        self.out.write(char)
        self.column += 1

    def _set_style(self, style):
        if self.paint.is_on and style != self.style:
            self.out.write(PLAIN + style)
            self.style = style

    def _break(self):
        self.out.write("\n")
        self.out.flush()
        self.column = 0


class Version:
    """One weight version of the story."""

    def __init__(self, span, name, style):
        self.epoch = span["epoch"]
        self.digest = span.get("digest", "")
        self.name = name
        self.style = style
        self.tokens = 0


class Story:
    """Runs one request, and the update that is sent while it streams."""

    def __init__(self, run_dir, other):
        command = [programs.program("cli"), "generate", f"--run-dir={run_dir}", "--json"]
        command += ["--temperature=0.8", "--top-k=40", "--seed=11", "--ignore-eos"]
        command += [f"--update-to={programs.model_dir(other)}", f"--update-label={other}"]
        command += [f"--update-after={SWAP_AFTER_TOKENS}", "--", PROMPT]
        self.client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.update = {}

    def chunks(self):
        """Yields each chunk with the time of its arrival, which a slow reader does not change."""
        arrived = queue.SimpleQueue()  # bounded by the length of the story

        def read():
            for text in self.client.stdout:
                arrived.put((time.monotonic(), text))
            arrived.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while (each := arrived.get()) is not None:
            came_at, text = each
            line = json.loads(text)
            if "update" in line:
                self.update = line["update"]
            else:
                yield came_at, line
        reader.join()
        self.client.wait()

    def end(self):
        """Ends the request; the output so far stays."""
        self.client.send_signal(signal.SIGINT)


def _bar(versions, paint, width):
    total = sum(version.tokens for version in versions)
    pieces = []
    for version in versions:
        length = max(1, round(width * version.tokens / total))
        pieces.append(paint(version.style, ("█" if paint.has_blocks else "=") * length))
    return (paint(BOLD, "▐▌") if paint.has_blocks else "|").join(pieces)


def _summary(versions, gaps, stop, reply, paint, out, width):
    line = lambda text="": print(INDENT + text if text else "", file=out)
    line()
    line(_bar(versions, paint, width - 2))
    for version in versions:
        text = f"version {version.epoch}  {version.name:<14} {version.tokens:>4} tokens   digest {version.digest[:16]}"
        line(paint(version.style, text))
    line()
    ranks = [rank for replica in reply["replicas"] for rank in replica["ranks"]]
    swap_us = max(rank["commit_s"] for rank in ranks) * 1e6
    usual = statistics.median(gaps)
    swap = f"{swap_us / 1e3:.2f} ms" if swap_us >= 10 else "less than 0.01 ms"
    before, after = versions[0].name, versions[1].name
    line(paint(BOLD, f"The stop took {stop * 1e3:.1f} ms, from the last token of {before} to the first of {after}."))
    facts = (
        f"Between two tokens {usual * 1e3:.1f} ms are usual; the swap itself, between two forward "
        f"passes, took {swap}. "
        f"{reply['bytes'] / 2**20:.1f} MiB were staged, checked and digested in the background in "
        f"{(reply['receive_s'] + reply['verify_s']) * 1e3:.1f} ms while the story went on. The request "
        "kept its place and its memory; no token was lost, and each one says whose it is."
    )
    for text in textwrap.wrap(facts, width):
        line(paint(DIM, text))


def tell(run_dir, model, other, out=sys.stdout):
    """Streams the story, swaps `other` in, and shows the spans."""
    paint = Paint(out)
    page = Page(out, paint)
    versions, gaps, last_at, stop = [], [], None, 0.0
    story = Story(run_dir, other)
    has_ended = False
    clean = CleanText()
    page.write(DIM, PROMPT)
    for came_at, chunk in story.chunks():
        if has_ended:
            continue  # the engine was faster than the page; the answer to the update may still come
        if last_at is not None:
            gaps.append(came_at - last_at)
        last_at = came_at
        for span in chunk.get("spans", ()):
            if not versions or versions[-1].epoch != span["epoch"]:
                name = model if not versions else other
                stop = gaps[-1] if versions else 0.0
                versions.append(Version(span, name, COLOURS[len(versions) % len(COLOURS)]))
                if not paint.is_on:
                    page.write("", f" [{versions[-1].name}:]")
            versions[-1].tokens += span["tokens"]
        text = clean.take(chunk.get("text", ""))
        page.write(versions[-1].style if versions else DIM, text)
        if paint.is_on:
            time.sleep(TYPING_S * len(chunk.get("tokens", ())))
        is_long = len(versions) > 1 and versions[-1].tokens > TOKENS_AFTER_SWAP
        if is_long and text.rstrip().endswith((".", "!", "?")) and not chunk.get("finish"):
            story.end()
            has_ended = True
    page.end()
    reply = story.update
    if not reply.get("ok"):
        raise Problem(f"the update failed: {reply.get('message', 'no answer')}", EXIT_PLACE)
    if len(versions) < 2:
        raise Problem("the story ended before the swap; nothing to show", EXIT_PLACE)
    _summary(versions, gaps, stop, reply, paint, out, page.width)


def _cli(run_dir, *arguments):
    """Returns the answer of pitstop_cli. Problem: the command fails."""
    command = [programs.program("cli"), arguments[0], f"--run-dir={run_dir}", *arguments[1:], "--json"]
    asked = subprocess.run(command, capture_output=True, text=True)
    if asked.returncode != 0:
        raise Problem(asked.stderr.strip(), EXIT_PLACE)
    return json.loads(asked.stdout)


def _serving(run_dir):
    """Returns (the serving bundled model, found by its digest; its label). Problem: another model serves."""
    replica = _cli(run_dir, "status")["replicas"][0]
    for name, digest in DIGESTS.items():
        if replica.get("digest", "").startswith(digest):
            return name, replica.get("label", "")
    raise Problem(
        "the tree serves weights that are not a bundled model's: the demo swaps between those, and leaves others alone",
        EXIT_PLACE,
    )


def _tell_and_restore(run_dir):
    serving, label = _serving(run_dir)
    try:
        tell(run_dir, serving, OTHERS[serving])
    finally:
        if _serving(run_dir)[0] != serving:
            _cli(run_dir, "update", programs.model_dir(serving), *([f"--label={label}"] if label else []))
            print(f"{INDENT}The tree serves {serving} again.")


def demo(options):
    sys.stdout.reconfigure(errors="replace")  # replaces letters that the terminal does not have
    if options.run_dir:
        if given := talk.flags_of_a_tree(options):
            raise Problem(f"--run-dir and {', '.join(given)}: the tree runs already", EXIT_USAGE)
        tree = registry.require(options.run_dir, programs.COMMAND)
        say(f"demo: {tree}")
        _tell_and_restore(tree.run_dir)
        return 0
    served = Served(options, Signals())
    try:
        served.start()
        _tell_and_restore(served.run_dir.path)
    except Asked:
        return 128 + signal.SIGINT
    finally:
        served.close()
    return 0
