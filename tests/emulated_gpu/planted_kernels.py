"""The bugs that mutations.py plants in kernels, each with the test that must find it."""

from mutation import Mutation

DECODE = "kernels/attention_decode.cu"
WGMMA = "kernels/attention_prefill_wgmma.cu"
EXPERTS = "kernels/expert_linear_wgmma.cu"
EXCHANGE = "kernels/exchange.cu"
ATTENTION = "kernels_gpu_test On/Attention.MeetsTheReferenceOnAwkwardShapes/cuda"
LONG_ATTENTION = "kernels_gpu_test CudaAttention.LongPrefillsMeetTheReference"
UNEQUAL = "kernels_gpu_test UnequalRows."
LINEAR = "kernels_gpu_test On/Linear.MeetsTheReferenceOnAwkwardShapes/cuda*"
MANY_ROWS = "kernels_gpu_test On/ExpertLinear.MeetsTheReferenceWithManyRowsPerExpert/cuda"
SUMS = "kernels_gpu_test CudaExchange.SumsInRankOrderOnEveryRank"
MANY_SUMS = "kernels_gpu_test CudaExchange.ManyInARowDoNotMixUp"

KERNEL_MUTATIONS = (
    Mutation(
        "a norm that does not wait for the kernel before it",
        "kernels/rmsnorm.cu",
        "    let_next_kernel_start();\n    wait_for_kernel_before();\n",
        "    let_next_kernel_start();\n",
        "kernels_gpu_test CudaDependentLaunch.TheNormWaits",
    ),
    Mutation(
        "a product that reads x before the kernel before it is done",
        "kernels/linear_gemv.cu",
        "    let_next_kernel_start();\n    wait_for_kernel_before();\n",
        "    let_next_kernel_start();\n",
        "kernels_gpu_test CudaDependentLaunch.SmallProductsWait",
    ),
    Mutation(
        "a warpgroup that keeps the turn with its products",
        WGMMA,
        "        give_turn_to(1 - warpgroup);\n",
        "        give_turn_to(warpgroup);\n",
        ATTENTION,
    ),
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
        "        wait_copies<0>();\n        fence_async_proxy();\n",
        "        wait_copies<0>();\n",
        ATTENTION,
    ),
    Mutation(
        "queries touched by ordinary stores, which other warps' fences are not for",
        WGMMA,
        "    barrier_wait(&barriers.keys_full[0], 0);\n    wgmma_fence();\n",
        "    barrier_wait(&barriers.keys_full[0], 0);\n"
        "    *reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(queries) + lane_index() * 4) ^= 0x80008000u;\n"
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
        "        wgmma_fence();\n        multiply_keys<D>(scores, queries, tiles.keys_of(stage));\n",
        "        multiply_keys<D>(scores, queries, tiles.keys_of(stage));\n",
        ATTENTION,
    ),
    Mutation(
        "scores read before their product is waited for",
        WGMMA,
        "wgmma_wait<1>(scores);",
        "wgmma_wait<2>(scores);",
        ATTENTION,
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
        "a missing proxy fence before a stage of experts is multiplied",
        EXPERTS,
        "        fence_async_proxy();\n",
        "",
        MANY_ROWS,
    ),
    Mutation(
        "a missing wgmma.fence before the products of experts",
        EXPERTS,
        "        wgmma_fence();\n",
        "",
        MANY_ROWS,
    ),
    Mutation(
        "a stage of experts multiplied before its copies have arrived",
        EXPERTS,
        "wait_copies<kAhead - 1>();",
        "wait_copies<kAhead>();",
        MANY_ROWS,
    ),
    Mutation(
        "a stage of experts refilled while products read it",
        EXPERTS,
        "wgmma_wait<1>();",
        "wgmma_wait<2>();",
        MANY_ROWS,
        copies="random",
        num_seeds=20,
    ),
    Mutation(
        "a missing __syncthreads before a stage of experts is multiplied",
        EXPERTS,
        "        __syncthreads();  // stage s has arrived for all, and the products of s - 2 are done for all\n",
        "",
        MANY_ROWS,
    ),
    Mutation(
        "sums of experts stored before their products are waited for",
        EXPERTS,
        "wgmma_wait<0>(sums);",
        "wgmma_wait<1>(sums);",
        MANY_ROWS,
    ),
    Mutation(
        "rows of the next expert overwritten by a tile's end",
        EXPERTS,
        "        if (m >= at.m_end) continue;\n",
        "",
        MANY_ROWS,
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
        "        __syncwarp();  // all have read this half, which is refilled next\n",
        "",
        UNEQUAL + "MeetTheReference",
        copies="random",
    ),
    Mutation(
        "a record's maximum overwritten before all lanes have loaded it",
        DECODE,
        "        __syncwarp();  // all have loaded the values to be overwritten\n        if (!has_head) continue;\n",
        "        if (!has_head) continue;\n",
        UNEQUAL + "P6_HaveTheSameBitsWhateverRoomThereIs",
    ),
    Mutation(
        "cp.async waited for one group too late",
        "kernels/device/linear_tile.cuh",
        "wait_copies<Shape::kStages - 2>();\n        __syncthreads();",
        "wait_copies<Shape::kStages - 1>();\n        __syncthreads();",
        LINEAR,
    ),
    Mutation(
        "a missing __syncthreads before a stage is refilled",
        "kernels/device/linear_tile.cuh",
        "        __syncthreads();  // stage s has arrived for all, and all are done with stage s - 1\n",
        "",
        LINEAR,
    ),
    Mutation(
        "48 KiB of dynamic shared memory beside static, without asking",
        "kernels/runtime/launch.cuh",
        "    if (where.shared_bytes > 0) {\n",
        "    if (where.shared_bytes > 48 << 10) {\n",
        ATTENTION,
    ),
    Mutation(
        "a rank says that it has come before its whole block has written",
        EXCHANGE,
        "        __syncthreads();  // orders the block's writes before the word\n",
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
    Mutation(
        "padding that writes to a request's page",
        "kernels/step_rows.cu",
        "            args.kv_slots[r] = std::int64_t{args.scratch_page} * P + i;\n",
        "            args.kv_slots[r] = i;\n",
        "tp_worker_gpu_test Steps/GpuPadding.WritesToScratchPagesAlone/*",
    ),
    Mutation(
        "a row that looks for its page before that is in its table",
        "kernels/step_rows.cu",
        "    __syncthreads();\n    const std::int32_t P = args.page_size;\n",
        "    const std::int32_t P = args.page_size;\n",
        "kernels_gpu_test CudaStepRows.KeepWhatTheReferenceKeeps",
        num_seeds=20,
    ),
    Mutation(
        "parts of a sum added before their warps have them",
        "kernels/linear.cu",
        "    __syncthreads();\n    const int thread = static_cast<int>(threadIdx.x);\n"
        "    const int m = thread / Shape::kTileN;\n",
        "    const int thread = static_cast<int>(threadIdx.x);\n    const int m = thread / Shape::kTileN;\n",
        LINEAR,
    ),
    Mutation(
        "cp.async of a split product waited for one group too late",
        "kernels/linear.cu",
        "wait_copies<Shape::kStages - 2>();\n        __syncwarp();",
        "wait_copies<Shape::kStages - 1>();\n        __syncwarp();",
        LINEAR,
    ),
    Mutation(
        "a count of a row's parts that does not start over",
        "kernels/sampling.cu",
        "atomicInc(params.arrivals + r, others)",
        "atomicAdd(params.arrivals + r, 1u)",
        "kernels_gpu_test On/Sample.RowsThatDoNotTruncateAreThoseOfAnyCall/cuda",
    ),
    Mutation(
        "a sum of 64 bits that loses its carries",
        "kernels/device/wide_sum.cuh",
        "before + low < low ? 1u : 0u",
        "0u",
        "kernels_gpu_test On/Sample.TopPKeepsTheSmallestSetThatHoldsTheMass/cuda",
    ),
)
