#!/usr/bin/env python3
"""mutations: bugs of the kind that only a device shows, planted one at a time, and the test that finds each.

    tests/emulated_gpu/mutations.py                     all of them
    tests/emulated_gpu/mutations.py --write             besides, MUTATIONS.md beside this file
    tests/emulated_gpu/mutations.py --only fence,piece  those whose name has one of these; the others' rows stay
    tests/emulated_gpu/mutations.py --check             that each still fits the sources; builds nothing

Works on a checkout of HEAD of its own (build/mutations), built by the emulated preset. Each test is first seen to
pass there. The exit code is 0 if every bug was found.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutations"
TABLE = ROOT / "tests" / "emulated_gpu" / "MUTATIONS.md"
TEST_S = 300
FINDERS = ("emulator:", "emulated GPU:", "CUDA error", "cudaError")  # whose lines say what was wrong
DECODE = "kernels/attention_decode.cu"
WGMMA = "kernels/attention_prefill_wgmma.cu"
EXCHANGE = "kernels/exchange.cu"
ATTENTION = "kernels_gpu_test CudaAttention.MeetsTheReferenceOnAwkwardShapes"
LONG_ATTENTION = "kernels_gpu_test CudaAttention.LongPrefillsMeetTheReference"
UNEQUAL = "kernels_gpu_test UnequalRows."
LINEAR = "kernels_gpu_test CudaLinear.MeetsTheReferenceOnAwkwardShapes"
DIGESTS = "tp_worker_gpu_test GpuEngine.HasTheDigestsOfTheCpusWeights"
UPLOAD = "tp_worker_gpu_test GpuUpdater.P1_P2_P10_AVersionThatIsStagedInHostMemoryIsUploadedByItsCommit"
UPDATE = "tp_worker_gpu_test GpuUpdater.P1_P2_P10_ACommitSwapsAndARollbackSwapsBack"
NCCL = "emulated_gpu_test Nccl.ProcessesExchangeInTheOrderOfTheirStreams"
SUMS = "kernels_gpu_test CudaExchange.SumsInRankOrderOnEveryRank"
MANY_SUMS = "kernels_gpu_test CudaExchange.ManyInARowDoNotMixUp"
TOKENS = "tp_worker_gpu_test GpuEngine.FollowsTheReferenceWhereItIsSure"


@dataclasses.dataclass
class Mutation:
    """In `file`, `text` (which is there once) becomes `bug`; `test`, a program and its filter, fails then."""

    name: str
    file: str
    text: str
    bug: str
    test: str
    policy: str = "random"
    copies: str = "late"
    num_seeds: int = 1  # the test runs under so many schedules, or until one fails


MUTATIONS = (
    Mutation(
        "a missing proxy fence before a tile is announced",
        WGMMA,
        "            wait_copies<1>();\n            fence_async_proxy();\n",
        "            wait_copies<1>();\n",
        ATTENTION,
    ),
    Mutation(
        "a missing proxy fence after the last tile",
        WGMMA,
        "    wait_copies<0>();\n    fence_async_proxy();\n",
        "    wait_copies<0>();\n",
        ATTENTION,
    ),
    Mutation(
        "queries touched by ordinary stores, which other warps' fences are not for",
        WGMMA,
        "    barrier_wait(&barriers.keys_full[0], 0);\n    wgmma_fence();\n",
        "    barrier_wait(&barriers.keys_full[0], 0);\n"
        "    *reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(queries) + lane * 4) ^= 0x80008000u;\n"
        "    wgmma_fence();\n",
        ATTENTION,
    ),
    Mutation(
        "a missing wgmma.fence before the first product",
        WGMMA,
        "    barrier_wait(&barriers.keys_full[0], 0);\n    wgmma_fence();\n",
        "    barrier_wait(&barriers.keys_full[0], 0);\n",
        ATTENTION,
    ),
    Mutation(
        "a missing wgmma.fence in the loop",
        WGMMA,
        "        wgmma_fence();\n        multiply_keys<D>(scores, queries, keys + stage * S::kTileBytes);\n",
        "        multiply_keys<D>(scores, queries, keys + stage * S::kTileBytes);\n",
        ATTENTION,
    ),
    Mutation(
        "scores read before their product is waited for", WGMMA, "wgmma_wait<1>(scores);", "wgmma_wait<2>(scores);", ATTENTION
    ),
    Mutation(
        "sums rescaled before their product is waited for",
        WGMMA,
        "        wgmma_wait<0>(acc);\n        release(&barriers.values_empty[before]);\n",
        "        wgmma_wait<1>(acc);\n        release(&barriers.values_empty[before]);\n",
        ATTENTION,
    ),
    Mutation(
        "a fragment of A overwritten while a product uses it",
        WGMMA,
        "        wgmma_wait<0>(acc);\n        release(&barriers.values_empty[before]);\n",
        "        pack_probabilities(p, scores);\n        wgmma_wait<0>(acc);\n"
        "        release(&barriers.values_empty[before]);\n",
        ATTENTION,
    ),
    Mutation(
        "a wrong barrier parity: a tile is taken for full",
        WGMMA,
        "barrier_wait(&barriers.keys_full[stage], n / kStages % 2);",
        "barrier_wait(&barriers.keys_full[stage], (n / kStages + 1) % 2);",
        ATTENTION,
    ),
    Mutation(
        "a stage of values given back before its product has read it",
        WGMMA,
        "        wgmma_wait<0>(acc);\n        release(&barriers.values_empty[before]);\n",
        "        release(&barriers.values_empty[before]);\n        wgmma_wait<0>(acc);\n",
        LONG_ATTENTION,
        copies="random",
        num_seeds=20,
    ),
    Mutation(
        "a stage of keys given back before its product has read it",
        WGMMA,
        "        wgmma_wait<1>(scores);\n        release(&barriers.keys_empty[stage]);\n",
        "        release(&barriers.keys_empty[stage]);\n        wgmma_wait<1>(scores);\n",
        LONG_ATTENTION,
        copies="random",
        num_seeds=20,
    ),
    Mutation(
        "more registers than the block has",
        WGMMA,
        "kMultiplyRegisters = 232",
        "kMultiplyRegisters = 240",
        ATTENTION,
    ),
    Mutation(
        "a count of arrivals that does not start over",
        DECODE,
        "atomicInc(params.arrivals + place.first_block, others)",
        "atomicAdd(params.arrivals + place.first_block, 1u)",
        UNEQUAL + "ACallLeavesWhatTheNextNeeds",
    ),
    Mutation(
        "records merged before they have come",
        DECODE,
        "        fetch(first + per_half, 1 - half);\n        wait_copies<1>();\n",
        "        fetch(first + per_half, 1 - half);\n        wait_copies<2>();\n",
        UNEQUAL + "MeetTheReference",
    ),
    Mutation(
        "half of the ring refilled while lanes read its records",
        DECODE,
        "        __syncwarp();  // all are done with this half, which is refilled next\n",
        "",
        UNEQUAL + "MeetTheReference",
        copies="random",
    ),
    Mutation(
        "a record's maximum overwritten before all lanes have loaded it",
        DECODE,
        "        __syncwarp();  // all have loaded what is overwritten\n        if (!has_head) continue;\n",
        "        if (!has_head) continue;\n",
        UNEQUAL + "P6_HaveTheSameBitsWhateverRoomThereIs",
    ),
    Mutation(
        "cp.async waited for one group too late",
        "kernels/linear.cu",
        "wait_copies<Shape::kStages - 2>();",
        "wait_copies<Shape::kStages - 1>();",
        LINEAR,
    ),
    Mutation(
        "a missing __syncthreads before a stage is refilled",
        "kernels/linear.cu",
        "        __syncthreads();  // stage s is there for all, and all are done with stage s - 1\n",
        "",
        LINEAR,
    ),
    Mutation(
        "a step's results read before its event",
        "tp_worker/device/transfers.cpp",
        '    event_.wait(wait_max_, "a step");\n',
        "",
        TOKENS,
        "late",
    ),
    Mutation(
        "a step's inputs overwritten before they were copied",
        "tp_worker/device/transfers.cpp",
        "        std::memcpy(pinned_.data() + offset, from, bytes);\n"
        "        kernels::copy_to_device(\n            there, pinned_.data() + offset,",
        "        std::memcpy(pinned_.data(), from, bytes);\n"
        "        kernels::copy_to_device(\n            there, pinned_.data(),",
        TOKENS,
        "late",
    ),
    Mutation(
        "a page-locked piece reused before its copy",
        "tp_worker/device/pinned_pieces.cpp",
        "    piece.is_done.wait(\n"
        '        kernels::kDeviceWaitMax, "a copy between host and GPU", kernels::DeviceEvent::Watch::kLoose\n'
        "    );\n",
        "",
        DIGESTS,
        "late",
    ),
    Mutation(
        "weights digested before they are there",
        "tp_worker/weights/weight_upload.cpp",
        "    pieces.wait();\n",
        "",
        DIGESTS,
        "late",
    ),
    Mutation(
        "an allocation beside steps",
        "tp_worker/weights/weight_digest.cpp",
        "    kernels::fill_device(sums_.data(), 0, sums_.bytes(), stream);\n",
        "    const auto beside = kernels::DeviceBuffer::create(256);\n"
        "    kernels::fill_device(sums_.data(), 0, sums_.bytes(), stream);\n",
        "tp_worker_gpu_test GpuEngine.ADigestTakesNoMemory",
    ),
    Mutation(
        "sums cleared in a stream that nothing orders",
        "tp_worker/weights/weight_digest.cpp",
        "    kernels::fill_device(sums_.data(), 0, sums_.bytes(), stream);\n",
        "    static const auto other = kernels::DeviceStream::create(kernels::StreamPriority::kBackground);\n"
        "    kernels::fill_device(sums_.data(), 0, sums_.bytes(), other->stream());\n",
        DIGESTS,
        num_seeds=20,
    ),
    Mutation(
        "a step called over before its end: a commit comes and its weights are overwritten",
        "tp_worker/model/engine.cpp",
        "        transfers_->wait();  // a step without logits is done, too, when its result says so\n",
        "",
        "tp_worker_gpu_test GpuEngine.P2_AStepWithoutLogitsIsOverWhenItsResultIsThere",
        num_seeds=20,
    ),
    Mutation(
        "a stage that does not wait for the steps before it",
        "tp_worker/device/pinned_pieces.cpp",
        "    is_before_.order_before(stream_.stream());\n",
        "",
        "tp_worker_gpu_test GpuUpdater.P2_AStageWritesAfterWhatReadsTheRetiredCopy",
        "late",
    ),
    Mutation(
        "sums of a staged version read before their copy",
        "tp_worker/weights/gpu_writer.cpp",
        "sums_.bytes(), stream());\n    wait();\n    const std::byte* const digests",
        "sums_.bytes(), stream());\n    const std::byte* const digests",
        UPDATE,
        "late",
    ),
    Mutation(
        "a page-locked piece given to the next rows before its copy",
        "tp_worker/weights/gpu_writer.cpp",
        "            std::byte* const piece = gpu_.pieces_->next();\n            RETURN_IF_ERROR(load_tensor(",
        "            static std::byte* const piece = gpu_.pieces_->next();\n            RETURN_IF_ERROR(load_tensor(",
        UPDATE,
        "late",
    ),
    Mutation(
        "a version staged into the copy that serves",
        "tp_worker/weights/gpu_writer.cpp",
        "    std::byte* const first_row = args_.target + tensor.offset;",
        "    std::byte* const first_row = const_cast<std::byte*>(args_.live) + tensor.offset;",
        UPDATE,
    ),
    Mutation(
        "weights kept through memory that is not page-locked",
        "tp_worker/weights/weight_store.cpp",
        "            pieces_->fetch(kept.data(), live.data(), bytes_);\n",
        "            kernels::copy_and_wait(kept.data(), live.data(), bytes_);\n",
        "tp_worker_gpu_test GpuEngine.P8_WeightsAreKeptByPageLockedMemory",
    ),
    Mutation(
        "48 KiB of dynamic shared memory beside static, without asking",
        "kernels/device/launch.cuh",
        "    if (where.shared_bytes > 0) {\n",
        "    if (where.shared_bytes > 48 << 10) {\n",
        ATTENTION,
    ),
    Mutation(
        "a collective in a stream that nothing orders behind its input",
        "tests/emulated_gpu/nccl_test.cpp",
        "nccl().all_reduce(side.words, side.words, kNum, ncclUint32, ncclSum, comm, side.stream)",
        "nccl().all_reduce(side.words, side.words, kNum, ncclUint32, ncclSum, comm, make_stream())",
        NCCL,
        "late",
    ),
    Mutation(
        "a collective's result read before its stream is waited for",
        "tests/emulated_gpu/nccl_test.cpp",
        "    EXPECT_CUDA(cudaSuccess, cudaStreamSynchronize(side.stream));\n"
        "    EXPECT_CUDA(\n        cudaSuccess,\n        cudaMemcpy(\n            words.data(), side.gathered,",
        "    EXPECT_CUDA(\n        cudaSuccess,\n        cudaMemcpy(\n            words.data(), side.gathered,",
        NCCL,
        "late",
    ),
    Mutation(
        "another GPU's memory used without access to it",
        "tests/emulated_gpu/peers_test.cpp",
        "    EXPECT_CUDA(cudaSuccess, cudaDeviceEnablePeerAccess(0, 0));\n"
        "    EXPECT_CUDA(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(0, 0));\n",
        "",
        "emulated_gpu_test Peers.AKernelUsesAnotherGpusMemoryWithAccess",
    ),
    Mutation(
        "a range opened for its own GPU alone",
        "tests/emulated_gpu/peers_test.cpp",
        "cuMemSetAccess(address, kBytes, both, is_for_both ? 2 : 1)",
        "cuMemSetAccess(address, kBytes, both, 1)",
        "emulated_gpu_test Peers.ARangeIsForTheGpusThatItWasOpenedFor",
    ),
    Mutation(
        "an upload over what has not come down yet",
        "tp_worker/device/host_copy.cpp",
        "        is_down_[event].order_before(up_.stream());\n",
        "",
        UPLOAD,
        num_seeds=20,
    ),
    Mutation(
        "what comes down lies over what was not sent yet",
        "tp_worker/device/host_copy.cpp",
        "            is_up_[vacated].order_before(down_.stream());\n",
        "            static_cast<void>(vacated);\n",
        UPLOAD,
        num_seeds=20,
    ),
    Mutation(
        "a rank says that it has come before its whole block has written",
        EXCHANGE,
        "        __syncthreads();  // what the block wrote is there before the word says so\n",
        "",
        SUMS,
        num_seeds=20,
    ),
    Mutation(
        "a launch's number used again",
        EXCHANGE,
        "        mine_.num_launches = launch_;\n",
        "",
        MANY_SUMS,
    ),
    Mutation(
        "one buffer for all launches, while others still read it",
        EXCHANGE,
        "(launch & 1) * exchange.chunk_bytes",
        "0 * exchange.chunk_bytes",
        MANY_SUMS,
        num_seeds=20,
    ),
    Mutation(
        "sums read before their ranks have made them",
        EXCHANGE,
        "        is_met = meeting.meet(1);\n",
        "",
        SUMS,
        num_seeds=20,
    ),
    Mutation(
        "blocks that wait for others in a launch that is not cooperative",
        EXCHANGE,
        ".is_cooperative = true",
        ".is_cooperative = false",
        MANY_SUMS,
    ),
)


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", **options)


def check_out():
    """The sources of HEAD in a place of their own; what was built there before is kept."""
    if not (PLACE / ".git").exists():
        run("git", "-C", ROOT, "worktree", "prune")
        done = run("git", "-C", ROOT, "worktree", "add", "--detach", PLACE, "HEAD")
    else:
        head = run("git", "-C", ROOT, "rev-parse", "HEAD").stdout.strip()
        done = run("git", "-C", PLACE, "checkout", "--force", "--detach", head)
    if done.returncode != 0:
        sys.exit(f"mutations: {done.stderr.strip()}")


def build(program):
    if not (PLACE / "build" / "emulated" / "build.ninja").exists():
        done = run("cmake", "--preset", "emulated", cwd=PLACE)
        if done.returncode != 0:
            return done
    return run("cmake", "--build", "--preset", "emulated", "--target", program, "pitstop_emulated_cublas", cwd=PLACE)


def run_test(mutation):
    """What failed under the first schedule that found something, or None where all passed."""
    for seed in range(1, mutation.num_seeds + 1):
        found = run_schedule(mutation, seed)
        if found is not None:
            return found
    return None


def run_schedule(mutation, seed):
    program, name = mutation.test.split()
    environment = {
        **os.environ,
        "PITSTOP_SOURCE_DIR": str(PLACE),
        "PITSTOP_REQUIRE_GPU": "1",
        "PITSTOP_EMULATED_POLICY": mutation.policy,
        "PITSTOP_EMULATED_SEED": str(seed),
        "PITSTOP_EMULATOR_COPIES": mutation.copies,
        "PITSTOP_EMULATED_GPUS": "2",
        "PITSTOP_EMULATED_MACHINE": str(PLACE / "build" / "machine"),
    }
    command = [PLACE / "build" / "emulated" / "bin" / program, f"--gtest_filter={name}", "--gtest_break_on_failure"]
    try:
        done = run(*command, env=environment, timeout=TEST_S)
    except subprocess.TimeoutExpired:
        return f"no end within {TEST_S} s"
    if done.returncode == 0:
        return None
    said = [line for line in (done.stderr + done.stdout).splitlines() if any(word in line for word in FINDERS)]
    said += [line for line in done.stdout.splitlines() if "Failure" in line]
    return (said or [f"exit code {done.returncode}"])[0].strip()


def plant(mutation):
    """The file with the bug in it, and how it was."""
    path = PLACE / mutation.file
    text = path.read_text()
    if text.count(mutation.text) != 1:
        sys.exit(f"mutations: '{mutation.name}' does not fit {mutation.file}")
    path.write_text(text.replace(mutation.text, mutation.bug))
    return path, text


def try_one(mutation):
    path, text = plant(mutation)
    try:
        built = build(mutation.test.split()[0])
        if built.returncode != 0:
            return "", f"does not build: {built.stdout[-400:]}"
        found = run_test(mutation)
        return (found, "") if found else ("", "NOT FOUND")
    finally:
        path.write_text(text)


def check():
    """The mutations that no longer fit the sources."""
    return [m.name for m in MUTATIONS if (ROOT / m.file).read_text().count(m.text) != 1]


def earlier_rows():
    """{name: line} of the table as it is."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    return {line.split(" | ")[0][2:]: line for line in lines if line.startswith("| ")}


def table(found):
    """With what was found now, {name: how}, or not, {name: ""}, and before that for the others."""
    lines = [
        "# Bugs that only a device shows, and who finds them",
        "",
        "Written by `tests/emulated_gpu/mutations.py`: each bug is planted alone, the test passes without it and fails with it.",
        "",
        "| bug | in | found by | as |",
        "|---|---|---|---|",
    ]
    earlier = earlier_rows()
    for m in MUTATIONS:
        if found.get(m.name):
            lines.append(f"| {m.name} | `{m.file}` | `{m.test.split()[1]}` | {found[m.name].replace('|', '/')} |")
        elif m.name not in found and m.name in earlier:
            lines.append(earlier[m.name])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.check:
        misfits = check()
        print("\n".join(misfits) or f"{len(MUTATIONS)} mutations fit")
        return 1 if misfits else 0
    check_out()
    chosen = [m for m in MUTATIONS if any(word in m.name for word in options.only.split(","))]
    passed = {}
    rows = []
    for mutation in chosen:
        key = (mutation.test, mutation.policy, mutation.copies, mutation.num_seeds)
        if key not in passed:
            built = build(mutation.test.split()[0])
            if built.returncode != 0:
                sys.exit(f"mutations: {built.stdout[-2000:]}")
            passed[key] = run_test(mutation)
            print(f"without a bug: {mutation.test}: {passed[key] or 'passes'}", flush=True)
        begin = time.monotonic()
        found, trouble = ("", "its test fails without it") if passed[key] else try_one(mutation)
        print(f"{mutation.name}: {found or trouble} ({time.monotonic() - begin:.0f} s)", flush=True)
        rows.append((mutation, found, bool(found)))
    if options.write:
        TABLE.write_text(table({mutation.name: found for mutation, found, _ in rows}))
    num_found = sum(is_found for _, _, is_found in rows)
    print(f"{num_found} of {len(rows)} found")
    return 0 if num_found == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
