"""A tree for each trainer's step, and the outputs of fresh starts."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tree"))

from environments import NUM_TOKENS, PROMPT, STAND_INS, python_of  # noqa: E402
from places import place, short_directory  # noqa: E402, F401
from process_tree import ROOT, live_tree  # noqa: E402

MODELS = ROOT / "launch" / "models"
STEP_S = 300


@pytest.fixture(scope="session")
def fresh():
    """{model: (prompt's ids, the greedy ids of a fresh start on it)}."""
    found = {}
    for model in ("stories", "bard"):
        with (
            short_directory() as path,
            live_tree(path / "tree", "--model", MODELS / model) as tree,
            tree.door() as door,
        ):
            ids = door.call("tokenize", text=PROMPT)["ids"]
            found[model] = (ids, door.generate(PROMPT, max_new_tokens=NUM_TOKENS, temperature=0).tokens)
    assert found["stories"][1] != found["bard"][1]
    return found


@pytest.fixture
def tree(request):
    flags = getattr(request, "param", ())  # of pytest.mark.parametrize(..., indirect=True)
    with short_directory() as path, live_tree(path / "tree", "--port", "0", "--threads", "1", *flags) as tree:
        yield tree


@pytest.fixture
def step(tree):
    """step(environment, program): what steps/PROGRAM.py prints in that environment, against the tree."""

    def run(environment, program, *arguments):
        paths = [HERE / "steps", *([HERE / "without_torch"] if environment in STAND_INS else ())]
        command = [python_of(environment), str(HERE / "steps" / f"{program}.py"), tree.url]
        command += [str(MODELS / "bard"), *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=HERE / "steps",
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "NO_PROXY": "*",
                "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1",
                "PITSTOP_CLIENT": str(ROOT / "client" / "python"),
            },
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=STEP_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
