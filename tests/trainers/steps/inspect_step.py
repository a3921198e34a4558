"""inspect-ai: one evaluation before an update, and one after it. The model is told to call a tool, and continues after
the tool's result.

No line of inspect-ai is replaced. Prints the first calls' arguments, the texts, the scores, and the texts'
log-probabilities.
"""

import json
import os
import sys
import tempfile
from typing import Literal

import requests
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, GenerateConfig
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import ToolFunction, tool

PROMPTS = ("Once upon a time", "One day, a dog")


@tool
def weather():
    async def execute(place: Literal["Paris", "Rome"], days: Literal[1, 2, 3]):
        """Says what the weather will be.

        Args:
            place: Where.
            days: For how many days.
        """
        return f"sunny for {days} days"

    return execute


@scorer(metrics=[mean()])
def short_words():
    async def score(state, target):
        words = state.output.completion.split()
        return Score(value=sum(len(word) < 5 for word in words) / max(len(words), 1))

    return score


@solver
def forget_tools():
    async def solve(state, generate):
        state.tools, state.tool_choice = [], "none"
        return state

    return solve


def evaluate(url):
    task = Task(
        dataset=[Sample(input=prompt, target="") for prompt in PROMPTS],
        solver=[
            use_tools(weather(), tool_choice=ToolFunction("weather")),
            generate(tool_calls="single", max_tokens=200, temperature=1.0, seed=3),
            forget_tools(),
            generate(max_tokens=12, temperature=0.0, logprobs=True, top_logprobs=2),
        ],
        scorer=short_words(),
        config=GenerateConfig(max_connections=2),
    )
    told = []
    with tempfile.TemporaryDirectory() as directory:
        (log,) = eval(
            task, model="openai-api/pitstop/stories", model_base_url=f"{url}/v1", log_dir=directory, display="none"
        )
        if log.status != "success":
            raise RuntimeError(str(log.error))
        for sample in log.samples:
            calls = [
                (call.function, call.arguments)
                for message in sample.messages
                if isinstance(message, ChatMessageAssistant)
                for call in message.tool_calls or ()
            ]
            results = [message.text for message in sample.messages if message.role == "tool"]
            logprobs = [each.logprob for each in sample.output.choices[0].logprobs.content]
            told.append(
                {
                    "calls": calls,
                    "results": results,
                    "text": sample.output.completion,
                    "score": sample.scores["short_words"].value,
                    "logprobs": logprobs,
                }
            )
    return told


def main(url, other):
    os.environ["PITSTOP_API_KEY"] = "any"
    said = [evaluate(url)]
    requests.post(f"{url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
    requests.post(f"{url}/update_weights_from_disk", json={"model_path": other}, timeout=60).raise_for_status()
    requests.post(f"{url}/continue_generation", json={}, timeout=60).raise_for_status()
    said.append(evaluate(url))
    print(json.dumps(said))


main(*sys.argv[1:3])
