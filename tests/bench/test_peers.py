"""bench/peers: the figures that it computes from an engine's tokens, how it asks engines in turn, and what it prints."""

import argparse
import json
import os
import pathlib
import runpy
import subprocess
import sys
import zipfile

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client" / "python")]

from bench.peer import adapter_files, environment, gguf_model, models, report  # noqa: E402  (after the path)
from bench.peer.journal import Journal  # noqa: E402
from bench.peer.pairs import Measured, measure  # noqa: E402
from bench.peer.pitstop_tree import PitstopTree  # noqa: E402
from bench.peer.protocol import EngineEnded, EngineProcess, prompts_of  # noqa: E402
from bench.peer.rows import DENSE, ROWS, Figures, Row, Workload, figures_of  # noqa: E402

import pitstop  # noqa: E402  (after the path)

BUILD = pathlib.Path(os.environ.get("PITSTOP_BUILD", ROOT / "build/cpu"))

# An engine in a process of its own: one token of every row each millisecond.
ENGINE = """
import sys, time
from bench.peer.protocol import serve

def load():
    print("what engines print while they load")
    return "ticks 1.0", 5000

def run(prompts, num_tokens):
    times = {row: [] for row in range(len(prompts))}
    for _ in range(num_tokens):
        time.sleep(0.001)
        for each in times.values():
            each.append(time.perf_counter())
    return times

serve(load, run)
"""


def test_decode_counts_while_all_decode():
    workload = Workload(rows=2, prompt=10, output=3)
    # Both requests decode from 4 (the second one's first token) to 6 (the first one's end).
    figures = figures_of(workload, begin=2.0, times={0: [3.0, 5.0, 6.0], 1: [4.0, 5.5, 8.0]})
    assert figures.prefill_tokens_per_s == 20 / 2
    assert figures.decode_tokens_per_s == 3 / 2  # three tokens, at 5, 5.5 and 6
    assert figures.total_tokens_per_s == 26 / 6
    assert figures.seconds == 6


def test_an_engine_that_makes_too_few_tokens_is_an_error():
    with pytest.raises(RuntimeError, match="tokens"):
        figures_of(Workload(2, 10, 3), 0.0, {0: [1.0, 2.0, 3.0], 1: [1.0]})


def test_prompts_are_the_seeds():
    workload = Workload(3, 7, 1)
    assert prompts_of(workload, 5000, 1) == prompts_of(workload, 5000, 1) != prompts_of(workload, 5000, 2)
    assert all(0 <= token < 5000 - 1024 for prompt in prompts_of(workload, 5000, 1) for token in prompt)


@pytest.fixture
def ticks(tmp_path):
    engine = EngineProcess(
        "ticks", [sys.executable, "-c", ENGINE], {"PYTHONPATH": str(ROOT)}, str(tmp_path / "ticks.log")
    )
    yield engine
    engine.close()


def test_an_engine_runs_what_it_is_asked_for(ticks):
    figures = ticks.run(Workload(rows=4, prompt=5, output=10), seed=1)
    assert 0 < figures.decode_tokens_per_s <= 4 * 1000
    assert figures.seconds >= 0.010


def test_an_engine_that_ends_is_told_with_its_log(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match=f"no such engine ended with 3; it said: {log}"):
        EngineProcess("no such engine", [sys.executable, "-c", "raise SystemExit(3)"], {}, str(log))


@pytest.fixture
def without_numpy(tmp_path):
    """A PATH on which no Python has NumPy."""
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('numpy')\n")
    return str(tmp_path)


def test_bench_peers_itself_needs_no_numpy(without_numpy, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "bench/peers", "--peers", tmp_path, "run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": without_numpy},
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "bench/peers install" in done.stderr, done.stderr


def test_an_engine_without_numpy_says_so_and_how_to_get_it(without_numpy, tmp_path):
    env = {"PYTHONPATH": f"{without_numpy}:{ROOT}"}
    with pytest.raises(EngineEnded, match=f"{sys.executable} has no NumPy.*bench/peers install"):
        EngineProcess("ticks", [sys.executable, "-c", ENGINE], env, str(tmp_path / "ticks.log"))


def test_a_tree_and_a_peer_in_turn_and_the_page(ticks, tmp_path):
    # If a request's tokens come all at once, decoding alone has no rate.
    row = Row("2 requests", Workload(2, 8, 16), "total_tokens_per_s", {"ticks": 1e9})
    tree = PitstopTree(ROOT, BUILD, ROOT / "launch/models/stories", tmp_path / "tree.log")
    try:
        measured = measure([tree, ticks], row.workload, num_pairs=2, first_seed=1)
        one = tree.run(Workload(1, 64, 4), seed=9)
        assert one.prefill_tokens_per_s > 0 and 0 < tree.of_limit["prefill_tokens_per_s"]
    finally:
        tree.close()
    assert [len(runs) for runs in measured.figures.values()] == [2, 2]
    assert all(run.total_tokens_per_s > 0 for runs in measured.figures.values() for run in runs)
    page = report.table([(row, measured)], [tree, ticks], "bench/peers run", 2, "Stories")
    assert "in the shape of Stories, bf16" in page
    assert "1e+09 of ticks: MISSED" in page and tree.version in page and "ticks 1.0" in page
    kept = json.loads(json.dumps(report.figures_json([(row, measured)], [], [tree, ticks], "bench/peers run")))
    assert kept["rows"][0]["figures"]["ticks"][0]["decode_tokens_per_s"] > 0


@pytest.mark.parametrize("dtype", adapter_files.DTYPES)
def test_every_request_of_a_tree_with_an_adapter_uses_it(tmp_path, dtype):
    stories = ROOT / "launch/models/stories"
    adapter = tmp_path / "adapter"
    num_bytes = adapter_files.write_adapter(adapter, stories, 4, 1, dtype)
    assert num_bytes < (adapter / "adapter_model.safetensors").stat().st_size
    tree = PitstopTree(ROOT, BUILD, stories, tmp_path / "tree.log", adapter)
    try:
        assert tree.run(Workload(3, 8, 4), seed=1).total_tokens_per_s > 0
        with pitstop.Client(str(tree.run_dir)) as client:
            (status,) = client.status()["replicas"][0]["adapters"]
        assert (status["requests_total"], status["output_tokens_total"]) == (3, 12), status
    finally:
        tree.close()


def test_a_run_that_was_cut_off_goes_on(tmp_path):
    path, run, workload = tmp_path / "run.jsonl", {"pairs": 1, "engines": ["ticks 1.0"]}, Workload(2, 10, 3)
    measured = Measured({"ticks": [Figures(1.0, 2.0, 3.0, 4.0)]}, [{"decode_tokens_per_s": 0.5}])
    Journal(path, run, resume=False).keep(workload, 1, measured)
    again = Journal(path, run, resume=True)
    assert again.find(workload, 1) == measured
    assert again.find(workload, 2) is None and again.find(Workload(2, 10, 4), 1) is None
    assert Journal(path, {**run, "engines": ["ticks 1.1"]}, resume=True).find(workload, 1) is None, "another engine"
    Journal(path, run, resume=False).keep(workload, 1, measured)
    assert Journal(path, run, resume=False).find(workload, 1) is None, "a run that was not asked to go on"


def test_the_index_is_asked_only_for_packages_that_it_has(tmp_path):
    wheel = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "x-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: x\nRequires-Dist: numpy\nRequires-Dist: torch==2.13.0+cpu\n"
            'Requires-Dist: torchaudio; platform_machine != "s390x"\nRequires-Dist: pandas; extra == "bench"\n',
        )
    assert environment.requirements_of(wheel) == ["numpy"]


def test_a_checkpoint_is_read_as_bits():
    names = {name: bits.shape for name, bits in gguf_model.tensors_of(ROOT / "launch/models/stories/model.safetensors")}
    assert len(names["model.norm.weight"]) == 1
    assert len(names["model.embed_tokens.weight"]) == 2


def test_without_the_peers_it_says_what_to_run(tmp_path):
    done = subprocess.run(
        [ROOT / "bench/peers", "--peers", tmp_path, "--models", tmp_path, "run"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "bench/peers install" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", ROWS)
def test_no_row_of_that_name(shape, tmp_path):
    done = subprocess.run(
        [ROOT / "bench/peers", "--peers", tmp_path, "run", "--shape", shape, "--rows", "sideways"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and all(row.name in done.stderr for row in ROWS[shape]), done.stderr


def test_each_shape_has_its_rows_and_its_words():
    assert ROWS.keys() == models.SHAPES.keys()


def test_experts_become_one_tensor_per_projection():
    names = [
        f"model.layers.0.mlp.experts.{expert}.{kind}.weight" for expert in (1, 0) for kind in ("up_proj", "down_proj")
    ]
    tensors = [(name, numpy.full((2, 3), number, numpy.uint16)) for number, name in enumerate(names)]
    found = dict(gguf_model.fused(iter([("model.norm.weight", numpy.ones(3, numpy.uint16)), *tensors]), 2))
    assert list(found) == [
        "model.norm.weight",
        "model.layers.0.mlp.experts.up_proj.weight",
        "model.layers.0.mlp.experts.down_proj.weight",
    ]
    assert found["model.layers.0.mlp.experts.up_proj.weight"][:, 0, 0].tolist() == [2, 0]


def test_a_page_says_what_to_run_and_not_where_things_lie():
    peers = runpy.run_path(str(ROOT / "bench/peers"))
    asked = argparse.Namespace(
        pairs=5, rows=["decode, 1"], without=["vllm"], peers="/there", models="/there", shape="qwen3-0.6b"
    )
    assert peers["describe"](asked) == "bench/peers run --pairs 5 --rows 'decode, 1' --without vllm"
    asked.shape = "qwen3.5-0.8b"
    assert peers["describe"](asked).startswith("bench/peers run --pairs 5 --shape qwen3.5-0.8b ")


def test_the_readme_says_what_the_kept_run_measured():
    kept = json.loads((ROOT / "bench/results/cpu/peers.json").read_text())
    readme = (ROOT / "README.md").read_text().split("## Performance\n")[1].split("\n## ")[0]
    page = (ROOT / "bench/results/cpu/peers.md").read_text()
    ratios = {"vllm": [], "llama.cpp": []}
    for each in kept["rows"]:
        row = Row(**{**each["row"], "workload": Workload(**each["row"]["workload"])})
        figures = {name: [Figures(**run) for run in runs] for name, runs in each["figures"].items()}
        for peer, of_rows in ratios.items():
            ratio, least, most = Measured(figures, each["of_limit"]).ratio(peer, row.figure)
            assert f" {ratio:.2f} ({least:.2f} to {most:.2f}) |" in page, (row.name, peer)
            of_rows.append(ratio)
    assert len(ratios["vllm"]) == len(DENSE)
    said = " ".join(readme.split())
    assert (
        "{:.2f} to {:.2f} times the tokens per second of vLLM".format(min(ratios["vllm"]), max(ratios["vllm"])) in said
    )
    assert (
        "{:.2f} to {:.2f} times those of llama.cpp".format(min(ratios["llama.cpp"]), max(ratios["llama.cpp"])) in said
    )
