"""pitstop.Engine gets tensors in a GPU's memory: workers on that GPU read them there. On the GPU in
software; cuda_engine.py has PyTorch's replacement.
"""

import pytest

from cuda_engine import Trainer
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from test_updates import BARD, DIGESTS, STORIES, update

pytestmark = needs_gpu


@pytest.fixture
def trainer_of(gpu, start_tree):  # noqa: F811
    """trainer_of(tp, **sees): a trainer, a tree of this many ranks on the same machine, and the tree's admin door."""

    def start(tp=1, device=CUDA, sees=lambda uuids: uuids):
        tree = start_tree(*device, "--tp", tp, "--model", STORIES)
        admin = tree.door("admin")
        (replica,) = admin.call("status")["replicas"]
        uuids = [worker["device_uuid"] for worker in replica["workers"]]
        trainer = Trainer(BUILD, tree.run_dir, BARD, sees(uuids))
        trainers.append(trainer)
        return trainer, admin

    trainers = []
    yield start
    for trainer in trainers:
        trainer.__exit__()


def serves(admin):
    return admin.call("weight_digests")["digest"]


def is_lent(said):
    """Checks that no bytes went through the host's memory. Returns whether the digest is that of bard."""
    assert said["num_to_host"] == 0, said
    assert "digest" in said, said
    return said["digest"] == DIGESTS["bard"]["digest"]


def test_P10_tensors_in_the_workers_gpu_are_read_there(trainer_of):
    trainer, admin = trainer_of()
    for dtype in ("bfloat16", "float32"):
        said = trainer.ask("update", dtype=dtype)
        assert is_lent(said) and said["num_copied"] == 0, said
        assert serves(admin) == DIGESTS["bard"]["digest"]
        assert update(admin, STORIES)["ok"]
    said = trainer.ask("calls")
    assert is_lent(said), said


def one_open(gpu):  # noqa: F811
    """Makes every call of CUDA's to open an allocation fail, except the first."""
    gpu(faults=",".join(f"cudaIpcOpenMemHandle:{n}=cudaErrorInvalidValue" for n in range(2, 100)))


def test_P10_an_allocation_is_opened_once_for_all_buckets_of_a_push(gpu, trainer_of):  # noqa: F811
    one_open(gpu)
    trainer, _ = trainer_of()
    assert is_lent(trainer.ask("update", bucket_bytes=1 << 18))
    said = trainer.ask("update")  # refused: each update opens the allocation again, as the trainer may have freed it
    assert said["code"] == "unavailable", said


def test_P10_each_call_of_a_session_opens_the_lent_memory_again(gpu, trainer_of):  # noqa: F811
    """The trainer may free a call's tensors afterwards, and its next memory may get the same handle: each call opens it
    again."""
    one_open(gpu)
    trainer, _ = trainer_of()
    said = trainer.ask("calls")
    assert said["code"] == "unavailable", said


def test_P10_workers_of_other_gpus_are_lent_copies_that_lie_there(trainer_of):
    trainer, admin = trainer_of(tp=2)
    said = trainer.ask("update")
    assert is_lent(said) and said["num_copied"] == said["num_tensors"], said
    assert serves(admin) == DIGESTS["bard"]["digest"]


@pytest.mark.parametrize(
    "why, memory, sees",
    [
        ("expandable segments", "expandable", lambda uuids: uuids),
        ("a GPU that the trainer does not see", "plain", lambda uuids: ["GPU-another"]),
    ],
)
def test_tensors_that_cannot_be_lent_go_by_way_of_the_host(trainer_of, why, memory, sees):
    trainer, admin = trainer_of(sees=sees)
    said = trainer.ask("update", memory=memory)
    assert said["digest"] == serves(admin) == DIGESTS["bard"]["digest"], said
    assert said["num_to_host"] == said["num_tensors"], said


def test_a_tree_on_cpus_is_sent_copies(trainer_of):
    trainer, admin = trainer_of(device=("--device", "cpu"), sees=lambda uuids: ["GPU-another"])
    said = trainer.ask("update")
    assert "digest" in said, said
    assert said["digest"] == serves(admin) == DIGESTS["bard"]["digest"], said
    assert said["num_to_host"] == said["num_tensors"], said


def test_P2_a_handle_that_opens_nothing_is_refused(trainer_of):
    trainer, admin = trainer_of()
    said = trainer.ask("update", lie="00" * 64)
    assert said["code"] == "unavailable", said
    assert serves(admin) == DIGESTS["stories"]["digest"]
    assert is_lent(trainer.ask("update"))
