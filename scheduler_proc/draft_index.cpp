#include "scheduler_proc/draft_index.h"

#include "base/check.h"
#include "base/digest.h"

#include <algorithm>
#include <bit>

namespace pitstop::scheduler {
namespace {

constexpr std::size_t kHeadsMin = 64;

}  // namespace

// Hashes the last kGram tokens up to `place`, or fewer near the start of a text.
std::size_t DraftIndex::bucket_of(std::int32_t place) const {
    std::uint64_t hash = 0;
    for (int i = 0; i < kGram && place != kNone; ++i, place = at(place).before)
        hash = (hash + static_cast<std::uint32_t>(raw(at(place).token)) + 1) * kDigestStep;
    return static_cast<std::size_t>(mix64(hash)) & (heads_.size() - 1);
}

void DraftIndex::link(std::int32_t place) {
    std::int32_t& head = heads_[bucket_of(place)];
    entries_[static_cast<std::size_t>(place)].chain = head;
    head = place;
}

// More heads than entries, so that few n-grams share a chain. The array grows by half, not double.
void DraftIndex::make_room(std::size_t num) {
    const std::size_t size = entries_.size() + num;
    if (size > entries_.capacity())
        entries_.reserve(std::max({kHeadsMin, size, entries_.size() + entries_.size() / 2}));
    if (size <= heads_.size()) return;
    heads_.assign(std::max(kHeadsMin, std::bit_ceil(size)), kNone);
    for (std::int32_t place = 0; place < std::ssize(entries_); ++place) link(place);
}

DraftIndex::Place DraftIndex::append(Place after, TokenId token) {
    CHECK(raw(after) >= -1 && raw(after) < std::ssize(entries_));
    make_room(1);
    const auto place = static_cast<std::int32_t>(entries_.size());
    entries_.push_back({.token = token, .before = raw(after)});
    if (after != kStart) {
        std::int32_t& next = entries_[static_cast<std::size_t>(raw(after))].after;
        if (next == kNone) next = place;
    }
    link(place);
    return Place{place};
}

DraftIndex::Place DraftIndex::append(Place after, std::span<const TokenId> tokens) {
    make_room(tokens.size());
    for (const TokenId token : tokens) after = append(after, token);
    return after;
}

// Returns how many tokens are equal, backwards from `a` and `b`, up to kMatchMax.
int DraftIndex::match_of(std::int32_t a, std::int32_t b) const {
    int match = 0;
    while (match < kMatchMax && a != kNone && b != kNone && at(a).token == at(b).token) {
        if (a == b) return kMatchMax;  // `a` and `b` are one place: everything before it is equal
        ++match;
        a = at(a).before;
        b = at(b).before;
    }
    return match;
}

std::vector<DraftIndex::Occurrence> DraftIndex::occurrences(std::int32_t last) const {
    std::vector<Occurrence> found;
    std::int32_t place = heads_[bucket_of(last)];
    for (int visits = 0; visits < kVisitsMax && place != kNone; ++visits, place = at(place).chain) {
        const int match = at(place).after == kNone ? 0 : match_of(last, place);
        if (match >= kGram) found.push_back({at(place).after, match});
    }
    return found;
}

std::vector<DraftIndex::Guess> DraftIndex::guess(Place last, int num_max) const {
    std::vector<Guess> guesses;
    if (last == kStart) return guesses;
    std::vector<Occurrence> voters = occurrences(raw(last));
    const auto weight_of = [](const Occurrence& voter) {
        return static_cast<double>(std::uint64_t{1} << std::min(voter.match, kMatchMax));
    };
    while (std::ssize(guesses) < num_max && !voters.empty()) {
        double total = 0;
        double most = 0;
        TokenId best{};
        for (const Occurrence& voter : voters) {
            total += weight_of(voter);
            double votes = 0;
            for (const Occurrence& other : voters)
                votes += at(other.next).token == at(voter.next).token ? weight_of(other) : 0;
            if (votes <= most) continue;
            most = votes;
            best = at(voter.next).token;
        }
        std::erase_if(voters, [&](const Occurrence& voter) {
            return at(voter.next).token != best;
        });
        int match = 0;
        for (const Occurrence& voter : voters) match = std::max(match, voter.match);
        guesses.push_back({best, match, static_cast<float>(most / total)});
        for (Occurrence& voter : voters) {
            voter.next = at(voter.next).after;
            voter.match = std::min(voter.match + 1, kMatchMax);
        }
        std::erase_if(voters, [](const Occurrence& voter) { return voter.next == kNone; });
    }
    return guesses;
}

std::int64_t DraftIndex::bytes() const {
    return static_cast<std::int64_t>(
        entries_.capacity() * sizeof(Entry) + heads_.capacity() * sizeof(std::int32_t)
    );
}

}  // namespace pitstop::scheduler
