"""The bugs that mutations.py plants, each with the test that must find it."""

from mutation import Mutation

DECODE = "kernels/attention_decode.cu"
WGMMA = "kernels/attention_prefill_wgmma.cu"
EXCHANGE = "kernels/exchange.cu"
ATTENTION = "kernels_gpu_test On/Attention.MeetsTheReferenceOnAwkwardShapes/cuda"
LONG_ATTENTION = "kernels_gpu_test CudaAttention.LongPrefillsMeetTheReference"
UNEQUAL = "kernels_gpu_test UnequalRows."
LINEAR = "kernels_gpu_test On/Linear.MeetsTheReferenceOnAwkwardShapes/cuda*"
DIGESTS = "tp_worker_gpu_test GpuEngine.HasTheDigestsOfTheCpusWeights"
UPLOAD = "tp_worker_gpu_test GpuUpdater.P1_P2_P10_AVersionThatIsStagedInHostMemoryIsUploadedByItsCommit"
UPDATE = "tp_worker_gpu_test GpuUpdater.P1_P2_P10_ACommitSwapsAndARollbackSwapsBack"
NCCL = "emulated_gpu_test Nccl.ProcessesExchangeInTheOrderOfTheirStreams"
SUMS = "kernels_gpu_test CudaExchange.SumsInRankOrderOnEveryRank"
MANY_SUMS = "kernels_gpu_test CudaExchange.ManyInARowDoNotMixUp"
TOKENS = "tp_worker_gpu_test GpuEngine.FollowsTheReferenceWhereItIsSure"

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
        "wait_copies<Shape::kStages - 2>();\n        __syncthreads();",
        "wait_copies<Shape::kStages - 1>();\n        __syncthreads();",
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
        '    turn.event.wait(wait_max_, "a step", kernels::DeviceEvent::Watch::kClose, since);\n',
        "",
        TOKENS,
        "late",
    ),
    Mutation(
        "a step's inputs overwritten before they were copied",
        "tp_worker/device/transfers.cpp",
        "    unsent_begin_ = unsent_end_;\n}\n\nvoid Transfers::keep() {",
        "    unsent_begin_ = unsent_end_ = used_ = 0;\n}\n\nvoid Transfers::keep() {",
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
        "tp_worker/device/transfers.cpp",
        '    turn.event.wait(wait_max_, "a step", kernels::DeviceEvent::Watch::kClose, since);\n',
        "    if (!turn.outputs.empty())\n"
        '        turn.event.wait(wait_max_, "a step", kernels::DeviceEvent::Watch::kClose, since);\n',
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
        "            RETURN_IF_ERROR(fill_piece(rows, bytes, gpu_.pieces_->next()));\n",
        "            static std::byte* const piece = gpu_.pieces_->next();\n"
        "            RETURN_IF_ERROR(fill_piece(rows, bytes, piece));\n",
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
        "            pieces_->fetch(kept.data(), live.data(), bytes_, &threads);\n",
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
    Mutation(
        "a graph of one copy of the weights taken for the other's",
        "tp_worker/model/model.cpp",
        ".weights = weights.embedding.data,",
        "",
        "tp_worker_gpu_test GpuGraphs.P1_EachCopyOfTheWeightsHasItsOwn",
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
        "rows taken for those of the step before that have other requests",
        "tp_worker/model/step_updates.cpp",
        "std::ranges::equal(batch.slots, slots_) &&",
        "batch.slots.size() == slots_.size() &&",
        "tp_worker_test StepUpdatesTest.FollowAnyOrderOfRequests",
    ),
    Mutation(
        "arrays of a step that are sent after the graph that reads them",
        "tp_worker/model/engine_steps.cpp",
        "    transfers_->send();\n    if (step->planned.is_padded()) return model_->run_padded(placed, weights_->live());\n",
        "    if (step->planned.is_padded()) {\n"
        "        RETURN_IF_ERROR(model_->run_padded(placed, weights_->live()));\n"
        "        transfers_->send();\n        return Ok{};\n    }\n    transfers_->send();\n",
        "tp_worker_gpu_test GpuAhead.TakesTheTokensThatTheHostSees",
    ),
    Mutation(
        "one page-locked memory for two steps under way",
        "tp_worker/device/transfers.cpp",
        "    current_ = 1 - current_;\n",
        "    current_ = 1 - current_;\n    std::swap(turns_[0].pinned, turns_[1].pinned);\n",
        "tp_worker_gpu_test GpuAhead.GivesTheBitsOfOneStepAtATime",
    ),
    Mutation(
        "what a step under way draws counted for the request that has its slot next",
        "tp_worker/model/engine_steps.cpp",
        "        if (num_under_way_ > 0) oldest().set_up_anew.push_back(setup.slot);\n",
        "        if (num_under_way_ > 2) oldest().set_up_anew.push_back(setup.slot);\n",
        "tp_worker_gpu_test GpuAhead.GivesTheBitsOfOneStepAtATime",
    ),
    Mutation(
        "the time of the second of two slow steps counted from when it was enqueued",
        "tp_worker/device/transfers.cpp",
        "    turns_[1 - ended].since = Clock::now();  // of two the second has the device from now on\n",
        "",
        "tp_worker_gpu_faults_test TransferTurns.P5_OfTwoSlowOnesTheSecondHasATimeOfItsOwn",
    ),
    Mutation(
        "a step whose time runs out only for who waits for it",
        "tp_worker/device/transfers.cpp",
        "    return first.event.is_done() || Clock::now() - first.since >= wait_max_;\n",
        "    return first.event.is_done();\n",
        "tp_worker_gpu_faults_test GpuWatch.P5_AStepsTimeRunsOutThoughNobodyWaitsForIt",
    ),
    Mutation(
        "ranks that wait for a step before they enqueue the next",
        "tp_worker/model/engine_steps.cpp",
        "    if (is_long) RETURN_IF_ERROR(complete_older());\n",
        "    if (is_long || tp() > 1) RETURN_IF_ERROR(complete_older());\n",
        "tp_worker_gpu_ranks_test GpuRanksAhead.EnqueueAStepWhileTheOneBeforeItRuns",
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
        "counts of tokens that the step under way has not drawn yet",
        "tp_worker/model/engine_steps.cpp",
        "    const bool waits = num_under_way_ > 0 && follows_tokens(*step);\n",
        "    const bool waits = false;\n",
        "tp_worker_gpu_test GpuAhead.GivesTheBitsOfOneStepAtATime",
    ),
    Mutation(
        "an order that is carried out while steps are under way",
        "tp_worker/worker_loop.cpp",
        "        RETURN_IF_ERROR(finish_steps(0));\n        ASSIGN_OR_RETURN(\n",
        "        ASSIGN_OR_RETURN(\n",
        "tp_worker_process_test GpuWorkerProcess.P1_ACommitWaitsForTheStepsUnderWay",
        num_seeds=20,
    ),
    Mutation(
        "tokens left at the place of a row in its batch",
        "tp_worker/model/sampler_call.cpp",
        "sampler_.sampled_ + raw(rows_[i].place->slot)",
        "sampler_.sampled_ + i",
        "tp_worker_gpu_test GpuAhead.TakesTheTokensThatTheHostSees",
    ),
    Mutation(
        "an id of the last draw taken for what was asked for",
        "tp_worker/model/sampler_call.cpp",
        "constexpr TokenId kIdDrawn{-1};",
        "constexpr TokenId kIdDrawn{0};",
        "tp_worker_gpu_test GpuSampler.AGivenIdIsNotTheOneThatWasDrawn",
    ),
    Mutation(
        "what a row of the last step kept taken for all of the next",
        "tp_worker/model/sampler_call.cpp",
        "kKeptMinDrawn = std::numeric_limits<float>::quiet_NaN()",
        "kKeptMinDrawn = -std::numeric_limits<float>::infinity()",
        "tp_worker_gpu_test GpuSampler.ARowThatKeepsAllIsNotTheOneThatKeptTwo",
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
