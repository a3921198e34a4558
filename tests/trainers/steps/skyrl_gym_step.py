"""SkyRL's agents: SkyRLGymGenerator with its RemoteInferenceClient rolls out two environments of skyrl-gym, before an
update and after it. gsm8k_multi_turn rewards each turn; text2sql runs the model's SQL and tells it the result.

A regular expression makes the model write answers that these environments can score. Prints the trajectories of two
rollouts of each version. With each turn comes what the tree itself answers to the same ids (/generate).

Replacements of Python 3.12, by line:
"""

import asyncio
import functools
import json
import pathlib
import sqlite3
import sys
import tempfile
import typing

import requests
import typing_extensions
from transformers import AutoTokenizer

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # shim: pydantic requires this before Python 3.12

from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train.config import GeneratorConfig, SamplingParams, SkyRLGymConfig
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl_gym.envs.sql.env import Text2SQLEnvConfig

MAX_TURNS = 3
NUM_TOKENS = 80
DATABASE = "animals"
QUESTIONS = ("How many legs has a dog?", "Once upon a time", "The sun was")
SQL = r"SELECT (min|max|sum)\(legs\) FROM animals"
ACTIONS = {
    "gsm8k_multi_turn": r"[a-z ]{6}#### [0-9]",
    # The first letter of its thought decides whether the agent asks or answers.
    "text2sql": (
        rf"(<think>[n-z ][a-z ]{{2}}</think><sql>{SQL}</sql>|"
        rf"<think>[a-m][a-z ]{{2}}</think><solution>{SQL}</solution>)"
    ),
}


def make_database(directory):
    path = directory / "bird" / "train" / "train_databases" / DATABASE / f"{DATABASE}.sqlite"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE animals (name TEXT, legs INTEGER)")
    connection.executemany("INSERT INTO animals VALUES (?, ?)", [("dog", 4), ("bird", 2), ("fish", 0)])
    connection.commit()
    connection.close()


def tasks(environment):
    """(question, the environment's extras) of each trajectory."""
    if environment == "gsm8k_multi_turn":
        return [(QUESTIONS[0], {"reward_spec": {"ground_truth": str(digit)}}) for digit in range(10)]
    return [
        (question, {"reward_spec": {"ground_truth": truth}, "db_id": DATABASE, "data": "bird"})
        for question in QUESTIONS
        for truth in ("SELECT sum(legs) FROM animals", "SELECT 4")
    ]


def turns_of(prompt, response, mask):
    """(the ids before it, where it begins, where it ends) of each turn."""
    found, begin = [], 0
    while begin < len(mask):
        end = next((at for at in range(begin, len(mask)) if mask[at] != mask[begin]), len(mask))
        if mask[begin]:
            found.append((prompt + response[:begin], begin, end))
        begin = end
    return found


@functools.cache  # cleared at the update
def ask(url, ids, environment):
    params = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "regex": ACTIONS[environment]}
    body = {"input_ids": [*ids], "sampling_params": params, "return_logprob": True, "logprobs_mode": "raw"}
    answer = requests.post(f"{url}/generate", json=body, timeout=60)
    answer.raise_for_status()
    logprobs = answer.json()["meta_info"]["output_token_logprobs"]
    return [each[1] for each in logprobs], [each[0] for each in logprobs]


async def roll_out(url, client, tokenizer, directory, environment):
    params = SamplingParams(
        max_generate_length=NUM_TOKENS,
        temperature=0.0,
        logprobs=1,
        additional_kwargs={"structured_outputs": {"regex": ACTIONS[environment]}},
    )
    generator = SkyRLGymGenerator(
        GeneratorConfig(max_turns=MAX_TURNS, max_input_length=1500, sampling_params=params),
        SkyRLGymConfig(text2sql=Text2SQLEnvConfig(db_path=str(directory))),
        client,
        tokenizer,
    )
    asked = tasks(environment)
    batch = {
        "prompts": [[{"role": "user", "content": question}] for question, _ in asked],
        "env_classes": [environment] * len(asked),
        "env_extras": [extras for _, extras in asked],
        "sampling_params": get_sampling_params_for_backend("vllm", params),
        "trajectory_ids": [TrajectoryID(str(index), 0) for index in range(len(asked))],
    }
    out = await generator.generate(batch, disable_tqdm=True)
    told = []
    for index, (_, extras) in enumerate(asked):
        prompt, response = out["prompt_token_ids"][index], out["response_ids"][index]
        mask, logprobs = out["loss_masks"][index], out["rollout_logprobs"][index]
        turns = []
        for ids, begin, end in turns_of(prompt, response, mask):
            own_ids, own_logprobs = await asyncio.to_thread(ask, url, tuple(ids), environment)
            turns.append(
                {
                    "text": tokenizer.decode(response[begin:end], skip_special_tokens=True),
                    "ids": response[begin:end],
                    "logprobs": logprobs[begin:end],
                    "own_ids": own_ids,
                    "own_logprobs": own_logprobs,
                    "rewards": out["rewards"][index][begin:end],
                }
            )
        told.append(
            {
                "truth": extras["reward_spec"]["ground_truth"],
                "text": tokenizer.decode(response),
                "lengths": [len(response), len(mask), len(logprobs), len(out["rewards"][index])],
                "outside": [value for value, kept in zip(logprobs, mask) if not kept],
                "stop_reason": out["stop_reasons"][index],
                "turns": turns,
            }
        )
    return told


async def main(url, other, model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    said = {environment: [] for environment in ACTIONS}
    async with RemoteInferenceClient(
        proxy_url=url, server_urls=[url], model_name="stories", data_parallel_size=1, tokenizer=tokenizer
    ) as client:
        with tempfile.TemporaryDirectory() as place:
            directory = pathlib.Path(place)
            make_database(directory)
            for is_updated in (False, True):
                if is_updated:
                    await client.pause()
                    update = {"model_path": other, "flush_cache": True}
                    answer = await asyncio.to_thread(
                        requests.post, f"{url}/update_weights_from_disk", json=update, timeout=60
                    )
                    answer.raise_for_status()
                    client.increment_weight_version()
                    ask.cache_clear()
                    await client.resume()
                for environment in ACTIONS:
                    said[environment].append(
                        [await roll_out(url, client, tokenizer, directory, environment) for _ in range(2)]
                    )
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:4]))
