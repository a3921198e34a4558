// Measures what drafts cost the scheduler, in CPU time of one thread, the least of several runs.
//
//   samples   8 similar outputs of one prompt, like the samples of a training step. Measured are
//             appending a token, drafting after each token, and the bytes per token.
//   letter    a prompt of 32k equal tokens: appending it, and drafting after it
#include "scheduler_proc/draft_index.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <limits>
#include <random>
#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr int kRuns = 9;
constexpr int kDrafts = 16;
constexpr std::size_t kLetters = std::size_t{1} << 15;
constexpr std::size_t kOutputTokens = 2000;
constexpr int kOutputs = 8;

double cpu_us() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Returns the CPU time that `work` takes.
template <class Work>
double took_us(const Work& work) {
    const double begin = cpu_us();
    work();
    return cpu_us() - begin;
}

// Makes outputs that equal the first one except for about every 25th token.
std::vector<std::vector<TokenId>> make_outputs(std::mt19937& random) {
    std::vector<std::vector<TokenId>> outputs(kOutputs);
    for (std::size_t i = 0; i < kOutputTokens; ++i)
        outputs[0].push_back(static_cast<TokenId>(random() % 30000));
    for (std::size_t j = 1; j < outputs.size(); ++j) {
        outputs[j] = outputs[0];
        for (TokenId& token : outputs[j])
            if (random() % 25 == 0) token = static_cast<TokenId>(random() % 30000);
    }
    return outputs;
}

struct Samples {
    double append_us = 0;  // per token
    double guess_us = 0;   // per known token
    double draft_us = 0;   // per draft: appending and finding, divided by the number of drafts
    double bytes = 0;      // per kept token
};

Samples measure_samples(const std::vector<std::vector<TokenId>>& outputs) {
    DraftIndex index;
    double append_us = 0;
    double guess_us = 0;
    std::int64_t num_drafts = 0;
    const std::vector<TokenId> prompt(100, TokenId{1});
    const DraftIndex::Place prompt_end = index.append(DraftIndex::kStart, prompt);
    for (const std::vector<TokenId>& output : outputs) {
        DraftIndex::Place last = prompt_end;
        for (std::size_t begin = 0; begin < output.size(); begin += 100) {
            // Times 100 tokens at once, because reading the clock costs as much as one token.
            std::vector<DraftIndex::Place> places;
            const auto part = std::span(output).subspan(begin, 100);
            append_us += took_us([&] {
                for (const TokenId token : part) {
                    last = index.append(last, token);
                    places.push_back(last);
                }
            });
            guess_us += took_us([&] {
                for (const DraftIndex::Place place : places)
                    num_drafts += std::ssize(index.guess(place, kDrafts));
            });
        }
    }
    const auto num = static_cast<double>(outputs.size() * kOutputTokens);
    // The index of ended outputs also keeps each token itself, to rebuild the index from.
    const double kept =
        static_cast<double>(index.bytes()) / static_cast<double>(index.num_tokens());
    return {
        append_us / num,
        guess_us / num,
        (append_us + guess_us) / static_cast<double>(num_drafts),
        kept + sizeof(TokenId)};
}

int main_with() {
    std::mt19937 random(5);
    const auto outputs = make_outputs(random);
    constexpr double kMax = std::numeric_limits<double>::max();
    Samples best{kMax, kMax, kMax, 0};
    double letter_append_us = kMax;
    double letter_guess_us = kMax;
    const std::vector<TokenId> letters(kLetters, TokenId{7});
    double letter_bytes = 0;
    for (int run = 0; run < kRuns; ++run) {
        const Samples samples = measure_samples(outputs);
        best.append_us = std::min(best.append_us, samples.append_us);
        best.guess_us = std::min(best.guess_us, samples.guess_us);
        best.draft_us = std::min(best.draft_us, samples.draft_us);
        best.bytes = samples.bytes;
        DraftIndex index;
        DraftIndex::Place last{};
        const double append_us = took_us([&] { last = index.append(DraftIndex::kStart, letters); });
        letter_append_us = std::min(letter_append_us, append_us);
        std::size_t num = 0;
        letter_guess_us =
            std::min(letter_guess_us, took_us([&] { num = index.guess(last, kDrafts).size(); }));
        letter_bytes = static_cast<double>(index.bytes()) / static_cast<double>(kLetters);
        if (num == 0) return 1;
    }
    const nlohmann::ordered_json report{
        {"append_us_per_token", best.append_us},
        {"guess_us_per_token", best.guess_us},
        {"us_per_draft", best.draft_us},
        {"bytes_per_kept_token", best.bytes},
        {"letters", kLetters},
        {"letters_append_us", letter_append_us},
        {"letters_guess_us", letter_guess_us},
        {"letters_bytes_per_token", letter_bytes},
    };
    fmt::print("{}\n", report.dump(2));
    return 0;
}

}  // namespace
}  // namespace pitstop::scheduler

int main() { return pitstop::scheduler::main_with(); }
