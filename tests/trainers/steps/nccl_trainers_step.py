"""A trainer's own code sends its weights by NCCL, on the GPU in software, and PyTorch's own store
connects both sides: TRL's client from its package; OpenRLHF's methods and slime's classes from
their files, without Ray's cluster.

    nccl_trainers_step.py TRAINER URL MODEL SGLANG CUDA NCCL GPU WORLD_SIZE PACKAGE     TRAINER: trl, openrlhf or slime

URL is the tree's; OpenRLHF's is a tree of its own, of the model beside MODEL. PACKAGE is where the trainer's files lie.
"""

import asyncio
import concurrent.futures
import contextlib
import faulthandler
import json
import logging
import os
import pathlib
import socket
import sys
import threading
import time
import types

import torch
import torch.distributed as dist

from emulated_nccl import PyNccl, become_rank_0, free_port, register_backend, send, stateless_process_group, taken_from
from weights import NUM_TOKENS, PROMPT, load

HOST = "127.0.0.1"
STUCK_S = 280  # seconds; the test waits longer
BUCKET_BYTES = 200_000  # each model has several buckets


class Call:
    """A method of an actor: its calls run one after another, at the same time as the trainer."""

    def __init__(self, begin):
        self.remote = begin


class Actor:  # shim: Ray's handle of an actor
    def __init__(self, target):
        self._target, self._calls = target, concurrent.futures.ThreadPoolExecutor(1)

    def __getattr__(self, name):
        method = getattr(self._target, name)
        return Call(lambda *args, **named: self._calls.submit(method, *args, **named))


class AsyncActor:  # shim: Ray's handle of an actor whose methods are coroutines
    def __init__(self, target, loop):
        self._target, self._loop = target, loop

    def __getattr__(self, name):
        method = getattr(self._target, name)
        return Call(lambda *args, **named: asyncio.run_coroutine_threadsafe(method(*args, **named), self._loop))


class Ray:  # shim: the parts of Ray that the trainers' methods use
    _private = types.SimpleNamespace(services=types.SimpleNamespace(get_node_ip_address=lambda: HOST))

    @staticmethod
    def get(refs):
        return [ref.result() for ref in refs] if isinstance(refs, list) else refs.result()


def make_world():
    """The trainer's own group, of one rank."""
    dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{free_port()}", rank=0, world_size=1)


def group_of(sglang, host, port, world_size):
    group = stateless_process_group(sglang).create(host=host, port=int(port), rank=0, world_size=world_size)
    return PyNccl(group, world_size)


class Model(torch.nn.Module):
    """A trainer's model, with parameters under the checkpoint's names."""

    def __init__(self, directory):
        super().__init__()
        self._tensors = load(directory)

    def named_parameters(self, *_, **__):
        return ((name, torch.nn.Parameter(tensor)) for name, tensor in self._tensors.items())


def as_trl(url, model, sglang, world_size, package):
    import trl.generation.vllm_client as trl_client

    def open_endpoint(info):
        assert info["world_size"] == world_size and info["packed"]
        return group_of(sglang, info["master_address"], info["master_port"], info["world_size"])

    def send_packed(iterator, group, src, post_iter_func):
        """Sends one broadcast of bytes: the whole model is smaller than vLLM's buffer."""
        send(torch.cat([post_iter_func(item).detach().reshape(-1).view(torch.uint8) for item in iterator]))

    trl_client.is_vllm_available = lambda *_, **__: True  # shim: vLLM is not installed
    trl_client.get_ip = lambda: HOST  # shim: vLLM's
    trl_client._HAS_STATEFUL_TRAINER_ENGINE = True  # shim: of vLLM 0.28
    trl_client.open_trainer_endpoint = open_endpoint  # shim: vLLM's, which opens a PyNcclCommunicator
    trl_client.packed_nccl_broadcast_producer = send_packed  # shim: vLLM's, which copies on CUDA streams
    client = trl_client.VLLMClient(base_url=url, group_port=free_port())

    def sample():
        return client.generate([PROMPT], n=1, temperature=0.0, max_tokens=NUM_TOKENS)["completion_ids"][0]

    said = {"before": sample()}
    client.init_communicator(device="cuda")
    client.update_model_params(Model(model))
    client.reset_prefix_cache()
    said["after"] = sample()
    client.close_communicator()
    return said


def as_openrlhf(url, model, sglang, world_size, package):
    """ActorPPOTrainer's two methods, and pitstop's actor, which is OpenRLHF's own except for vLLM."""
    import openrlhf_actor

    def join(master_address, master_port, rank, size, device):
        assert rank == 0
        return group_of(sglang, master_address, master_port, size)

    trainer_methods = taken_from(
        package,
        "openrlhf/trainer/ray/ppo_actor.py",
        "ActorPPOTrainer._init_vllm_sync_group",
        "ActorPPOTrainer.broadcast_to_vllm",
        ray=Ray,
        torch=torch,
        socket=socket,
        stateless_init_process_group=join,  # its own makes vLLM's PyNcclCommunicator
        torch_dist_barrier_and_cuda_sync=dist.barrier,  # shim: its own also waits for a GPU
        deepspeed=types.SimpleNamespace(
            zero=types.SimpleNamespace(GatheredParameters=lambda *_, enabled: contextlib.nullcontext())
        ),  # shim: DeepSpeed, whose ZeRO-2 gathers nothing
    )
    torch.cuda.current_device = lambda: 0  # shim: without a GPU
    torch.cuda.current_stream = lambda: None  # shim: the same
    make_world()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    tp = world_size - 1

    def wait(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    options = {"device": "cuda", "max_total_tokens": 2048, "tuning_dir": "none"}
    stories = str(pathlib.Path(model).parent / "stories")
    actor = wait(openrlhf_actor.start(stories, tp, options))
    ids = wait(actor.llm.engine.tokenize(PROMPT))
    vllm = types.SimpleNamespace(num_engines=1, tensor_parallel_size=tp, enable_prefix_caching=True)
    ds = types.SimpleNamespace(zero_stage=2, tensor_parallel_size=1)
    trainer = types.SimpleNamespace(
        strategy=types.SimpleNamespace(args=types.SimpleNamespace(vllm=vllm, ds=ds)),
        vllm_engines=[AsyncActor(actor, loop)],
        use_cuda_ipc=False,
        actor=types.SimpleNamespace(model=types.SimpleNamespace(module=Model(model))),
    )
    said = {"before": wait(openrlhf_actor.sample(actor, ids))}
    trainer_methods._init_vllm_sync_group(trainer, "nccl")
    trainer_methods.broadcast_to_vllm(trainer)
    said["after"] = wait(openrlhf_actor.sample(actor, ids))
    wait(actor.llm.engine.close())
    return said


def slime_groups(package):
    """slime's process groups, over gloo."""
    import packaging.version
    from torch.distributed import distributed_c10d as c10d

    return taken_from(
        package,
        "slime/utils/distributed_utils.py",
        "GLOO_GROUP",
        "init_gloo_group",
        "get_gloo_group",
        "init_process_group",
        torch=torch,
        dist=dist,
        V=packaging.version.parse,
        Backend=dist.Backend,
        PrefixStore=dist.PrefixStore,
        default_pg_timeout=c10d.default_pg_timeout,
        rendezvous=c10d.rendezvous,
        _new_process_group_helper=c10d._new_process_group_helper,
        _world=c10d._world,
    )


def slime_senders(package, groups):
    """slime's senders of weights, with Megatron's part for one rank."""
    from tqdm import tqdm

    ranks = types.SimpleNamespace(  # shim: Megatron's, of one rank
        get_data_parallel_rank=lambda **_: 0,
        get_tensor_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_rank=lambda: 0,
        get_expert_model_parallel_world_size=lambda: 1,
    )
    ending = {"destroy_process_group": lambda group: group.leave()}  # shim: PyTorch destroys only its own groups
    distributed = types.SimpleNamespace(**{**vars(dist), **ending})
    return taken_from(
        package,
        "slime/backends/megatron_utils/update_weight/update_weight_from_distributed.py",
        "UpdateWeightFromDistributed",
        "connect_rollout_engines_from_distributed",
        "update_weights_from_distributed",
        "disconnect_rollout_engines_from_distributed",
        ray=Ray,
        torch=torch,
        dist=distributed,
        mpu=ranks,
        socket=socket,
        time=time,
        tqdm=tqdm,
        get_gloo_group=groups.get_gloo_group,
        _wrap_ipv6=lambda host: host,
        accelerator=types.SimpleNamespace(weight_update_backend=lambda: "nccl"),
        init_process_group=lambda backend, **more: groups.init_process_group("emulated", **more),  # shim: nccl
        named_params_and_buffers=lambda args, model: model.items(),  # shim: Megatron's, by the checkpoint's names
        all_gather_param=lambda name, parameter: parameter,  # shim: Megatron's, of one rank
        convert_to_hf=lambda args, model_name, name, parameter, quantization: [(name, parameter)],  # shim: they are
    )


def as_slime(url, model, sglang, world_size, package):
    """Runs slime's UpdateWeightFromDistributed, which pauses, sends bucket after bucket and continues, through slime's
    SGLangEngine over HTTP."""
    import requests

    groups = slime_groups(package)
    make_world()
    groups.init_gloo_group()
    register_backend()
    engines = taken_from(
        package,
        "slime/backends/sglang_utils/sglang_engine.py",
        "SGLangEngine",
        RayActor=object,
        requests=requests,
        time=time,
        logger=logging.getLogger("slime"),
        NewConnectionError=requests.exceptions.ConnectionError,
    )
    senders = slime_senders(package, groups)
    engine = engines.SGLangEngine(types.SimpleNamespace(rollout_external=True), rank=0)
    address = url.removeprefix("http://")
    engine.node_rank, (engine.server_host, engine.server_port) = 0, address.rsplit(":", 1)

    def sample():
        body = {"text": PROMPT, "sampling_params": {"temperature": 0.0, "max_new_tokens": NUM_TOKENS}}
        return engine._make_request("generate", body)["output_ids"]

    assert engine.health_generate(60)
    said = {"before": sample()}
    args = types.SimpleNamespace(update_weight_buffer_size=BUCKET_BYTES, rollout_num_gpus_per_engine=world_size - 1)
    tensors = load(model)
    sender = senders.UpdateWeightFromDistributed(
        args, tensors, lambda: tensors, model_name="qwen3", quantization_config=None
    )
    lock = types.SimpleNamespace(acquire=lambda: True, release=lambda: None)
    sender.connect_rollout_engines([Actor(engine)], Actor(lock))
    sender.update_weights()
    said["after"] = sample()
    said["version"] = engine.get_weight_version()
    sender.disconnect_rollout_engines()
    return said


def main(trainer, url, model, sglang, cuda, nccl, gpu, world_size, package):
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    rank = become_rank_0(cuda, nccl, model, gpu)
    said = {"trl": as_trl, "openrlhf": as_openrlhf, "slime": as_slime}[trainer](
        url, model, sglang, int(world_size), package
    )
    print(json.dumps({**said, "broadcasts": rank.num_broadcasts}), flush=True)
    os._exit(0)  # skips the clean-up of other packages' objects


main(*sys.argv[1:])
