"""Memory is added up and compared with the machine's, and the control group's, before it is
taken.
"""

import itertools
import json
import pathlib
import re
import subprocess
import sys

import pytest

from process_tree import ROOT, environment, run

STORIES = ROOT / "launch" / "models" / "stories"
ASK = """
import json, pathlib, sys, types
sys.path.insert(0, sys.argv[1])
import memory, problem
place = pathlib.Path(sys.argv[2])
if str(place) != "/sys/fs/cgroup":
    memory.CGROUP, memory.MEMINFO = place, place / "meminfo"
options = types.SimpleNamespace(**{**dict(device="cpu", load_format=None, compute=None, max_total_tokens=None, dp=1, tp=1,
                                          model=sys.argv[3]), **json.loads(sys.argv[4])})
try:
    print(memory.check(options, lambda line: print("said:", line)))
except problem.Problem as told:
    print("refused:", told)
"""


def check(place, mib, cgroup_mib=None, **options):
    (place / "meminfo").write_text(f"MemTotal:       {mib << 10} kB\nMemFree: 1 kB\n")
    (place / "memory.max").write_text("max\n" if cgroup_mib is None else f"{cgroup_mib << 20}\n")
    return subprocess.check_output(
        [sys.executable, "-c", ASK, str(ROOT / "launch" / "lib"), str(place), str(STORIES), json.dumps(options)],
        text=True,
    )


def test_a_tree_that_does_not_fit_is_refused_with_the_numbers_and_does_not_start(place):
    done = run("serve", "--max-total-tokens", 2_000_000_000, "--run-dir", place / "tree", timeout_s=120)
    assert done.returncode == 3
    assert "--max-total-tokens: the tree does not fit into memory; at most " in done.stderr
    assert re.search(r"2861\.02 GiB  KV of 2000000000 tokens", done.stderr), done.stderr
    assert not (place / "tree").exists()


def test_the_kv_of_a_token_is_what_a_tree_takes(start_tree):
    """The plan's bytes are compared with those of a tree that runs."""
    tree = start_tree("--max-total-tokens", 65536)
    (worker,) = json.loads(run("status", "--json", "--run-dir", tree.run_dir).stdout)["replicas"][0]["workers"]
    config = json.loads((STORIES / "config.json").read_text())
    said = subprocess.check_output(
        [sys.executable, "-c", f"import memory; print(memory.kv_token_bytes({config!r}, None))"],
        text=True,
        cwd=ROOT / "launch" / "lib",
    )
    assert worker["kv_bytes"] == pytest.approx(65536 * int(said), rel=0.02)


def test_the_table_has_the_kv_that_a_tree_reserves_by_default(start_tree):
    tree = start_tree("--max-running-requests", 1024)  # more than the least, less than a quarter of a machine of 8 GiB
    (worker,) = json.loads(run("status", "--json", "--run-dir", tree.run_dir).stdout)["replicas"][0]["workers"]
    said = subprocess.check_output(
        [sys.executable, "-c", ASK, str(ROOT / "launch" / "lib"), "/sys/fs/cgroup", str(STORIES),
         json.dumps({"max_running_requests": 1024})], text=True,
    )  # fmt: skip
    assert worker["kv_bytes"] > 1 << 30
    assert f"{worker['kv_bytes'] / (1 << 30):.2f} GiB  KV, at most" in said, said


def test_kv_by_default_is_shown_and_refuses_nothing(place):
    shown = check(place, 512)
    assert "1.00 GiB  KV, at most (--max-total-tokens sets another number)" in shown
    assert "refused" not in shown and "0.00" not in shown


def test_the_control_groups_limit_counts_where_it_is_less(place):
    tokens = (256 << 20) // 1536
    assert "in all; this machine has 512.0 MiB" in check(place, 512, max_total_tokens=tokens)
    refused = check(place, 512, cgroup_mib=128, max_total_tokens=tokens)
    assert refused.startswith("refused: --max-total-tokens") and "this control group may take 128.0 MiB" in refused
    fits = int(re.search(r"at most (\d+) tokens would", refused)[1])
    assert "refused" not in check(place, 512, cgroup_mib=128, max_total_tokens=fits)
    assert "refused" in check(place, 512, cgroup_mib=128, max_total_tokens=fits + 1)


def test_weights_count_twice_and_once_per_replica(place):
    assert "  11.0 MiB  weights" in check(place, 512, dp=4)
    assert check(place, 8, dp=4).startswith("refused: --dp")
    assert check(place, 2).startswith("refused: --model")


def test_without_room_for_a_second_copy_a_tree_starts_and_says_what_that_rules_out(place):
    """Only a staged update needs a second copy of the weights."""
    said = check(place, 4)
    assert said.startswith(
        "said: memory has no room for a second copy of the weights (2.8 MiB): updates must be --direct\n"
    )
    assert "refused" not in said and "said:" not in check(place, 8)


def planned(configs):
    """The launcher's KV bytes of a token, for each config."""
    program = "import json, memory, sys; print([memory.kv_token_bytes(c, None) for c in json.load(sys.stdin)])"
    return json.loads(
        subprocess.check_output(
            [sys.executable, "-c", program], input=json.dumps(configs), text=True, cwd=ROOT / "launch" / "lib"
        )
    )


def test_layers_with_linear_attention_have_no_kv():
    config = {"num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    types = ["linear_attention"] * 6 + ["full_attention"] * 2
    told = []
    for more in ({}, {"full_attention_interval": 2}, {"full_attention_interval": 4}, {"layer_types": types}):
        whole = {**config, **more}
        told += planned(
            [
                {"model_type": "qwen3_next", **whole},
                {"model_type": "qwen3_5", "text_config": whole},
                {"model_type": "llama", **whole},
            ]
        )
    assert told == [256, 256, 1024, 512, 512, 1024, 256, 256, 1024, 256, 256, 1024]


def workers_families():
    """{the first name of a family: its row's text} of the worker's table."""
    rows = (ROOT / "tp_worker" / "config" / "families.cpp").read_text().split(".model_type = ")[1:]
    return {row.split('"')[1]: row for row in rows}


def configs_with_absent_keys(family, row):
    """A config.json of the family for each subset of the keys that the launcher's plan reads; also with null."""
    text = {
        "hidden_size": 8192, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 64,
        "num_key_value_heads": 16, "head_dim": 32, "vocab_size": 100, "max_position_embeddings": 512,
        "full_attention_interval": 2,
        "layer_types": [["linear_attention", "full_attention"][i % 8 == 7] for i in range(8)],
    }  # fmt: skip
    if "is_hybrid" not in row:
        del text["layer_types"]
    keys = [key for key in ("num_key_value_heads", "head_dim", "layer_types", "full_attention_interval") if key in text]
    for states in itertools.product(("given", "absent", "null"), repeat=len(keys)):
        some = dict(text)
        for key, state in zip(keys, states):
            if state == "absent":
                del some[key]
            elif state == "null":
                some[key] = None
        yield {"model_type": family, **some}
        if name := re.search(r'.text_type = "(\w+)"', row):
            yield {"model_type": name[1], **some}
            yield {"model_type": family, "text_config": {"model_type": name[1], **some}}


def test_absent_keys_mean_what_they_mean_to_a_worker():
    configs = [each for family in workers_families().items() for each in configs_with_absent_keys(*family)]
    build = pathlib.Path(environment()["PITSTOP_BUILD"])
    told = subprocess.check_output(
        [build / "bin" / "pitstop_config_kv"], input="".join(f"{json.dumps(each)}\n" for each in configs), text=True
    )
    wrong, accepted = [], set()
    for config, line, num_bytes in zip(configs, told.splitlines(), planned(configs), strict=True):
        of_worker = json.loads(line)
        if "error" in of_worker:
            continue  # the tree reports it
        accepted.add(config["model_type"])
        if num_bytes != 2 * of_worker["kv_elements"]:
            wrong.append(f"{config}: {num_bytes} bytes are planned, the worker has {of_worker} elements")
    assert not wrong, "\n".join(wrong)
    assert accepted >= set(workers_families())
    assert len(accepted) == len(workers_families()) + 2  # two families have a text model of their own


def test_the_kv_of_an_unknown_family_is_unknown():
    config = {"num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    assert planned([config, {"model_type": "gpt2", **config}, {"model_type": 3, **config}]) == [0, 0, 0]
    assert planned([{"model_type": "llama", **config}]) == [1024]


def test_where_nothing_is_known_nothing_is_said(place):
    assert check(place, 512, load_format="null") == "None\n"
    assert check(place, 512, device="cuda") == "None\n"
