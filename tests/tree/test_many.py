"""Many requests and many clients at once: all complete, none mixed up, none changed by the
others.
"""

import random

import pytest

from process_tree import wait_until
from wire import Door

GREEDY = {"temperature": 0.0, "ignore_eos": True}
WORDS = "the a little girl boy dog king queen tree river day night went said was happy sad big".split()


def prompts(number, seed=1):
    """Different prompts of 1 to 60 words; some begin alike, so that prefixes are shared."""
    draw = random.Random(seed)
    beginnings = ["Once upon a time there was"] + [" ".join(draw.choices(WORDS, k=20)) for _ in range(3)]
    return [
        f"{draw.choice(beginnings)} {' '.join(draw.choices(WORDS, k=draw.randint(1, 40)))} {i}" for i in range(number)
    ]


def lengths(number, seed=2):
    draw = random.Random(seed)
    return [draw.randint(4, 40) for _ in range(number)]


def bits(output):
    """The parts that must not depend on the batch: tokens and, exactly, logprobs."""
    return output.tokens, output.logprobs, output.text


def alone(door, prompt, length, **fields):
    output = door.generate(prompt, max_new_tokens=length, logprobs={"enabled": True}, **fields)
    assert output.finish["reason"] == "length", output.finish
    return bits(output)


def start_all(door, work, **fields):
    return [door.start(prompt, max_new_tokens=length, logprobs={"enabled": True}, **fields) for prompt, length in work]


@pytest.mark.parametrize("dp", [1, 2])
def test_P6_256_streams_of_one_client_have_the_bits_of_each_alone(start_tree, tell, dp):
    tree = start_tree("--dp", dp)
    door = tree.door()
    work = list(zip(prompts(256), lengths(256)))
    rids = start_all(door, work, **GREEDY)
    together = [bits(output) for output in door.finish(rids)]
    for (prompt, length), output in zip(work, together):
        assert len(output[0]) == length
        # The same prompt alone: its prefix is in the cache by now.
        assert alone(door, prompt, length, **GREEDY) == output, prompt
    replicas = {output.counts["replica"] for output in map(door.outputs.get, rids)}
    assert replicas == set(range(dp))
    tell(f"256 streams, dp {dp}: peak MiB {tree.memory_mib()}")


@pytest.mark.parametrize("dp", [1, 2])
def test_P6_64_clients_get_their_own_output_and_nobody_elses(start_tree, tell, dp):
    tree = start_tree("--dp", dp)
    doors = [tree.door() for _ in range(64)]
    work = list(zip(prompts(64, seed=3), lengths(64, seed=4)))
    # All requests use the same rid: an id belongs to its client.
    for door, (prompt, length) in zip(doors, work):
        door.start(prompt, rid="mine", max_new_tokens=length, logprobs={"enabled": True}, **GREEDY)
    together = [bits(door.finish(["mine"])[0]) for door in doors]
    for (prompt, length), output in zip(work, together):
        assert alone(doors[0], prompt, length, **GREEDY) == output, prompt
    tell(f"64 clients, dp {dp}: peak MiB {tree.memory_mib()}")


def test_P6_draws_with_a_seed_do_not_depend_on_the_batch_the_chunks_or_the_cache(start_tree):
    """The same requests on a tree that cuts prompts into small chunks and retracts, and on one that
    does neither, alone and together.
    """
    fields = {"temperature": 1.0, "top_p": 0.9, "seed": 11, "ignore_eos": True}
    work = list(zip(prompts(24, seed=5), [32] * 24))
    easy = start_tree("--max-total-tokens", 16384).door()
    expected = [alone(easy, prompt, length, **fields) for prompt, length in work]

    tight = start_tree("--max-total-tokens", 512, "--page-size", 8, "--chunked-prefill-size", 16)
    door = tight.door()
    rids = start_all(door, work, **fields)
    outputs = door.finish(rids)
    assert [bits(output) for output in outputs] == expected
    assert sum(output.counts["retractions"] for output in outputs) > 0, "no pressure, no test"


def test_P6_ranks_and_replicas_do_not_mix(start_tree):
    """--tp 2 --dp 2: two ranks sum in another order than one, but batches still do not matter."""
    tree = start_tree("--tp", 2, "--dp", 2)
    door = tree.door()
    work = list(zip(prompts(32, seed=6), lengths(32, seed=7)))
    rids = start_all(door, work, **GREEDY)
    together = [bits(output) for output in door.finish(rids)]
    assert [alone(door, p, n, **GREEDY) for p, n in work] == together


def test_P4_retraction_loses_no_request_and_no_token(start_tree):
    tree = start_tree("--max-total-tokens", 640, "--page-size", 16)
    door = tree.door()
    work = [(prompt, 100) for prompt in prompts(16, seed=8)]
    rids = start_all(door, work, **GREEDY)
    outputs = door.finish(rids)
    assert all(output.finish["reason"] == "length" for output in outputs)
    assert all(len(output.tokens) == len(output.logprobs) == 100 for output in outputs)
    with tree.door("admin") as admin:
        (replica,) = admin.call("status")["replicas"]
    assert replica["retractions_total"] > 0, "no pressure, no test"
    assert replica["pages_free"] + replica["pages_cached"] == replica["pages_total"]


def test_clients_that_come_and_go_leave_nothing_behind(start_tree):
    tree = start_tree()
    stayer = tree.door()
    rid = stayer.start("Once", max_new_tokens=200, **GREEDY)
    for i in range(50):
        with Door(tree.run_dir) as door:  # closed with requests open
            door.start(f"The king {i}", max_new_tokens=500, **GREEDY)
            if i % 2:
                door.step()
    assert len(stayer.finish([rid])[0].tokens) == 200
    with tree.door("admin") as admin:

        def is_at_rest():
            reply = admin.call("status")
            (replica,) = reply["replicas"]
            return reply["open_requests"] == replica["num_running"] == replica["num_waiting"] == 0

        wait_until(is_at_rest, "the tree to work for no client that is gone")
