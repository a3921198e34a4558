"""Fleets on real Ray, several nodes on this machine. A case of each kind is always run, the others at night (conftest.py)."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python"
NUM_DEATHS = int(os.environ.get("PITSTOP_FLEET_DEATHS", "10"))
EMULATED = pathlib.Path(
    os.environ.get("PITSTOP_EMULATED_BUILD", pathlib.Path(__file__).parents[2] / "build" / "emulated")
)
SEED = int(os.environ.get("PITSTOP_FLEET_SEED", "1"))


def test_P2_a_fleet_serves_and_takes_updates_of_two_trainers_in_mid_stream(on_ray):
    assert on_ray("serve")["spanning"] > 0


@pytest.mark.timeout(120 + 60 * NUM_DEATHS)
def test_P4_whatever_dies_in_an_update_requests_end_whole_and_one_version_serves(on_ray):
    """PITSTOP_FLEET_DEATHS sets the number of deaths: 200 at night."""
    said = on_ray("deaths", NUM_DEATHS, SEED, timeout=60 + 60 * NUM_DEATHS)
    assert said["runs"] == NUM_DEATHS and said["lost"] == 0
    assert said["moved"] > 0


@pytest.mark.parametrize(
    "kind, program",
    [
        ("sglang", "sglang-router"),
        pytest.param("smg", "smg", marks=pytest.mark.night),
        pytest.param("vllm", "vllm-router", marks=pytest.mark.night),
    ],
)
def test_a_router_is_fed_with_the_replicas_that_are_ready(on_ray, kind, program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (tests/requirements.txt)")
    assert on_ray("route", kind)["text"]


@pytest.mark.night
def test_a_cluster_of_this_machine_alone_has_room_for_every_replica(on_ray):
    assert on_ray("own")["ready"] == 3


def test_an_exception_within_a_fleet_is_printed(ray_python):
    """The cluster must outlive the fleet: otherwise Ray waits for the cluster in vain, and ends the program without a
    message."""
    program = ROOT / "tests" / "fleet" / "on_ray" / "raises.py"
    environment = {"PITSTOP_BUILD": str(ROOT / "build" / "cpu"), **os.environ, "PYTHONPATH": str(CLIENT)}
    done = subprocess.run([ray_python, program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: of the program's own\n"), done.stderr


@pytest.mark.night
def test_a_fleet_ends_with_the_program_that_started_it(on_ray):
    assert on_ray("leave")["gone"] == 2


def test_P5_processes_that_hang_are_found_and_hold_up_no_update(on_ray):
    assert on_ray("hang")["deaths"] == 3


def test_P2_an_adapter_is_loaded_on_every_replica_or_on_none_and_by_one_that_joins(on_ray):
    assert on_ray("adapters")["replicas"] == 3


@pytest.mark.night
def test_P2_with_a_quorum_a_replica_that_hangs_is_set_aside_and_comes_back(on_ray):
    assert on_ray("quorum")["epoch"] == 3


@pytest.mark.night
def test_P2_an_update_may_hold_all_trees_until_all_commit_and_none_for_longer(on_ray):
    assert on_ray("hold")["held"] == 2


@pytest.mark.night
def test_P4_a_machine_that_passes_buckets_on_and_hangs_or_dies_holds_up_no_other(on_ray):
    assert len(on_ray("relay")["chain"]) == 3


@pytest.mark.night
def test_P2_an_update_whose_trainer_dies_takes_effect_nowhere(on_ray):
    assert on_ray("orphan")["epoch"] == 2


def test_errors_name_their_cause_and_leave_nothing_behind(on_ray):
    assert on_ray("wrong")["digest"]


def test_works_that_wait_for_one_tree_and_replicas_that_vanish_meanwhile(on_ray):
    assert on_ray("given_up")["ok"]


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """gpus(num): the machine's GPUs, in software (tests/emulated_gpu)."""
    if not (EMULATED / "bin/pitstop_tp_worker").exists():
        pytest.skip(f"{EMULATED} is not built: cmake --preset emulated")

    def have(num):
        monkeypatch.setenv("PITSTOP_BUILD", str(EMULATED))
        for name, value in {"machine": tmp_path / "machine", "gpus": num, "policy": "random", "seed": 1}.items():
            monkeypatch.setenv(f"PITSTOP_EMULATED_{name.upper()}", str(value))

    return have


@pytest.mark.night
def test_trees_on_gpus_have_one_each_and_take_updates(on_ray, gpus):
    gpus(2)
    assert on_ray("gpu")["text"]


@pytest.mark.parametrize(
    "part", ["all", *(pytest.param(part, marks=pytest.mark.night) for part in ("quorum", "two", "cpu"))]
)
def test_P2_a_trainer_on_a_gpu_broadcasts_to_all_trees_at_once(on_ray, gpus, tmp_path, monkeypatch, part):
    """Broadcasts reach all trees, even if trees join, leave or die meanwhile. With a quorum they reach the remaining
    trees. Trees on CPUs get none."""
    gpus(4)
    for name, library in (("libcudart.so.13", "libpitstop_emulated_cuda.so"), ("libnccl.so.2", "libnccl.so.2")):
        (tmp_path / name).symlink_to(next(EMULATED.rglob(library)))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert on_ray("nccl", part)["part"] == part
