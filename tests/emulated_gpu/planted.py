"""The bugs that mutations.py plants in kernels and in code that uses a GPU, each with the test that
must find it.
"""

from mutation import Mutation
from planted_kernels import KERNEL_MUTATIONS

DIGESTS = "tp_worker_gpu_test GpuEngine.HasTheDigestsOfTheCpusWeights"
UPLOAD = "tp_worker_gpu_test GpuUpdater.P1_P2_P10_AVersionThatIsStagedInHostMemoryIsUploadedByItsCommit"
UPDATE = "tp_worker_gpu_test GpuUpdater.P1_P2_P10_ACommitSwapsAndARollbackSwapsBack"
NCCL = "emulated_gpu_test Nccl.ProcessesExchangeInTheOrderOfTheirStreams"
TOKENS = "tp_worker_gpu_test GpuEngine.FollowsTheReferenceWhereItIsSure"

MUTATIONS = (
    *KERNEL_MUTATIONS,
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
        "tp_worker_gpu_test GpuUpdater.P2_AStageWritesAfterTheReadsOfTheRetiredCopy",
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
        "tp_worker/device/pinned_pieces.cpp",
        "    wait_for(*piece);\n    return",
        "    return",
        UPDATE,
        "late",
    ),
    Mutation(
        "a version staged into the copy that serves",
        "tp_worker/weights/gpu_writer.cpp",
        "         .arena = args_.target},\n        scratch,",
        "         .arena = const_cast<std::byte*>(args_.live)},\n        scratch,",
        UPDATE,
    ),
    Mutation(
        "weights kept through memory that is not page-locked",
        "tp_worker/weights/weight_store.cpp",
        "            gpu_->pieces->fetch(kept.data(), live.data(), bytes_, &threads);\n",
        "            kernels::copy_and_wait(kept.data(), live.data(), bytes_);\n",
        "tp_worker_gpu_test GpuEngine.P8_WeightsAreKeptByPageLockedMemory",
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
        "a graph of one copy of the weights taken for the other's",
        "tp_worker/model/model.cpp",
        ".weights = weights.place(),",
        "",
        "tp_worker_gpu_test GpuGraphs.P1_EachCopyOfTheWeightsHasItsOwn",
    ),
    Mutation(
        "padding of a small step that writes to a request's page",
        "tp_worker/model/step_batch.cpp",
        "        kv_slots_.push_back(limits.num_pages * limits.page_size + i);\n",
        "        kv_slots_.push_back(limits.page_size + i);\n",
        "tp_worker_gpu_test Steps/GpuPadding.WritesToScratchPagesAlone/*",
    ),
    Mutation(
        "a graph whose launches follow the longest row of the step that it was made of",
        "tp_worker/model/step_batch.cpp",
        "    q_len_max_ = 0;  // unknown: a launch that depended on it would not depend only on the shape\n",
        "",
        "tp_worker_gpu_test GpuSmallSteps.AreNotThoseThatTheirGraphWasMadeOf",
    ),
    Mutation(
        "what others take of the GPU meanwhile charged to a graph",
        "tp_worker/model/step_graphs.cpp",
        "std::clamp<std::int64_t>(taken, 0, steps.graph->num_nodes() * kNodeBytesMax)",
        "taken",
        "tp_worker_gpu_test GpuGraphs.MemoryOfOthersIsChargedToAGraphAsFarAsItsNodesCanUse",
    ),
    Mutation(
        "rows taken for those of the step before that have other requests",
        "tp_worker/model/step_updates.cpp",
        "std::ranges::equal(batch.slots, slots_) &&",
        "batch.slots.size() == slots_.size() &&",
        "tp_worker_test StepUpdatesTest.RowsOfOtherRequestsDoNotGoOn",
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
        "    turns_[1 - ended].since = Clock::now();  // the second of two turns has the device from now on\n",
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
        "a draft drawn under the penalties of the token before all drafts",
        "tp_worker/model/sampler_call.cpp",
        "        place.ahead != nullptr ? *place.ahead : *slots[static_cast<std::size_t>(raw(place.slot))];\n",
        "        *slots[static_cast<std::size_t>(raw(place.slot))];\n",
        "tp_worker_gpu_test GpuDrafts.P11_ChangeNoBit",
    ),
    Mutation(
        "a draw after a wrong draft that counts",
        "tp_worker/model/engine_steps.cpp",
        "        if (row.kind != LogitRow::Kind::kSample || !counts[i]) continue;\n",
        "        if (row.kind != LogitRow::Kind::kSample) continue;\n",
        "tp_worker_gpu_test GpuDrafts.P11_ChangeNoBit",
    ),
    Mutation(
        "the last token after drafts taken from the device, which does not know it",
        "tp_worker/model/step_batch.cpp",
        "        row.has_drafts ? request.note_drafts() : request.note_draw();\n",
        "        request.note_draw();\n",
        "tp_worker_gpu_test GpuDrafts.P11_ALastTokenIsTheLastThatCounts",
    ),
    Mutation(
        "a step begun before the host knows which drafts count",
        "tp_worker/model/engine_steps.cpp",
        "    if (num_under_way_ > 0 && (has_drafts(plan) || oldest().planned.has_drafts()))\n",
        "    if (num_under_way_ > 0 && has_drafts(plan))\n",
        "tp_worker_gpu_test GpuDrafts.P11_ALastTokenIsTheLastThatCounts",
    ),
    Mutation(
        "as many rows of logits as rows, where drafts need more",
        "tp_worker/model/step_batch.cpp",
        "        static_cast<std::int64_t>(std::max(kv_lens_.size(), logit_rows_.size()))\n",
        "        static_cast<std::int64_t>(kv_lens_.size())\n",
        "tp_worker_gpu_test GpuDrafts.P11_AreVerifiedUpToTheMost",
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
        "words that have changed written in a stream that nothing orders before the draws",
        "tp_worker/model/sampler_call.cpp",
        "        kernels::word_runs_cuda({\n"
        "            .update = device_changes_,\n"
        "            .words = sampler_.standing_.device_words(),\n"
        "            .stream = sampler_.stream_,\n",
        "        static const auto other = kernels::DeviceStream::create(kernels::StreamPriority::kStep);\n"
        "        kernels::word_runs_cuda({\n"
        "            .update = device_changes_,\n"
        "            .words = sampler_.standing_.device_words(),\n"
        "            .stream = other->stream(),\n",
        "tp_worker_gpu_test GpuSampler.*",
        num_seeds=20,
    ),
    Mutation(
        "a word that has changed, which the host does not remember",
        "tp_worker/model/standing_arrays.cpp",
        "            words_[at + i] = word_at(bytes, i);\n            values_.push_back(words_[at + i]);\n",
        "            values_.push_back(word_at(bytes, i));\n",
        "tp_worker_test Standing.HoldWhatWasPlacedThroughAnyCalls",
    ),
)
