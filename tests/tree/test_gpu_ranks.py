"""Tensor parallelism on the GPU in software: ranks in processes of their own, one GPU each, that
sum over one another's memory. Tokens, versions and faults as with the CPU's ranks.
"""

import json
import shutil
import signal
import time

import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ROOT, run
from test_deaths import reasons
from test_updates import BARD, DIGESTS, GREEDY, STORIES, ended_after, joined, start, update

pytestmark = needs_gpu
NUM = 8  # tokens: one takes some tenths of a second
SEEDED = {"temperature": 1.0, "seed": 5, "ignore_eos": True, "logprobs": {"enabled": True}}
# Of fp32's logits: each tp is within 1e-4 of the truth (tests/tp_worker/model/golden_test.cpp says
# why).
LOGPROB_TOLERANCE = 2e-4
# Of bf16's: each tp is within 0.05 of the truth (tests/tp_worker/model/gpu_engine_test.cpp).
BF16_TOLERANCE = 0.1


def greedy(door, reference, model):
    case = reference[model]["greedy"][0]
    output = door.generate(case["prompt"], max_new_tokens=NUM, skip_special_tokens=False, **GREEDY)
    assert output.tokens == case["continuation"][:NUM]


def workers_of(admin):
    return [worker for replica in admin.call("status")["replicas"] for worker in replica["workers"]]


@pytest.mark.parametrize("tp, policy", [(2, "late"), (4, "random")])
def test_ranks_on_gpus_of_their_own_follow_the_reference(gpu, start_tree, reference, tp, policy):
    gpu(gpus=4, policy=policy)
    tree = start_tree(*CUDA, "--tp", tp)
    greedy(tree.door(), reference, "stories")
    workers = workers_of(tree.door("admin"))
    assert len({worker["device_uuid"] for worker in workers}) == tp
    assert not {worker["device"] for worker in workers} & {"", "cpu"}, workers


def test_replicas_of_ranks_have_a_gpu_each(gpu, start_tree):
    gpu(gpus=4)
    tree = start_tree(*CUDA, "--dp", 2, "--tp", 2)
    door = tree.door()
    rids = [door.start("Once upon a time", max_new_tokens=4, replica=i, **GREEDY) for i in range(2)]
    first, second = door.finish(rids)
    assert first.tokens == second.tokens
    assert len({worker["device_uuid"] for worker in workers_of(tree.door("admin"))}) == 4


def test_P6_bits_of_ranks_do_not_depend_on_the_batch_or_the_order_of_work(gpu, start_tree):
    outputs = []
    for seed in (1, 2):
        gpu(seed=seed)
        tree = start_tree(*CUDA, "--deterministic", "--tp", 2, "--chunked-prefill-size", 16 * seed)
        door = tree.door()
        rids = [door.start("Once upon a time", max_new_tokens=NUM, **SEEDED)]
        if seed == 2:
            rids.append(door.start("The king", max_new_tokens=NUM, **SEEDED))
        output = door.finish(rids)[0]
        outputs.append((output.tokens, output.logprobs))
        tree.stop()
    assert outputs[0] == outputs[1]


def test_P6_steps_of_ranks_as_graphs_have_the_bits_of_steps_without(gpu, start_tree):
    """Also after an update, whose copy of the weights has graphs of its own, and after another update back."""
    outputs = []
    for flags in ((), ("--no-graphs",)):
        tree = start_tree(*CUDA, "--tp", 2, "--log-level", "info", *flags)
        door, admin = tree.door(), tree.door("admin")
        for path in (None, BARD, STORIES):
            assert path is None or update(admin, path)["ok"]
            outputs.append(door.generate("Once upon a time", max_new_tokens=NUM, **SEEDED))
        assert ("a graph of" in tree.log()) == (not flags)
        tree.stop()
    for first, second in zip(outputs[:3], outputs[3:]):
        assert (first.tokens, first.logprobs) == (second.tokens, second.logprobs)


# Rows for which the ranks' parts are enough, next to rows that rank 0 needs whole.
KINDS = (
    SEEDED,
    {**SEEDED, "top_p": 0.8},
    {**SEEDED, "frequency_penalty": 0.5, "logprobs": {"enabled": True, "mode": "scaled"}},
    {**SEEDED, "temperature": 0, "logprobs": {"enabled": True, "top": 2}},
)


def test_tokens_and_logprobs_of_all_sizes_are_alike(gpu, start_tree):
    gpu(gpus=4)
    of_sizes = []
    for tp in (1, 2, 4):
        tree = start_tree(*CUDA, "--compute", "fp32", "--tp", tp)
        door = tree.door()
        of_sizes.append(door.finish([door.start("Once upon a time", max_new_tokens=NUM, **kind) for kind in KINDS]))
        tree.stop()
    for outputs in of_sizes[1:]:
        for output, first in zip(outputs, of_sizes[0]):
            assert output.tokens == first.tokens
            assert output.logprobs == pytest.approx(first.logprobs, abs=LOGPROB_TOLERANCE)


def test_logprobs_of_all_sizes_are_alike_in_deterministic_mode(gpu, start_tree, reference):
    """The outputs are scores of a given text, so that different draws cannot make them differ."""
    gpu(gpus=4)
    ids = reference["stories"]["greedy"][0]["ids"] + reference["stories"]["greedy"][0]["continuation"][:NUM]
    outputs = []
    for tp in (1, 2, 4):
        tree = start_tree(*CUDA, "--deterministic", "--tp", tp)
        scored = {"enabled": True, "prompt_start": 1}
        outputs.append(tree.door().generate(ids, max_new_tokens=1, logprobs=scored, **GREEDY))
        tree.stop()
    first, *others = [
        next(chunk["prompt"] for chunk in output.chunks if "prompt" in chunk)["logprobs"] for output in outputs
    ]
    assert len(first) == len(ids) - 1
    for other in others:
        assert other == pytest.approx(first, abs=BF16_TOLERANCE)


def test_P1_P2_P3_P8_P10_versions_pauses_and_memory(gpu, start_tree, reference):
    tree = start_tree(*CUDA, "--tp", 2)
    door, admin = tree.door(), tree.door("admin")
    rid = start(door, tokens=3, max_new_tokens=300)
    reply = update(admin, BARD, kv_policy="keep", label="bard")
    assert reply["ok"] and reply["digest"] == DIGESTS["bard"]["digest"], reply
    assert [rank["phase"] for rank in reply["replicas"][0]["ranks"]] == ["committed"] * 2
    output = ended_after(door, rid, epoch=2)
    assert [span["epoch"] for span in joined(output.spans)] == [1, 2]
    greedy(door, reference, "bard")
    assert admin.call("rollback_weights")["digest"] == DIGESTS["stories"]["digest"]
    greedy(door, reference, "stories")
    assert update(admin, BARD, mode="direct", kv_policy="recompute")["digest"] == DIGESTS["bard"]["digest"]
    greedy(door, reference, "bard")
    rid = start(door, tokens=2, max_new_tokens=NUM)
    assert admin.call("pause_generation", mode="retract")["ok"]
    released = admin.call("release_memory", keep_weights=True)
    assert released["ok"], released
    assert all(tag["freed_bytes"] > 0 for part in released["parts"] for tag in part["tags"])
    assert admin.call("resume_memory")["ok"] and admin.call("continue_generation")["ok"]
    (output,) = door.finish([rid])
    assert len(output.tokens) == NUM
    greedy(door, reference, "bard")
    pushed = run("push", "stories", "--run-dir", tree.run_dir, "--json", "--adopt")
    assert pushed.returncode == 0, pushed.stderr
    assert json.loads(pushed.stdout)["digest"] == DIGESTS["stories"]["digest"]
    greedy(door, reference, "stories")


def test_P2_ranks_stage_in_host_memory_and_upload_together(gpu, start_tree, reference):
    tree = start_tree(*CUDA, "--tp", 2, "--update-mode", "host")
    door, admin = tree.door(), tree.door("admin")
    assert {worker["update_mode"] for worker in workers_of(admin)} == {"host"}
    rid = start(door, tokens=3, max_new_tokens=30)
    assert update(admin, BARD, kv_policy="keep")["digest"] == DIGESTS["bard"]["digest"]
    door.finish([rid])
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    greedy(door, reference, "bard")


STEP_TIMEOUT_S = 20  # a rank waits less for another rank, so that it can name the missing rank


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_P5_a_rank_lost_in_an_exchange_is_named_to_every_request(gpu, start_tree, how):
    tree = start_tree(*CUDA, "--tp", 2, "--step-timeout", STEP_TIMEOUT_S)
    door = tree.door()
    rids = [start(door, tokens=2, max_new_tokens=900) for _ in range(2)]
    tree.kill("tp_worker[0.1]", getattr(signal, how))
    lost = time.monotonic()
    ended = reasons(door, rids)
    assert time.monotonic() - lost < 2 * STEP_TIMEOUT_S
    for rid, reason in ended.items():
        assert reason.startswith("unavailable: "), (rid, reason)
        assert ("tp_worker[0.1] died" if how == "SIGKILL" else "rank 1") in reason, (rid, reason)
    assert tree.wait_exit() != 0
    tree.check_gone()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_P2_a_restart_after_a_lost_rank_serves_what_was_committed(gpu, start_tree, reference, how):
    tree = start_tree(*CUDA, "--tp", 2, "--restart", "--step-timeout", STEP_TIMEOUT_S)
    assert update(tree.door("admin"), BARD, label="bard-1")["ok"]
    start(tree.door(), tokens=2, max_new_tokens=900)
    tree.kill("tp_worker[0.1]", getattr(signal, how))
    assert tree.launcher.stdout.readline(), tree.log()
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    assert tree.door("admin").call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    greedy(tree.door(), reference, "bard")


def test_ranks_without_gpus_or_access_are_refused_by_name(gpu, place):
    gpu(gpus=1)
    few = run("serve", "--no-http", "--run-dir", place / "few", *CUDA, "--tp", 2)
    assert few.returncode != 0 and "there is no GPU 1" in few.stderr, few.stderr
    gpu(gpus=2, peers=0)
    apart = run("serve", "--no-http", "--run-dir", place / "apart", *CUDA, "--tp", 2)
    assert apart.returncode != 0 and "cannot access the memory of GPU" in apart.stderr, apart.stderr


def test_a_model_whose_sums_have_no_whole_packs_is_refused_by_name(gpu, place):
    gpu(gpus=2)
    model = place / "odd"
    shutil.copytree(ROOT / "launch" / "models" / "stories", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 42, "head_dim": 16}))
    odd = run("serve", "--no-http", "--model", model, "--run-dir", place / "run", *CUDA, "--tp", 2)
    assert odd.returncode != 0 and "hidden_size 42 with --device cuda and --tp 2" in odd.stderr, odd.stderr


def test_ranks_go_to_the_cpu_together(gpu, start_tree):
    gpu(gpus=1)
    tree = start_tree("--device", "auto", "--tp", 2, "--max-total-tokens", 2048)
    for worker in workers_of(tree.door("admin")):
        assert worker["device"].startswith("cpu"), worker
    assert tree.door().generate("Once", max_new_tokens=2, **GREEDY).tokens
