"""pitstop.Engine and AsyncEngine on live trees: their own, and joined ones."""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import numpy
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "tree"))

import pitstop  # noqa: E402
from process_tree import ROOT, ProcessTree, environment, is_alive, wait_until  # noqa: E402
from push_once import load  # noqa: E402

MODELS = ROOT / "launch" / "models"
PROMPT = "Once upon a time"
GREEDY = {"max_new_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module", autouse=True)
def build():
    os.environ["PITSTOP_BUILD"] = environment()["PITSTOP_BUILD"]


@pytest.fixture(scope="module")
def engine(build):
    with pitstop.Engine("stories", threads=1, port=0) as engine:
        yield engine


@pytest.fixture(autouse=True)
def on_stories(request):
    """After each test, restores the state in which the tree started: its weights, its memory, no pause."""
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        engine.wake_up()
        engine.update_weights_from_disk(str(MODELS / "stories"), label="stories")
        engine.resume()


def weights(model):
    return load(str(MODELS / model))


def frozen_in_the_middle(engine, rid, num_tokens):
    """The stream of a request that a pause has frozen after its first tokens. Tries again if the request ended before
    the pause."""
    for attempt in range(20):
        how = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        stream = engine.generate(PROMPT, how, rid=f"{rid}-{attempt}", stream=True)
        first = next(stream)
        if engine.pause("in_place").num_frozen == 1:
            return first.rid, stream
        engine.resume()
    raise AssertionError("every request had ended before the pause")


def greedy(engine):
    return engine.generate(PROMPT, GREEDY).output_ids


def fresh(model):
    """The output of a fresh start on that model."""
    with pitstop.Engine(str(MODELS / model), threads=1) as engine:
        return greedy(engine)


@pytest.fixture(scope="module")
def bard(build):
    return fresh("bard")


def test_a_prompt_gives_an_output_and_a_list_a_list(engine):
    out = engine.generate(PROMPT, GREEDY)
    assert out.text and len(out.output_ids) == 24 and out.finish.reason == "length"
    assert out["text"] == out.text and out["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
    assert out["meta_info"]["completion_tokens"] == 24
    both = engine.generate([PROMPT, "A dog"], GREEDY)
    assert [each.index for each in both] == [0, 1] and both[0].output_ids == out.output_ids
    ids = engine.tokenize(PROMPT)
    assert engine.generate(input_ids=ids, sampling_params=GREEDY).output_ids == out.output_ids
    assert engine.generate([{"prompt_token_ids": ids}], GREEDY)[0].output_ids == out.output_ids
    assert engine.detokenize(ids) == PROMPT


def test_samples_of_a_prompt_are_seeded_one_by_one(engine):
    outs = engine.generate(PROMPT, {"n": 3, "sampling_seed": 7, "max_tokens": 12})
    assert len(outs) == 3 and len({tuple(each.output_ids) for each in outs}) == 3
    alone = engine.generate(PROMPT, {"seed": 9, "max_new_tokens": 12})
    assert alone.output_ids == outs[2].output_ids


def test_logprobs_and_spans_are_objects(engine):
    out = engine.generate(PROMPT, GREEDY, return_logprob=True, top_logprobs_num=2, logprob_start_len=0)
    assert len(out.logprobs) == 24 and len(out.top_logprobs) == 24
    for token, logprob, top in zip(out.output_ids, out.logprobs, out.top_logprobs):
        assert top[0] == pitstop.outputs.TokenLogprob(token, logprob) and top[1].logprob <= logprob
    assert len(out.prompt_logprobs) == out.counts.prompt_tokens - 1
    assert [span.tokens for span in out.spans] == [24]
    assert out.spans[0].digest == engine.weight_digests().digest
    assert out.epochs == [out.spans[0].epoch] * 24


def test_a_stream_gives_everything_so_far(engine):
    seen = list(engine.generate(PROMPT, GREEDY, stream=True))
    assert [out.finish is not None for out in seen] == [False] * (len(seen) - 1) + [True]
    assert all(b.output_ids[: len(a.output_ids)] == a.output_ids for a, b in zip(seen, seen[1:]))
    assert seen[-1].output_ids == greedy(engine)


def test_a_chat_goes_through_the_template(engine):
    conversation = [{"role": "user", "content": "Tell me a story about a cat."}]
    out = engine.chat(conversation, GREEDY)
    assert out.output_ids == engine.chat([conversation, conversation], GREEDY)[1].output_ids
    assert out.counts.prompt_tokens > len(engine.tokenize(conversation[0]["content"]))


def test_weights_are_pushed_while_it_generates(engine, bard):
    """The README's example: pause, push, resume. A frozen request continues under the new version."""
    _, stream = frozen_in_the_middle(engine, "long", 800)
    assert engine.is_paused()
    update = engine.update_weights(weights("bard"), label="bard")
    assert update.is_in_effect and update.label == "bard" and update.digest == engine.weight_digests().digest
    engine.resume()
    *_, last = stream
    assert len(last.spans) == 2 and last.spans[1].epoch == update.epoch and last.label == "bard"
    assert last.epochs == sorted(last.epochs) and len(last.output_ids) == 800
    assert greedy(engine) == bard


def test_a_state_dict_may_have_the_tied_head_too(engine, bard):
    """transformers' state_dict() names the embedding's tensor twice if the model ties its head."""
    tensors = weights("bard")
    assert "lm_head.weight" not in tensors
    head = tensors["model.embed_tokens.weight"].copy()
    engine.update_weights({**tensors, "lm_head.weight": head}, label="both")
    assert greedy(engine) == bard
    head[0, 0] ^= 1
    with pytest.raises(pitstop.PitstopError, match="is tied to the embedding: declare only the embedding"):
        engine.update_weights({**tensors, "lm_head.weight": head})


def test_calls_under_a_pause_are_one_update(engine, bard):
    before = engine.get_server_info()["weight_epoch"]
    engine.pause_generation("retract")
    tensors = list(weights("bard").items())
    for begin in range(0, len(tensors), 20):
        update = engine.update_weights_from_tensor(tensors[begin : begin + 20], weight_version="step 9")
        assert not update.is_in_effect and update.state == "collecting"
    engine.continue_generation()
    info = engine.get_server_info()
    assert (info["weight_epoch"], info["weight_version"]) == (before + 1, "step 9")
    assert greedy(engine) == bard


def test_the_colocated_cycle(engine, bard):
    engine.release_memory_occupation()
    assert engine.is_sleeping()
    engine.resume_memory_occupation(tags=["weights"])
    tensors = list(weights("bard").items())
    for begin in range(0, len(tensors), 30):
        engine.update_weights_from_tensor(tensors[begin : begin + 30])
    engine.resume_memory_occupation(tags=["kv_cache", "cuda_graph"])
    assert greedy(engine) == bard


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_and_wake(engine, bard, level):
    before = greedy(engine)
    engine.sleep(level)
    assert engine.is_sleeping()
    engine.wake_up(tags=["weights"])
    if level == 2:
        engine.update_weights(weights("bard"))
    engine.wake_up(tags=["kv_cache"])
    assert not engine.is_sleeping()
    assert greedy(engine) == (bard if level == 2 else before)


def test_torch_tensors_are_weights_too(engine, bard):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")
    arrays = weights("bard")
    pairs = [(name, torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)) for name, array in arrays.items()]
    parameters = [(name, torch.nn.Parameter(tensor.float())) for name, tensor in pairs]
    engine.update_weights(parameters, label="fp32")
    whole = engine.weight_digests()
    assert greedy(engine) == bard
    engine.update_weights(pairs, label="bf16")
    assert engine.weight_digests().digest == whole.digest


def test_a_digest_by_pytorch_is_numpys():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")
    from pitstop import cuda_tensors, digests

    odd = {"rows": (3, 7), "scalar": (), "vector": (129,), "none": (0, 4)}
    arrays = {name: numpy.arange(numpy.prod(shape), dtype=numpy.uint16).reshape(shape) for name, shape in odd.items()}
    arrays.update(weights("bard"))
    for name, array in arrays.items():
        tensor = torch.from_numpy(array.view(numpy.int16).copy()).view(torch.bfloat16)
        assert cuda_tensors.digest_of(tensor) == digests.tensor_digest(array), name
        assert (cuda_tensors.host_array(tensor) == array).all(), name


def test_a_distributed_update(engine, bard):
    from concurrent.futures import ThreadPoolExecutor

    from pitstop.broadcast import HostBroadcast

    arrays = weights("bard")
    with HostBroadcast("w", num_workers=1) as group, ThreadPoolExecutor(1) as pool:
        joined = pool.submit(
            engine.init_weights_update_group, group.host, group.port, 1, 2, group_name="w", backend="host"
        )
        group.accept(20)
        joined.result()
        shapes = [array.shape for array in arrays.values()]
        update = pool.submit(
            engine.update_weights_from_distributed, list(arrays), ["torch.bfloat16"] * len(arrays), shapes, "w"
        )
        for array in arrays.values():
            group.broadcast(array)
        assert update.result().is_in_effect
        engine.destroy_weights_update_group("w")
    assert greedy(engine) == bard


def test_collective_rpc_has_the_calls_about_weights_alone(engine, bard):
    assert engine.collective_rpc("reload_weights", kwargs={"weights_path": str(MODELS / "bard")}) == [None]
    assert greedy(engine) == bard
    with pytest.raises(
        pitstop.PitstopError, match="unsupported: collective_rpc: unknown call steal; accepted are reload"
    ):
        engine.collective_rpc("steal")


def test_an_abort_gives_back_what_there_is(engine):
    rid, stream = frozen_in_the_middle(engine, "aborted", 900)
    assert engine.abort_request(rid) == {rid: "aborted"}
    engine.resume()
    *_, last = stream
    assert last.finish.reason == "abort" and last.output_ids
    assert engine.abort_request("nobody") == {"nobody": "unknown"}


def test_rollback_labels_and_tensors(engine):
    before = engine.weight_digests()
    engine.update_weights(weights("bard"))
    assert engine.rollback_weights().digest == before.digest
    engine.update_weight_version("named")
    assert engine.weight_digests().label == "named"
    norm = engine.get_weights_by_name("model.norm.weight")
    expected = (weights("stories")["model.norm.weight"].astype(numpy.uint32) << 16).view(numpy.float32)
    assert norm.dtype == numpy.float32 and (norm == expected).all()
    assert before.tensors["model.norm.weight"].shape == norm.shape


def test_calls_that_are_not_served_are_refused_by_name(engine):
    for call, why in (
        (lambda: engine.encode(PROMPT), "Engine.encode is not served: models generate"),
        (lambda: engine.start_expert_distribution_record(), "no statistics of experts are kept"),
        (lambda: engine.generate(PROMPT, lora_path="x"), "no adapter 'x' is loaded; none is loaded"),
        (lambda: engine.generate(PROMPT, lora_request=object()), "lora_request is not served: load_adapter"),
        (lambda: engine.update_weights_from_disk("x", load_format="gguf"), "load_format"),
        (lambda: engine.release_memory_occupation(["disk"]), "tags"),
    ):
        with pytest.raises(pitstop.PitstopError, match=why):
            call()
    for wrong in ([], ()):
        with pytest.raises(ValueError, match="allowed_token_ids is empty"):
            engine.generate(PROMPT, {"allowed_token_ids": wrong})
        with pytest.raises(ValueError, match="choice is empty"):
            engine.generate(PROMPT, {"structured_outputs": {"choice": wrong}})
    for name, value in {"allowed_token_ids": [99999], "bad_words": [" "], "bad_tokens": [[]]}.items():
        with pytest.raises(pitstop.PitstopError, match=name):
            engine.generate(PROMPT, {name: value})
    for name, why in {"guided_regex": "structured_outputs", "response_format": "json_schema"}.items():
        with pytest.raises(pitstop.PitstopError, match=f"unsupported: sampling_params: {name}.*{why}"):
            engine.generate(PROMPT, {name: "{}"})
    with pytest.raises(pitstop.PitstopError, match="at most one grammar"):
        engine.generate(PROMPT, {"regex": "a", "ebnf": 'root ::= "a"'})
    with pytest.raises(TypeError, match="unknown parameter temprature"):
        engine.generate(PROMPT, {"temprature": 1})
    with pytest.raises(TypeError, match="for a directory call update_weights_from_disk"):
        engine.update_weights("/some/directory")
    with pytest.raises(TypeError, match=r"for a model send model.named_parameters"):
        engine.update_weights(type("Model", (), {"named_parameters": None})())
    with pytest.raises(TypeError, match="pairs or a dict, not str"):
        engine.update_weights(["a name alone"])
    with pytest.raises(pitstop.PitstopError, match="update_weights_from_tensor, or partial=True, updates a part"):
        engine.update_weights({"model.norm.weight": weights("bard")["model.norm.weight"]})
    assert engine.update_weights_from_disk("bard", label="by name").label == "by name"
    with pytest.raises(TypeError, match="unexpected keyword argument 'tempature'"):
        engine.generate(PROMPT, tempature=1)
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        engine.generat  # noqa: B018
    with pytest.raises(TypeError, match="model.norm.weight: dtype int64; accepted are float32"):
        engine.update_weights({"model.norm.weight": numpy.zeros(128, numpy.int64)})


def test_an_update_that_fails_leaves_what_was(engine):
    before = engine.weight_digests().digest
    broken = dict(weights("bard"))
    broken.pop("model.norm.weight")
    with pytest.raises(pitstop.PitstopError, match="model.norm.weight"):
        engine.update_weights(broken)
    with pytest.raises(pitstop.PitstopError, match="nothing.weight"):
        engine.update_weights({**weights("bard"), "nothing.weight": numpy.zeros((1, 1), numpy.uint16)})
    assert engine.weight_digests().digest == before


def test_an_engine_joins_a_tree_by_its_place_or_its_url(engine):
    for place in (
        {"run_dir": engine.run_dir},
        {"url": engine.url},
        {"url": engine.url.replace("127.0.0.1", "localhost")},
    ):
        with pitstop.Engine(**place) as joined:
            assert greedy(joined) == greedy(engine)
    assert greedy(engine)  # the tree outlives a client that leaves
    with pytest.raises(pitstop.PitstopError, match="not_found: no tree of this user on this machine listens at"):
        pitstop.Engine(url="http://127.0.0.1:1")
    with pytest.raises(TypeError, match="one of run_dir, url and data"):
        pitstop.Engine("stories", run_dir="/tmp/x")


def test_a_joined_tree_can_be_ended():
    with tempfile.TemporaryDirectory(prefix="pitstop-test-", dir="/tmp") as place:
        tree = ProcessTree(pathlib.Path(place) / "tree")
        engine = pitstop.Engine(run_dir=str(tree.run_dir))
        engine.shutdown()
        assert tree.wait_exit() == 0
        tree.check_gone()
        with pytest.raises(RuntimeError, match="closed"):
            greedy(engine)


def test_a_start_that_fails_says_why():
    with pytest.raises(pitstop.PitstopError, match="no such directory"):
        pitstop.Engine("nowhere")
    with pytest.raises(TypeError, match="unexpected keyword argument: page_sice"):
        pitstop.Engine(page_sice=3)


def processes_of(run_dir):
    return [p["pid"] for p in json.loads((pathlib.Path(run_dir) / "tree.json").read_text())["processes"]]


PROGRAM = (
    "import pitstop, sys, time\nengine = pitstop.Engine('stories', threads=1)\nprint(engine.run_dir, flush=True)\n"
)


@pytest.mark.parametrize("end", ["", "sys.exit(1)", "time.sleep(600)"])
def test_a_tree_ends_with_its_program(end):
    """The program ends without a close(), by an exit or by a kill."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "PYTHONPATH": str(ROOT / "client" / "python")},
    )
    run_dir = program.stdout.readline().strip()
    assert run_dir, program.stderr.read()
    if "sleep" in end:
        pids = processes_of(run_dir)
        os.kill(program.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), "the tree to end")
    _, errors = program.communicate(timeout=60)
    if "sleep" not in end:
        assert errors == ""
    wait_until(lambda: not pathlib.Path(run_dir).exists(), "the run directory to go")


def test_the_next_start_removes_a_killed_programs_run_directory(build):
    code = "import pitstop, sys, time; e = pitstop.Engine('stories', threads=1); print(e.run_dir, flush=True); time.sleep(99)"
    environment_ = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment_)
    place = pathlib.Path(program.stdout.readline().strip())
    launcher = json.loads((place / "tree.json").read_text())["launcher"]
    lock = place / "launcher.lock"
    os.utime(lock, (0, 0))
    with pitstop.Engine("stories", threads=1):
        assert lock.exists()  # the killed program's launcher still lives
    os.kill(launcher, signal.SIGSTOP)  # the script itself does not clean up
    program.kill()
    program.communicate()
    os.kill(launcher, signal.SIGKILL)
    wait_until(lambda: not is_alive(launcher), "the launcher's end")
    assert lock.exists()
    with pitstop.Engine("stories", threads=1) as engine:
        assert not place.parent.exists()
        assert pathlib.Path(engine.run_dir).exists()


def test_the_asyncio_engine(build):
    async def main():
        async with pitstop.AsyncEngine("stories", threads=1) as engine:
            outs = await asyncio.gather(*(engine.generate(PROMPT, GREEDY) for _ in range(4)))
            assert len({tuple(each.output_ids) for each in outs}) == 1
            texts = [out.text async for out in await engine.generate(PROMPT, GREEDY, stream=True)]
            assert texts[-1] == outs[0].text
            await engine.pause()
            update = await engine.update_weights(weights("bard"), label="bard")
            await engine.resume()
            after = await engine.generate(PROMPT, GREEDY)
            assert after.spans[0].digest == update.digest and after.output_ids != outs[0].output_ids
            task = asyncio.ensure_future(engine.generate(PROMPT, {"max_new_tokens": 900, "ignore_eos": True}))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while (await engine.client.status())["open_requests"]:  # until the tree has cancelled the task's request
                pass

    asyncio.run(asyncio.wait_for(main(), 120))


def test_the_blocking_engine_is_awaited_on_a_loop_of_the_caller(engine):
    async def main():
        return await asyncio.gather(*(engine.async_generate(PROMPT, GREEDY) for _ in range(3)))

    assert len({tuple(out.output_ids) for out in asyncio.run(main())}) == 1


def test_progress_is_shown_where_it_is_asked_for(engine, capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed (Debian: python3-tqdm)")
    engine.generate([PROMPT] * 3, GREEDY, use_tqdm=True)
    engine.update_weights(weights("bard"), use_tqdm=True)
    errors = capsys.readouterr().err
    assert "generating: 100%" in errors and "updating: 100%" in errors
