#include "text/bpe.h"

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace pitstop {
namespace {

// Up to here the pair to join is found by looking at all of them, which beats a heap.
constexpr std::size_t kShortMax = 32;

std::uint64_t load(const char* at, std::size_t len) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, len);
    return word;
}

}  // namespace

Bpe::Scratch::Scratch() : entries_(kEntries) {}

Result<Bpe> Bpe::create(Vocab vocab, std::span<const Merge> merges, BpeOptions options, Unit unit) {
    Bpe bpe;
    bpe.vocab_ = std::move(vocab);
    bpe.options_ = std::move(options);
    bpe.unit_ = unit;
    const auto find = [&](std::string_view token) {
        const std::optional<TokenId> id = bpe.vocab_.find(token);
        return id ? raw(*id) : -1;
    };
    for (unsigned byte = 0; byte < 256; ++byte) {
        const char one = static_cast<char>(byte);
        std::string character;
        append_byte_characters({&one, 1}, character);
        bpe.byte_ids_[byte] = find(character);
        bpe.fallback_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
    }
    if (bpe.options_.unk_token) bpe.unk_id_ = bpe.vocab_.find(*bpe.options_.unk_token);
    for (std::int32_t id = 0; id < bpe.vocab_.id_end(); ++id) {
        const auto token = bpe.vocab_.token(TokenId{id});
        if (token) bpe.token_bytes_max_ = std::max(bpe.token_bytes_max_, token->size());
    }
    RETURN_IF_ERROR(bpe.build_merges(merges));
    bpe.find_cuts();
    return bpe;
}

Result<> Bpe::build_merges(std::span<const Merge> merges) {
    const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 16));
    merges_.resize(num_slots);
    merges_shift_ = 64 - std::countr_zero(num_slots);
    const std::string& prefix = options_.continuing_subword_prefix;
    std::string joined;
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        const auto& [left, right] = merges[rank];
        const auto missing = [&](std::string_view token) {
            return make_error(
                ErrorCode::kMalformed,
                "merge {} joins '{}' and '{}', but '{}' is not in the vocabulary",
                rank,
                left,
                right,
                token
            );
        };
        const std::optional<TokenId> left_id = vocab_.find(left);
        if (!left_id) return missing(left);
        const std::optional<TokenId> right_id = vocab_.find(right);
        if (!right_id) return missing(right);
        if (right.size() < prefix.size()) {
            return make_error(
                ErrorCode::kMalformed,
                "merge {} joins '{}' and '{}', which is shorter than the continuing_subword_prefix "
                "'{}'",
                rank,
                left,
                right,
                prefix
            );
        }
        joined = left;
        joined += right.substr(prefix.size());
        const std::optional<TokenId> joined_id = vocab_.find(joined);
        if (!joined_id) return missing(joined);

        const std::uint64_t pair = pair_of(raw(*left_id), raw(*right_id));
        std::size_t at = slot_of(pair);
        while (merges_[at].pair != pair && merges_[at].pair != ~std::uint64_t{0}) {
            at = (at + 1) & (num_slots - 1);
        }
        // A pair that comes twice counts where it came last, as in the reference.
        merges_[at] = {pair, {static_cast<std::uint32_t>(rank), raw(*joined_id)}};
    }
    return Ok{};
}

// Finds characters before which a piece may be cut without changing its encoding: a merge joins two
// characters only into a token that holds them side by side, so where no token holds anything but c
// before a c, nothing is ever joined across the beginning of a run of c. Tokenizers without a
// pre-tokenizer (Llama 2, Gemma) are fast by it: their words all begin with U+2581, and become
// parts that can be remembered.
void Bpe::find_cuts() {
    if (unit_ == Unit::kByte || !options_.continuing_subword_prefix.empty() ||
        !options_.end_of_word_suffix.empty()) {
        return;
    }
    begins_part_.assign(kCodePointMax + 1, false);
    std::vector<char32_t> behind_another;
    for (std::int32_t id = 0; id < vocab_.id_end(); ++id) {
        const std::optional<std::string_view> token = vocab_.token(TokenId{id});
        if (!token || token->empty()) continue;
        std::size_t pos = 0;
        char32_t previous = next_code_point(*token, pos);
        // Only characters that are tokens: an unknown one may have to be fused with its neighbour.
        if (pos == token->size()) begins_part_[previous] = true;
        while (pos < token->size()) {
            const char32_t now = next_code_point(*token, pos);
            if (now != previous) behind_another.push_back(now);
            previous = now;
        }
    }
    for (const char32_t c : behind_another) begins_part_[c] = false;
}

bool Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
    if (begins_part_.empty()) return encode_part(piece, scratch, out);
    if (options_.ignore_merges && piece.size() <= token_bytes_max_) {
        if (const std::optional<TokenId> id = vocab_.find(piece)) {
            out.push_back(*id);
            return true;
        }
    }
    std::size_t begin = 0;
    char32_t previous = kCodePointMax + 1;
    for (std::size_t pos = 0; pos < piece.size();) {
        const std::size_t at = pos;
        const char32_t now = next_code_point(piece, pos);
        if (begins_part_[now] && now != previous && at > begin) {
            if (!encode_part(piece.substr(begin, at - begin), scratch, out)) return false;
            begin = at;
        }
        previous = now;
    }
    return encode_part(piece.substr(begin), scratch, out);
}

bool Bpe::encode_part(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const {
    const std::size_t len = part.size();
    if (len == 0) return true;
    if (len > Scratch::kKeyBytesMax) return encode_uncached(part, scratch, out);

    // The part as four words; with its length they say all of it. Longer than a word, the last
    // words overlap, so that every load is whole.
    Scratch::Key key{};
    const char* at = part.data();
    if (len > 16) {
        key = {load(at, 8), load(at + 8, 8), load(at + len - 16, 8), load(at + len - 8, 8)};
    } else if (len > 8) {
        key = {load(at, 8), load(at + len - 8, 8), 0, 0};
    } else if (len >= 4) {
        key = {load(at, 4) | (load(at + len - 4, 4) << 32), 0, 0, 0};
    } else {
        // First, middle and last byte: all of up to three.
        key = {load(at, 1) | (load(at + len / 2, 1) << 8) | (load(at + len - 1, 1) << 16), 0, 0, 0};
    }
    std::uint64_t hash = len;
    for (const std::uint64_t word : key) {
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    Scratch::Entry* set =
        &scratch.entries_[(hash & (Scratch::kEntries / Scratch::kWays - 1)) * Scratch::kWays];
    for (std::size_t way = 0; way < Scratch::kWays; ++way) {
        if (set[way].key_len != len || set[way].key != key) continue;
        if (way != 0) std::swap(set[0], set[way]);
        for (std::size_t i = 0; i < set[0].num_ids; ++i) out.push_back(TokenId{set[0].ids[i]});
        return true;
    }
    const std::size_t num_before = out.size();
    if (!encode_uncached(part, scratch, out)) return false;
    const std::size_t num_ids = out.size() - num_before;
    if (num_ids > Scratch::kIdsMax) return true;
    Scratch::Entry entry{.key = key, .key_len = static_cast<std::uint8_t>(len)};
    entry.num_ids = static_cast<std::uint8_t>(num_ids);
    for (std::size_t i = 0; i < num_ids; ++i) entry.ids[i] = raw(out[num_before + i]);
    set[1] = set[0];
    set[0] = entry;
    return true;
}

bool Bpe::encode_uncached(std::string_view part, Scratch& scratch, std::vector<TokenId>& out)
    const {
    if (options_.ignore_merges && part.size() <= token_bytes_max_) {
        std::string characters;
        if (unit_ == Unit::kByte) append_byte_characters(part, characters);
        if (const auto id = vocab_.find(unit_ == Unit::kByte ? characters : part)) {
            out.push_back(*id);
            return true;
        }
    }
    std::vector<std::int32_t>& symbols = scratch.symbols_;
    symbols.clear();
    if (!append_symbols(part, symbols)) return false;
    if (symbols.size() <= kShortMax) {
        merge_short(symbols);
    } else {
        merge_long(scratch);
    }
    for (const std::int32_t id : symbols) out.push_back(TokenId{id});
    return true;
}

std::int32_t Bpe::find_character(std::string_view character) const {
    const std::optional<TokenId> id = vocab_.find(character);
    return id ? raw(*id) : -1;
}

// The order in which tokens come where characters are unknown is the reference's: an unknown one
// waits to be fused until the next known one, and bytes of a byte fallback do not wait for it.
bool Bpe::append_symbols(std::string_view part, std::vector<std::int32_t>& symbols) const {
    const bool is_plain =
        options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
    bool unk_waits = false;
    const std::int32_t unk = unk_id_ ? raw(*unk_id_) : -1;
    std::string decorated;
    std::string byte_character;
    for (std::size_t pos = 0; pos < part.size();) {
        const std::size_t begin = pos;
        pos += unit_ == Unit::kByte ? 1 : utf8_len(part[pos]);
        std::string_view character = part.substr(begin, pos - begin);
        std::int32_t id = -1;
        if (unit_ == Unit::kByte && is_plain) {
            id = byte_ids_[static_cast<unsigned char>(character[0])];
        } else {
            if (unit_ == Unit::kByte) {
                byte_character.clear();
                append_byte_characters(character, byte_character);
                character = byte_character;
            }
            if (!is_plain) {
                decorated = begin == 0 ? "" : options_.continuing_subword_prefix;
                decorated += character;
                if (pos == part.size()) decorated += options_.end_of_word_suffix;
                character = decorated;
            }
            id = find_character(character);
        }
        if (id >= 0) {
            if (unk_waits) symbols.push_back(unk);
            unk_waits = false;
            symbols.push_back(id);
            continue;
        }
        if (options_.byte_fallback) {
            if (unit_ == Unit::kByte && is_plain) {
                byte_character.clear();
                append_byte_characters(character, byte_character);
                character = byte_character;
            }
            const bool has_all = std::all_of(character.begin(), character.end(), [&](char c) {
                return fallback_ids_[static_cast<unsigned char>(c)] >= 0;
            });
            if (has_all) {
                for (const char c : character) {
                    symbols.push_back(fallback_ids_[static_cast<unsigned char>(c)]);
                }
                continue;
            }
        }
        if (!options_.unk_token) continue;  // the reference drops it
        if (!unk_id_) return false;
        if (unk_waits && !options_.fuse_unk) symbols.push_back(unk);
        unk_waits = true;
    }
    if (unk_waits) symbols.push_back(unk);
    return true;
}

void Bpe::merge_short(std::vector<std::int32_t>& symbols) const {
    constexpr std::uint32_t kNone = 0xffffffff;
    std::size_t num = symbols.size();
    if (num < 2) return;
    CHECK(num <= kShortMax);
    std::array<std::uint32_t, kShortMax> ranks;  // [i]: of the pair of i and the symbol behind it
    std::array<std::int32_t, kShortMax> joined;  // [i]: what that pair becomes
    const auto look_up = [&](std::size_t i) {
        const Joined* merge = find_merge(symbols[i], symbols[i + 1]);
        ranks[i] = merge != nullptr ? merge->rank : kNone;
        joined[i] = merge != nullptr ? merge->id : -1;
    };
    for (std::size_t i = 0; i + 1 < num; ++i) look_up(i);
    while (num > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < num; ++i) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == kNone) break;
        symbols[best] = joined[best];
        for (std::size_t i = best + 1; i + 1 < num; ++i) {
            symbols[i] = symbols[i + 1];
            ranks[i] = ranks[i + 1];
            joined[i] = joined[i + 1];
        }
        --num;
        if (best > 0) look_up(best - 1);
        if (best + 1 < num) look_up(best);
    }
    symbols.resize(num);
}

void Bpe::merge_long(Scratch& scratch) const {
    std::vector<std::int32_t>& symbols = scratch.symbols_;
    std::vector<Scratch::Symbol>& links = scratch.links_;
    std::vector<Scratch::Candidate>& heap = scratch.heap_;
    const auto num = static_cast<std::int32_t>(symbols.size());
    links.resize(symbols.size());
    for (std::int32_t i = 0; i < num; ++i) {
        links[static_cast<std::size_t>(i)] = {
            .id = symbols[static_cast<std::size_t>(i)],
            .previous = i - 1,
            .next = i + 1 < num ? i + 1 : -1,
            .is_joined = false,
        };
    }
    const auto link = [&](std::int32_t i) -> Scratch::Symbol& {
        return links[static_cast<std::size_t>(i)];
    };
    heap.clear();
    for (std::int32_t i = 0; i + 1 < num; ++i) {
        const Joined* merge = find_merge(link(i).id, link(i + 1).id);
        if (merge != nullptr) heap.push_back({merge->rank, i, merge->id});
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto push = [&](std::int32_t left, std::int32_t right) {
        const Joined* merge = find_merge(link(left).id, link(right).id);
        if (merge == nullptr) return;
        heap.push_back({merge->rank, left, merge->id});
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const Scratch::Candidate top = heap.back();
        heap.pop_back();
        Scratch::Symbol& left = link(top.position);
        if (left.is_joined || left.next < 0) continue;
        const std::int32_t right_position = left.next;
        Scratch::Symbol& right = link(right_position);
        const Joined* merge = find_merge(left.id, right.id);
        if (merge == nullptr || merge->id != top.id) continue;  // the pair is not what it was
        left.id = top.id;
        left.next = right.next;
        right.is_joined = true;
        if (right.next >= 0) link(right.next).previous = top.position;
        if (left.previous >= 0) push(left.previous, top.position);
        if (left.next >= 0) push(top.position, left.next);
    }
    symbols.clear();
    for (std::int32_t i = 0; i >= 0; i = link(i).next) symbols.push_back(link(i).id);
}

}  // namespace pitstop
