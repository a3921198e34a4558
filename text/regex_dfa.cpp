#include "text/regex_dfa.h"

#include "base/check.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pitstop::text::regex {
namespace {

constexpr std::size_t kSetsMax = 64;  // distinct sets in a pattern; each has one bit

// A place in the expanded pattern.
struct Place {
    enum class Kind {
        kMatch,
        kTake,  // matches a code point in `set`, then goes to `next`
        // Goes to `next` if the next code point is in `set`, or if the text ends and `end_allowed`
        // is true.
        kIf,
        kEither,  // goes to `next` or `other`, preferring `next`
    };
    Kind kind = Kind::kMatch;
    std::size_t set = 0;
    bool end_allowed = false;
    int next = 0;
    int other = 0;
};

using PlaceList = std::vector<int>;  // by preference, without duplicates

}  // namespace

static_assert(Dfa::kStatesMax < (1u << 14), "a step has 14 bits for the state");

class DfaBuilder {
  public:
    std::optional<Dfa> build(const Node& pattern) {
        const int match = add({.kind = Place::Kind::kMatch});
        const std::optional<int> start = append(pattern, match);
        if (!start || places_.size() > Dfa::kPositionsMax || !make_classes()) return std::nullopt;
        if (!make_states(*start)) return std::nullopt;
        return std::move(dfa_);
    }

  private:
    // Each adds the places of `node`, followed by `next`, and returns the first. Returns nothing if
    // no automaton can match the node.
    std::optional<int> append(const Node& node, int next);
    std::optional<int> append_kind(const OneOf& node, int next);
    std::optional<int> append_kind(const Concat& node, int next);
    std::optional<int> append_kind(const Alternate& node, int next);
    std::optional<int> append_kind(const Repeat& node, int next);
    std::optional<int> append_kind(const Atomic& node, int next);
    std::optional<int> append_kind(const Look& node, int next);
    std::optional<int> append_kind(const At& node, int next);

    int add(Place place) {
        places_.push_back(place);
        return static_cast<int>(places_.size()) - 1;
    }
    std::size_t index_of(const CodePointSet& set) {
        const auto found = std::find(sets_.begin(), sets_.end(), set);
        if (found != sets_.end()) return static_cast<std::size_t>(found - sets_.begin());
        sets_.push_back(set);
        return sets_.size() - 1;
    }

    bool make_classes();
    bool make_states(int start);
    bool settle(const PlaceList& from, std::size_t character_class, PlaceList& out);
    void settle_one(int place, std::size_t character_class, PlaceList& out, bool& is_matched);
    void enter(int place, PlaceList& list);

    std::vector<Place> places_{};
    std::vector<CodePointSet> sets_{};
    std::vector<std::uint64_t> sets_of_class_{};  // [class]: bit s is set if sets_[s] has the class
    std::vector<bool> seen_{};                    // [places]
    std::array<std::uint8_t, Dfa::kAsciiLen> ascii_{};  // [byte]: its class
    Dfa dfa_{};
};

std::optional<int> DfaBuilder::append(const Node& node, int next) {
    if (places_.size() > Dfa::kPositionsMax) return std::nullopt;
    return std::visit([&](const auto& kind) { return append_kind(kind, next); }, node.kind);
}

std::optional<int> DfaBuilder::append_kind(const OneOf& node, int next) {
    return add({.kind = Place::Kind::kTake, .set = index_of(node.set), .next = next});
}

std::optional<int> DfaBuilder::append_kind(const Concat& node, int next) {
    std::optional<int> begin = next;
    for (auto part = node.parts.rbegin(); part != node.parts.rend() && begin; ++part) {
        begin = append(*part, *begin);
    }
    return begin;
}

std::optional<int> DfaBuilder::append_kind(const Alternate& node, int next) {
    std::optional<int> begin;
    for (auto branch = node.branches.rbegin(); branch != node.branches.rend(); ++branch) {
        const std::optional<int> place = append(*branch, next);
        if (!place) return std::nullopt;
        begin =
            begin ? add({.kind = Place::Kind::kEither, .next = *place, .other = *begin}) : *place;
    }
    return begin;
}

std::optional<int> DfaBuilder::append_kind(const Repeat& node, int next) {
    const Node& body = node.body[0];
    if (node.greed == Greed::kPossessive) {
        // x*+ equals x* if no x follows. So do x++ and x?+, except that x?+ may have matched its x.
        const OneOf* one = std::get_if<OneOf>(&body.kind);
        if (one == nullptr) return std::nullopt;
        const int no_more = add({
            .kind = Place::Kind::kIf,
            .set = index_of(one->set.complement()),
            .end_allowed = true,
            .next = next,
        });
        if (node.max) {
            if (node.min != 0 || *node.max != 1) return std::nullopt;
            const std::optional<int> take = append(body, next);
            return add({.kind = Place::Kind::kEither, .next = *take, .other = no_more});
        }
        Repeat greedy{.body = node.body, .min = node.min, .max = {}, .greed = Greed::kGreedy};
        return append_kind(greedy, no_more);
    }
    const auto either = [&](int again, int leave) {
        const bool is_lazy = node.greed == Greed::kLazy;
        return Place{
            .kind = Place::Kind::kEither,
            .next = is_lazy ? leave : again,
            .other = is_lazy ? again : leave,
        };
    };
    std::optional<int> begin = next;
    if (node.max) {
        for (int i = node.min; i < *node.max && begin; ++i) {
            const std::optional<int> again = append(body, *begin);
            if (!again) return std::nullopt;
            begin = add(either(*again, next));
        }
    } else {
        const int loop = add({});
        const std::optional<int> again = append(body, loop);
        if (!again) return std::nullopt;
        places_[static_cast<std::size_t>(loop)] = either(*again, next);
        begin = loop;
    }
    for (int i = 0; i < node.min && begin; ++i) {
        const int behind = *begin;
        begin = append(body, behind);
        if (begin == behind) break;  // repeating an empty body changes nothing
    }
    return begin;
}

std::optional<int> DfaBuilder::append_kind(const Atomic& node, int next) {
    // There is only one way to match a code point.
    return std::holds_alternative<OneOf>(node.body[0].kind) ? append(node.body[0], next)
                                                            : std::nullopt;
}

std::optional<int> DfaBuilder::append_kind(const Look& node, int next) {
    const OneOf* one = std::get_if<OneOf>(&node.body[0].kind);
    if (one == nullptr || node.direction == Direction::kBehind) return std::nullopt;
    return add({
        .kind = Place::Kind::kIf,
        .set = index_of(node.negated ? one->set.complement() : one->set),
        .end_allowed = node.negated,
        .next = next,
    });
}

std::optional<int> DfaBuilder::append_kind(const At& node, int next) {
    CodePointSet before;
    if (node.position == Position::kLineEnd) {
        before = CodePointSet(U'\n');
    } else if (node.position != Position::kTextEnd) {
        return std::nullopt;
    }
    return add(
        {.kind = Place::Kind::kIf, .set = index_of(before), .end_allowed = true, .next = next}
    );
}

// Cuts the range of code points where any set begins or ends. Stretches that are in the same sets
// share a class.
bool DfaBuilder::make_classes() {
    if (sets_.size() > kSetsMax) return false;
    // the sets that change at this code point
    std::vector<std::pair<char32_t, std::uint64_t>> edges = {{0, 0}};
    for (std::size_t s = 0; s < sets_.size(); ++s) {
        for (const CodePointRange& range : sets_[s].ranges()) {
            edges.emplace_back(range.first, std::uint64_t{1} << s);
            edges.emplace_back(range.last + 1, std::uint64_t{1} << s);
        }
    }
    std::sort(edges.begin(), edges.end());
    edges.emplace_back(kCodePointMax + 1, 0);

    std::map<std::uint64_t, std::size_t> class_of_sets;
    std::vector<std::uint8_t> class_of(kCodePointMax + 1);
    std::uint64_t sets = 0;
    for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
        sets ^= edges[i].second;
        if (edges[i].first == edges[i + 1].first) continue;
        const auto [entry, is_new] = class_of_sets.try_emplace(sets, sets_of_class_.size());
        if (is_new) sets_of_class_.push_back(sets);
        if (sets_of_class_.size() > Dfa::kClassesMax) return false;
        std::fill(
            class_of.begin() + static_cast<std::ptrdiff_t>(edges[i].first),
            class_of.begin() + static_cast<std::ptrdiff_t>(edges[i + 1].first),
            static_cast<std::uint8_t>(entry->second)
        );
    }
    dfa_.end_class_ = sets_of_class_.size();
    dfa_.num_classes_ = sets_of_class_.size() + 1;
    std::copy_n(class_of.begin(), ascii_.size(), ascii_.begin());

    std::map<std::array<std::uint8_t, Dfa::kPageSize>, std::uint16_t> index_of_page;
    for (std::size_t first = 0; first < class_of.size(); first += Dfa::kPageSize) {
        std::array<std::uint8_t, Dfa::kPageSize> page{};
        std::copy_n(
            class_of.begin() + static_cast<std::ptrdiff_t>(first), page.size(), page.begin()
        );
        const auto index = static_cast<std::uint16_t>(dfa_.pages_.size());
        const auto [entry, is_new] = index_of_page.try_emplace(page, index);
        if (is_new) dfa_.pages_.push_back(page);
        dfa_.page_of_.push_back(entry->second);
    }
    return true;
}

// Adds `place`, and the places that follow it without a condition.
void DfaBuilder::enter(int place, PlaceList& list) {
    std::vector<int> todo = {place};
    while (!todo.empty()) {
        const int now = todo.back();
        todo.pop_back();
        const auto index = static_cast<std::size_t>(now);
        if (seen_[index]) continue;
        seen_[index] = true;
        if (places_[index].kind == Place::Kind::kEither) {
            todo.push_back(places_[index].other);
            todo.push_back(places_[index].next);
        } else {
            list.push_back(now);
        }
    }
}

// Finds the places of `from` that match a code point, if the next one is of this class. Returns
// whether a match ends here; then omits the places that are less preferred than the match.
bool DfaBuilder::settle(const PlaceList& from, std::size_t character_class, PlaceList& out) {
    seen_.assign(places_.size(), false);
    bool is_matched = false;
    for (const int place : from) {
        settle_one(place, character_class, out, is_matched);
        if (is_matched) break;
    }
    return is_matched;
}

void DfaBuilder::settle_one(
    int place, std::size_t character_class, PlaceList& out, bool& is_matched
) {
    std::vector<int> todo = {place};
    while (!todo.empty()) {
        const auto index = static_cast<std::size_t>(todo.back());
        todo.pop_back();
        if (seen_[index]) continue;
        seen_[index] = true;
        const Place& now = places_[index];
        switch (now.kind) {
            case Place::Kind::kMatch:
                is_matched = true;
                return;
            case Place::Kind::kTake:
                out.push_back(static_cast<int>(index));
                break;
            case Place::Kind::kEither:
                todo.push_back(now.other);
                todo.push_back(now.next);
                break;
            case Place::Kind::kIf: {
                const bool is_end = character_class == dfa_.end_class_;
                const bool holds = is_end
                                       ? now.end_allowed
                                       : ((sets_of_class_[character_class] >> now.set) & 1u) != 0;
                if (holds) todo.push_back(now.next);
                break;
            }
        }
    }
}

bool DfaBuilder::make_states(int start) {
    std::map<PlaceList, std::uint32_t> index_of_state;
    std::vector<PlaceList> states;
    const auto state_of = [&](PlaceList list) {
        const auto index = static_cast<std::uint32_t>(states.size());
        const auto [entry, is_new] = index_of_state.try_emplace(list, index);
        if (is_new) states.push_back(std::move(list));
        return entry->second;
    };
    PlaceList first;
    seen_.assign(places_.size(), false);
    enter(start, first);
    state_of(std::move(first));
    for (std::size_t s = 0; s < states.size(); ++s) {
        if (states.size() > Dfa::kStatesMax) return false;
        for (std::size_t c = 0; c < dfa_.num_classes_; ++c) {
            PlaceList taking;
            const bool is_matched = settle(states[s], c, taking);
            PlaceList next;
            if (c != dfa_.end_class_) {
                seen_.assign(places_.size(), false);
                for (const int place : taking) {
                    const Place& take = places_[static_cast<std::size_t>(place)];
                    if (((sets_of_class_[c] >> take.set) & 1u) != 0) enter(take.next, next);
                }
            }
            std::uint32_t step = is_matched ? Dfa::kMatchBit : 0;
            if (next.empty()) {
                step |= Dfa::kDeadBit;
            } else {
                step |= state_of(std::move(next)) << Dfa::kStateShift;
            }
            dfa_.table_.push_back(static_cast<std::uint16_t>(step));
        }
        const std::uint16_t* row = dfa_.table_.data() + s * dfa_.num_classes_;
        for (const std::uint8_t character_class : ascii_)
            dfa_.ascii_table_.push_back(row[character_class]);
    }
    return true;
}

std::optional<Dfa> Dfa::compile(const Node& pattern) { return DfaBuilder().build(pattern); }

}  // namespace pitstop::text::regex
