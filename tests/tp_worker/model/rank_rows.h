// Rows of logits through the samplers of several ranks. Each rank has a part of the vocabulary.
#pragma once

#include "base/isa.h"
#include "tests/checkpoint/temp_dir.h"
#include "tp_worker/model/request_state.h"
#include "tp_worker/model/sampler.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// Rows of logits, each of a request of its own.
struct Rows {
    std::int64_t vocab_len = 0;
    std::vector<std::vector<float>> logits{};
    std::vector<LogitRow> rows{};
    RequestSlots slots{};
    messages::StepResult empty{};  // with room for its results

    // Samples the output token `output_index`, or scores a given one.
    void add(
        const messages::RequestSetup& setup,
        std::vector<float> of_row,
        LogitRow::Kind kind = LogitRow::Kind::kSample,
        TokenId target = {}
    ) {
        LogitRow row{.kind = kind, .slot = static_cast<SlotId>(slots.size()), .target = target};
        const bool is_sample = kind == LogitRow::Kind::kSample;
        const auto grow = [](auto& values, std::size_t num) {
            const std::size_t begin = values.size();
            values.resize(begin + num);
            return begin;
        };
        const auto top = static_cast<std::size_t>(setup.logprobs.top);
        const auto place = [&](auto& into) {
            row.entry = grow(into.logprobs.values, 1);
            grow(into.ranks.values, 1);
            row.top_begin = grow(into.top_ids.values, top);
            grow(into.top_logprobs.values, top);
            row.ids_begin = grow(into.ids_logprobs.values, setup.logprobs.ids.size());
        };
        is_sample ? place(empty) : place(empty.scores);
        if (is_sample) grow(empty.sampled.values, 1);
        vocab_len = static_cast<std::int64_t>(of_row.size());
        slots.emplace_back(RequestState(setup, vocab_len));
        logits.push_back(std::move(of_row));
        rows.push_back(row);
    }
};

struct Sampled {
    messages::StepResult result{};
    std::vector<std::vector<TokenId>> ids{};   // by rank and row
    std::vector<std::vector<TokenId>> kept{};  // by rank and slot: for the next step
};

// Runs the samplers of this many ranks, one thread each. Rank 0 gathers into memory full of NaNs.
inline Sampled sample(const Rows& rows, int num_ranks) {
    const std::int64_t V = rows.vocab_len;
    const std::int64_t C = (V + num_ranks - 1) / num_ranks;
    const auto n = static_cast<std::int64_t>(rows.rows.size());
    Sampled sampled{.result = rows.empty};
    sampled.ids.resize(static_cast<std::size_t>(num_ranks));
    sampled.kept.resize(static_cast<std::size_t>(num_ranks));
    const test::TempDir dir;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
        threads.emplace_back([&, rank] {
            auto communicator = attach_shm_communicator(
                {.path = dir.path("ranks"),
                 .rank = static_cast<Rank>(rank),
                 .size = num_ranks,
                 .attach_timeout = std::chrono::seconds(20),
                 .peer_timeout = std::chrono::seconds(20)}
            );
            ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
            std::vector<float> part(static_cast<std::size_t>(n * C), -3.f);
            for (std::int64_t i = 0; i < n; ++i) {
                for (std::int64_t c = 0; c < C && rank * C + c < V; ++c) {
                    part[static_cast<std::size_t>(i * C + c)] =
                        rows.logits[static_cast<std::size_t>(i)]
                                   [static_cast<std::size_t>(rank * C + c)];
                }
            }
            const std::int64_t num_whole = rank == 0 ? n : 0;
            std::vector<float> whole(
                static_cast<std::size_t>(num_whole * V), std::numeric_limits<float>::quiet_NaN()
            );
            const RowLogits logits{
                .part = view2(part.data(), n, C),
                .whole =
                    num_ranks == 1 ? view2(part.data(), n, C) : view2(whole.data(), num_whole, V)};
            const Device device = Device::on_cpu(best_isa(), nullptr);
            Result<Transfers> transfers = Transfers::make(device, 0);
            ASSERT_TRUE(transfers.has_value());
            Result<Sampler> sampler = Sampler::make(
                {.device = device,
                 .transfers = &*transfers,
                 .sizes =
                     {.rows_max = n,
                      .vocab_len = V,
                      .num_slots = static_cast<std::int64_t>(rows.slots.size()),
                      .num_ranks = num_ranks,
                      .rank = static_cast<Rank>(rank)},
                 .communicator = communicator->get(),
                 .vocab_begin = rank * C}
            );
            ASSERT_TRUE(sampler.has_value());
            messages::StepResult empty;
            Result<std::vector<TokenId>> ids =
                sampler->run(logits, rows.rows, rows.slots, rank == 0 ? &sampled.result : &empty);
            ASSERT_TRUE(ids.has_value()) << ids.error().message;
            sampled.ids[static_cast<std::size_t>(rank)] = *std::move(ids);
            sampled.kept[static_cast<std::size_t>(rank)].assign(
                sampler->sampled(), sampler->sampled() + rows.slots.size()
            );
        });
    }
    for (std::thread& thread : threads) thread.join();
    return sampled;
}

}  // namespace pitstop::tp_worker
