"""verl's AsyncHttpServerAdapter, its file unmodified.

Replacements of SGLang's launcher, which the adapter imports and does not use here, by line:
"""

import dataclasses
import importlib.util
import pathlib
import sys
import types


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    host: str = ""
    port: int = 0
    node_rank: int = 0
    trust_remote_code: bool = False


@dataclasses.dataclass
class UpdateWeightsFromTensorReqInput:
    serialized_named_tensors: list
    load_format: str = None
    flush_cache: bool = True


def adapter_class():
    for package in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.managers"):
        stand_in(package)  # shim: SGLang is not installed
    stand_in("sglang.srt.entrypoints.EngineBase", EngineBase=object)  # shim
    stand_in("sglang.srt.entrypoints.http_server", launch_server=None)  # shim
    stand_in("sglang.srt.managers.io_struct", UpdateWeightsFromTensorReqInput=UpdateWeightsFromTensorReqInput)  # shim
    stand_in("sglang.srt.server_args", ServerArgs=ServerArgs)  # shim
    stand_in("sglang.srt.utils", kill_process_tree=None)  # shim
    verl = importlib.util.find_spec("verl").submodule_search_locations[0]
    path = pathlib.Path(verl, "workers", "rollout", "sglang_rollout", "http_server_engine.py")
    spec = importlib.util.spec_from_file_location("http_server_engine", path)  # its package imports all of SGLang
    adapters = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapters)
    return adapters.AsyncHttpServerAdapter
