#include "scheduler_proc/drafter.h"

#include "base/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>

namespace pitstop::scheduler {
namespace {

// Each count of right guesses starts as if kAssumed guesses had been verified.
constexpr double kAssumed = 4;

// When a request has this many guesses, its counts are halved: recent guesses matter most.
constexpr std::int64_t kRecentMax = 64;

double assumed_likelihood(const DraftIndex::Guess& guess) {
    return guess.share * std::min(0.9, 0.4 + 0.1 * guess.match);
}

std::string_view bytes_of(std::span<const TokenId> tokens) {
    return {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()};
}

}  // namespace

std::span<const TokenId> Drafter::draft(const Request& request, std::int64_t num_max) {
    Text& text = text_of(request);
    guess(text, request);
    const auto num = std::min(num_max, limits_.drafts_max);
    return std::span(text.likely)
        .first(std::min(text.likely.size(), static_cast<std::size_t>(num)));
}

std::span<const double> Drafter::likelihoods(const Request& request, std::int64_t num_max) {
    const std::size_t num = draft(request, num_max).size();
    return std::span(text_of(request).together).first(num);
}

// Skips the first guess, which is for the token being sampled.
std::span<const double> Drafter::awaited(const Request& request) {
    Text& text = text_of(request);
    guess(text, request);
    const auto num_sampled = static_cast<std::size_t>(request.progress.pending());
    return std::span(text.together).subspan(std::min(num_sampled, text.together.size()));
}

Drafter::Text& Drafter::text_of(const Request& request) {
    const auto [found, is_new] = texts_.try_emplace(request.key);
    Text& text = found->second;
    if (is_new) {
        text.group = group_of(request);
        Group& group = text.group->second;
        if (group.num_running++ == 0) idle_.erase(group.idle_since);
        count_bytes(group);
        text.num_known = request.progress.prompt_len();
    }
    return text;
}

Drafter::Groups::iterator Drafter::group_of(const Request& request) {
    std::string name;
    if (request.draft_key) {
        name = "key " + *request.draft_key;
    } else {
        const std::string connection = request.client.empty() ? "" : request.client.front();
        name =
            fmt::format("prompt {} {}", connection, to_hex(digest_of(bytes_of(request.prompt()))));
    }
    auto [found, is_new] = groups_.try_emplace(name);
    const bool is_another = !is_new && !request.draft_key &&
                            !std::ranges::equal(found->second.prompt, request.prompt());
    if (is_another) {
        // Another prompt with the same digest, which can be forged: the request gets its own group.
        std::tie(found, is_new) = groups_.try_emplace(fmt::format("request {}", raw(request.key)));
    }
    if (is_new) {
        Group& group = found->second;
        group.prompt.assign(request.prompt().begin(), request.prompt().end());
        rebuild(group);
    }
    return found;
}

// Adds the request's new tokens to the index.
void Drafter::follow(Text& text, const Request& request) {
    Group& group = text.group->second;
    if (text.generation != group.generation) {
        text.generation = group.generation;
        text.num_indexed = request.progress.prompt_len();
        text.last = group.prompt_end;
        if (!std::ranges::equal(group.prompt, request.prompt()))
            text.last = group.index.append(DraftIndex::kStart, request.prompt());
        group.index.append(text.last, request.draft_ids);
    }
    const std::span<const TokenId> all = request.tokens;
    text.last =
        group.index.append(text.last, all.subspan(static_cast<std::size_t>(text.num_indexed)));
    text.num_indexed = std::ssize(all);
}

// Compares the guesses with the tokens that are known since.
void Drafter::score_guesses(Text& text, const Request& request) {
    const auto num_new = request.progress.known() - text.num_known;
    for (std::int64_t i = 0; i < num_new && i < std::ssize(text.guesses); ++i) {
        const DraftIndex::Guess& guess = text.guesses[static_cast<std::size_t>(i)];
        const bool is_right =
            request.tokens[static_cast<std::size_t>(text.num_known + i)] == guess.token;
        for (Record* record : {&record_of(guess), &text.record}) {
            ++record->num;
            record->num_right += is_right ? 1 : 0;
        }
        if (!is_right) break;
    }
    if (text.record.num < kRecentMax) return;
    text.record.num /= 2;
    text.record.num_right /= 2;
}

// Guesses again only after the request has new tokens.
void Drafter::guess(Text& text, const Request& request) {
    if (text.num_known == request.progress.known() &&
        text.generation == text.group->second.generation)
        return;
    score_guesses(text, request);
    follow(text, request);
    text.num_known = request.progress.known();
    text.guesses = text.group->second.index.guess(text.last, static_cast<int>(limits_.drafts_max));
    text.likely.clear();
    text.together.clear();
    double together = 1;
    for (const DraftIndex::Guess& guess : text.guesses) {
        together *= likelihood(text, guess);
        if (together < limits_.likely_min) break;
        text.likely.push_back(guess.token);
        text.together.push_back(together);
    }
}

Drafter::Record& Drafter::record_of(const DraftIndex::Guess& guess) {
    const auto share = static_cast<std::size_t>(guess.share * static_cast<float>(kShares));
    return records_[static_cast<std::size_t>(guess.match)][std::min(share, kShares - 1)];
}

double Drafter::likelihood(const Text& text, const DraftIndex::Guess& guess) {
    const auto blend = [](const Record& record, double assumed) {
        return (static_cast<double>(record.num_right) + kAssumed * assumed) /
               (static_cast<double>(record.num) + kAssumed);
    };
    return blend(text.record, blend(record_of(guess), assumed_likelihood(guess)));
}

void Drafter::remove(const Request& request) {
    const auto found = texts_.find(request.key);
    if (found == texts_.end()) return;
    const Groups::iterator group = found->second.group;
    follow(found->second, request);  // adds its last tokens
    texts_.erase(found);
    keep(group->second, request);
    if (--group->second.num_running == 0) {
        group->second.idle_since = ++tick_;
        idle_.emplace(tick_, group);
    }
    count_bytes(group->second);
    limit_memory();
}

void Drafter::keep(Group& group, const Request& request) {
    const auto output = std::span(request.tokens).subspan(request.prompt().size());
    if (output.empty()) return;
    group.ended.emplace_back(output.begin(), output.end());
    group.num_ended += std::ssize(output);
    count_bytes(group);
    if (group.num_ended * kTokenBytes <= limits_.memory_max / kGroupShare) return;
    const auto half = static_cast<std::ptrdiff_t>((group.ended.size() + 1) / 2);
    group.ended.erase(group.ended.begin(), group.ended.begin() + half);
    rebuild(group);
}

// Running members add their texts again at their next draft.
void Drafter::rebuild(Group& group) {
    ++group.generation;
    group.index = {};
    group.prompt_end = group.index.append(DraftIndex::kStart, group.prompt);
    group.num_ended = 0;
    for (const std::vector<TokenId>& output : group.ended) {
        group.index.append(group.prompt_end, output);
        group.num_ended += std::ssize(output);
    }
    count_bytes(group);
}

void Drafter::count_bytes(Group& group) {
    kept_bytes_ -= group.kept_bytes;
    group.kept_bytes = group.num_ended * kTokenBytes;
    if (group.num_running == 0) {
        group.kept_bytes =
            group.index.bytes() + std::int64_t{sizeof(Groups::value_type)} +
            (group.num_ended + std::ssize(group.prompt)) * std::int64_t{sizeof(TokenId)};
    }
    kept_bytes_ += group.kept_bytes;
}

// Drops groups without running members first, then ended texts of groups that have some.
void Drafter::limit_memory() {
    while (kept_bytes_ > limits_.memory_max && !idle_.empty()) {
        const Groups::iterator group = idle_.begin()->second;
        idle_.erase(idle_.begin());
        kept_bytes_ -= group->second.kept_bytes;
        groups_.erase(group);
    }
    for (auto group = groups_.begin(); kept_bytes_ > limits_.memory_max && group != groups_.end();
         ++group) {
        if (group->second.ended.empty()) continue;
        group->second.ended.clear();
        rebuild(group->second);
    }
}

}  // namespace pitstop::scheduler
