"""demo tells a story that changes its author in mid-sentence, and what the stop cost.

One request streams from the model that serves; while it does, the other bundled model is staged,
verified and swapped in. The colours are the spans of the request's own output: which words came from
which weights. Plain text where there is no terminal (or NO_COLOR is set).
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time

from problem import EXIT_PLACE, Problem
import programs
import registry

PROMPT = "Once upon a time, there was a little dragon who"
SWAP_AFTER_TOKENS = 24  # of output; the swap itself comes while more are being sampled
TOKENS_AFTER_SWAP = 100  # then the next sentence is the last
TYPING_S = 0.018  # per token on a terminal: the engine is faster than anybody reads
INDENT = "  "

BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"
COLOURS = ("\033[38;5;80m", "\033[38;5;213m", "\033[38;5;221m")  # by version: teal, pink, gold


class Paint:
    """Puts colours on a terminal, nothing elsewhere."""

    def __init__(self, out):
        self.is_on = out.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, style, text):
        return f"{style}{text}{PLAIN}" if self.is_on and text else text


class Page:
    """Writes text that arrives in pieces, wrapped at words, each piece in its style."""

    def __init__(self, out, paint):
        self.out = out
        self.paint = paint
        self.width = min(shutil.get_terminal_size((88, 24)).columns - len(INDENT), 88)
        self.column = 0
        self.word = []  # (style, char) of a word whose end is not there yet
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
    """Holds one weight version of the story."""

    def __init__(self, span, name, style):
        self.epoch = span["epoch"]
        self.digest = span.get("digest", "")
        self.name = span.get("label") or name
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
        """Yields each with the time it came."""
        for text in self.client.stdout:
            line = json.loads(text)
            if "update" in line:
                self.update = line["update"]
            else:
                yield time.monotonic(), line
        self.client.wait()

    def end(self):
        """Ends the request: what was sampled so far stays."""
        self.client.send_signal(signal.SIGINT)


def _bar(versions, paint, width):
    total = sum(version.tokens for version in versions)
    pieces = []
    for version in versions:
        length = max(1, round(width * version.tokens / total))
        pieces.append(paint(version.style, ("█" if paint.is_on else "=") * length))
    return (paint(BOLD, "▐▌") if paint.is_on else "|").join(pieces)


def _summary(versions, gaps, stop, reply, paint, out, width):
    line = lambda text="": print(INDENT + text if text else "", file=out)
    line()
    line(_bar(versions, paint, width - 2))
    for version in versions:
        text = f"version {version.epoch}  {version.name:<8} {version.tokens:>4} tokens   digest {version.digest[:16]}"
        line(paint(version.style, text))
    line()
    ranks = [rank for replica in reply["replicas"] for rank in replica["ranks"]]
    swap_us = max(rank["commit_s"] for rank in ranks) * 1e6
    usual = statistics.median(gaps)
    swap = f"{swap_us:.0f} µs" if swap_us >= 1 else "less than a µs"
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
    page.write(DIM, PROMPT)
    for came_at, chunk in story.chunks():
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
        text = chunk.get("text", "")
        page.write(versions[-1].style if versions else DIM, text)
        if paint.is_on:
            time.sleep(TYPING_S * len(chunk.get("tokens", ())))
        is_long = len(versions) > 1 and versions[-1].tokens > TOKENS_AFTER_SWAP
        if is_long and text.rstrip().endswith((".", "!", "?")) and not chunk.get("finish"):
            story.end()
    page.end()
    reply = story.update
    if not reply.get("ok"):
        raise Problem(f"the update failed: {reply.get('message', 'no answer')}", EXIT_PLACE)
    if len(versions) < 2:
        raise Problem("the story ended before the swap; nothing to show", EXIT_PLACE)
    _summary(versions, gaps, stop, reply, paint, out, page.width)


def demo(options):
    run_dir = registry.require(options.run_dir, programs.COMMAND).run_dir
    asked = subprocess.run(
        [programs.program("cli"), "status", f"--run-dir={run_dir}", "--json"],
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        raise Problem(asked.stderr.strip(), EXIT_PLACE)
    replica = json.loads(asked.stdout)["replicas"][0]
    serving = replica.get("label") or json.loads(asked.stdout)["model"]
    tell(run_dir, serving, "stories" if serving == "bard" else "bard")
    return 0
