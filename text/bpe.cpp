#include "text/bpe.h"

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace pitstop::text {
namespace {

// Up to this length, comparing all pairs finds the next pair faster than a heap does.
constexpr std::size_t kShortMax = 32;

}  // namespace

Result<Bpe> Bpe::create(Vocab vocab, std::span<const Merge> merges, BpeOptions options, Unit unit) {
    Bpe bpe;
    bpe.vocab_ = std::move(vocab);
    bpe.options_ = std::move(options);
    bpe.unit_ = unit;
    bpe.is_decorated_ =
        !bpe.options_.continuing_subword_prefix.empty() || !bpe.options_.end_of_word_suffix.empty();
    if (bpe.options_.unk_token) bpe.unk_id_ = bpe.vocab_.find(*bpe.options_.unk_token);
    bpe.find_characters();
    RETURN_IF_ERROR(bpe.build_merges(merges));
    bpe.find_cuts(merges);
    return bpe;
}

void Bpe::CharacterIds::insert(char32_t character, std::int32_t id) {
    std::uint16_t& page = page_of_[character >> kPageBits];
    if (page == 0) {
        page = static_cast<std::uint16_t>(pages_.size());
        pages_.push_back(empty_page());
    }
    pages_[page][character & (kPageSize - 1)] = id;
}

// Finds the tokens that are one character, and the tokens that are one byte.
void Bpe::find_characters() {
    for (std::int32_t id = 0; id < vocab_.id_end(); ++id) {
        const std::optional<std::string_view> token = vocab_.token(TokenId{id});
        if (!token || token->empty()) continue;
        token_bytes_max_ = std::max(token_bytes_max_, token->size());
        if (utf8_len((*token)[0]) != token->size()) continue;
        std::size_t pos = 0;
        character_ids_.insert(next_code_point(*token, pos), id);
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
        byte_ids_[byte] = character_ids_.find(kByteCharacters[byte]);
        const std::optional<TokenId> fallback = vocab_.find(fmt::format("<0x{:02X}>", byte));
        fallback_ids_[byte] = fallback ? raw(*fallback) : -1;
    }
}

Result<> Bpe::build_merges(std::span<const Merge> merges) {
    const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 16));
    merges_.resize(num_slots);
    merges_shift_ = 64 - std::countr_zero(num_slots);
    // The look-ups of one block wait for memory together.
    constexpr std::size_t kBlock = 256;
    for (std::size_t begin = 0; begin < merges.size(); begin += kBlock) {
        const std::size_t num = std::min(kBlock, merges.size() - begin);
        RETURN_IF_ERROR(
            build_merge_block(merges.subspan(begin, num), static_cast<std::uint32_t>(begin))
        );
    }
    return Ok{};
}

// REQUIRES: `first_rank` is the rank of the block's first merge.
Result<> Bpe::build_merge_block(std::span<const Merge> merges, std::uint32_t first_rank) {
    const std::size_t prefix_len = options_.continuing_subword_prefix.size();
    std::string joined;  // the joined texts of the pairs
    for (const auto& [left, right] : merges) {
        if (right.size() < prefix_len) {
            return make_error(
                ErrorCode::kMalformed,
                "a merge joins '{}' and '{}', which is shorter than the continuing_subword_prefix "
                "'{}'",
                left,
                right,
                options_.continuing_subword_prefix
            );
        }
        joined += left;
        joined += right.substr(prefix_len);
    }
    std::vector<std::string_view> tokens;  // the left, right and joined token of each merge
    std::size_t done = 0;
    for (const auto& [left, right] : merges) {
        const std::size_t len = left.size() + right.size() - prefix_len;
        tokens.insert(tokens.end(), {left, right, std::string_view(joined).substr(done, len)});
        done += len;
    }
    std::vector<std::int32_t> ids(tokens.size());
    vocab_.find_all(tokens, ids);
    for (std::size_t i = 0; i < merges.size(); ++i) {
        __builtin_prefetch(&merges_[slot_of(pair_of(ids[3 * i], ids[3 * i + 1]))], /*rw=*/1);
    }
    for (std::size_t i = 0; i < merges.size(); ++i) {
        const std::uint32_t rank = first_rank + static_cast<std::uint32_t>(i);
        for (std::size_t side = 0; side < 3; ++side) {
            if (ids[3 * i + side] >= 0) continue;
            return make_error(
                ErrorCode::kMalformed,
                "merge {} joins '{}' and '{}', but '{}' is not in the vocabulary",
                rank,
                merges[i].first,
                merges[i].second,
                tokens[3 * i + side]
            );
        }
        const std::uint64_t pair = pair_of(ids[3 * i], ids[3 * i + 1]);
        std::size_t at = slot_of(pair);
        while (merges_[at].pair != pair && merges_[at].pair != ~std::uint64_t{0}) {
            at = (at + 1) & (merges_.size() - 1);
        }
        // A pair that appears twice gets the rank of its last appearance, as in the reference.
        merges_[at] = {pair, {rank, ids[3 * i + 2]}};
    }
    return Ok{};
}

// Finds where a piece can be cut without changing its encoding. A merge makes a token in which its
// two characters are adjacent. So a piece can be cut between two characters that are adjacent in no
// token. The cuts make tokenizers without a pre-tokenizer (Llama 2, Gemma) fast: texts are cut into
// words, which the cache remembers.
void Bpe::find_cuts(std::span<const Merge> merges) {
    // There are no cuts in two cases: a whole piece may be one token, or characters have prefixes
    // or suffixes. In both, a cut would change the encoding.
    has_cuts_ = unit_ == Unit::kCodePoint && !is_decorated_ && !options_.ignore_merges;
    if (!has_cuts_) return;
    for (std::int32_t id = 0; id < vocab_.id_end(); ++id) {
        const std::optional<std::string_view> token = vocab_.token(TokenId{id});
        if (!token || token->empty()) continue;
        std::size_t pos = 0;
        char32_t previous = next_code_point(*token, pos);
        while (pos < token->size()) {
            const char32_t now = next_code_point(*token, pos);
            neighbours_.insert(previous, now);
            previous = now;
        }
    }
    const auto is_fallback = [&](std::string_view token) {
        return token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
    };
    unknown_is_bytes_ =
        options_.byte_fallback &&
        std::all_of(
            fallback_ids_.begin(), fallback_ids_.end(), [](std::int32_t id) { return id >= 0; }
        ) &&
        std::none_of(merges.begin(), merges.end(), [&](const Merge& merge) {
            return is_fallback(merge.first) || is_fallback(merge.second);
        });
}

bool Bpe::may_cut(char32_t left, char32_t right) const {
    if (neighbours_.contains(left, right)) return false;
    // An unknown character may be joined with its neighbour. It may also be dropped, so that its
    // neighbours become adjacent.
    return unknown_is_bytes_ || (character_ids_.find(left) >= 0 && character_ids_.find(right) >= 0);
}

bool Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
    if (!has_cuts_ || piece.empty()) return encode_part(piece, scratch, out);
    std::size_t begin = 0;
    std::size_t pos = 0;
    char32_t previous = next_code_point(piece, pos);
    while (pos < piece.size()) {
        const std::size_t at = pos;
        const char32_t now = next_code_point(piece, pos);
        if (may_cut(previous, now)) {
            if (!encode_part(piece.substr(begin, at - begin), scratch, out)) return false;
            begin = at;
        }
        previous = now;
    }
    return encode_part(piece.substr(begin), scratch, out);
}

bool Bpe::encode_part(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const {
    if (part.empty()) return true;
    if (part.size() > PieceCache::kKeyBytesMax) return encode_uncached(part, scratch, out);
    if (scratch.cache_.find(part, out)) return true;
    const std::size_t num_before = out.size();
    if (!encode_uncached(part, scratch, out)) return false;
    scratch.cache_.insert(part, std::span(out).subspan(num_before));
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

// Finds the token of a character with its prefix or suffix.
std::int32_t Bpe::find_decorated(std::string_view character, bool is_first, bool is_last) const {
    std::string decorated = is_first ? "" : options_.continuing_subword_prefix;
    decorated += character;
    if (is_last) decorated += options_.end_of_word_suffix;
    const std::optional<TokenId> id = vocab_.find(decorated);
    return id ? raw(*id) : -1;
}

// The order of tokens around unknown characters is the reference's. An unknown character waits
// until the next known one, because it may be joined with an unknown neighbour. The tokens of a
// byte fallback do not wait.
bool Bpe::append_symbols(std::string_view part, std::vector<std::int32_t>& symbols) const {
    bool unk_waits = false;
    const std::int32_t unk = unk_id_ ? raw(*unk_id_) : -1;
    for (std::size_t pos = 0; pos < part.size();) {
        const std::size_t begin = pos;
        std::int32_t id = -1;
        if (unit_ == Unit::kByte) {
            id = byte_ids_[static_cast<unsigned char>(part[pos++])];
        } else {
            id = character_ids_.find(next_code_point(part, pos));
        }
        std::string byte_character;
        std::string_view character = part.substr(begin, pos - begin);
        if (id < 0 || is_decorated_) {
            if (unit_ == Unit::kByte) {
                append_byte_characters(character, byte_character);
                character = byte_character;
            }
            if (is_decorated_) id = find_decorated(character, begin == 0, pos == part.size());
        }
        if (id >= 0) {
            if (unk_waits) symbols.push_back(unk);
            unk_waits = false;
            symbols.push_back(id);
            continue;
        }
        if (options_.byte_fallback) {
            std::string decorated;
            if (is_decorated_) {
                decorated = begin == 0 ? "" : options_.continuing_subword_prefix;
                decorated += character;
                if (pos == part.size()) decorated += options_.end_of_word_suffix;
                character = decorated;
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
        if (!options_.unk_token) continue;  // the reference drops such characters
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
    std::array<std::uint32_t, kShortMax> ranks;  // [i]: the rank of the pair of symbols i and i + 1
    std::array<std::int32_t, kShortMax> joined;  // [i]: the token that this pair becomes
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
    const auto order_of = [](std::uint32_t rank, std::int32_t position) {
        return (static_cast<std::uint64_t>(rank) << 32) | static_cast<std::uint32_t>(position);
    };
    heap.clear();
    for (std::int32_t i = 0; i + 1 < num; ++i) {
        const Joined* merge = find_merge(link(i).id, link(i + 1).id);
        if (merge != nullptr) heap.push_back({order_of(merge->rank, i), merge->id});
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto push = [&](std::int32_t left, std::int32_t right) {
        const Joined* merge = find_merge(link(left).id, link(right).id);
        if (merge == nullptr) return;
        heap.push_back({order_of(merge->rank, left), merge->id});
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const Scratch::Candidate top = heap.back();
        heap.pop_back();
        const auto position = static_cast<std::int32_t>(static_cast<std::uint32_t>(top.order));
        Scratch::Symbol& left = link(position);
        if (left.is_joined || left.next < 0) continue;
        const std::int32_t right_position = left.next;
        Scratch::Symbol& right = link(right_position);
        const Joined* merge = find_merge(left.id, right.id);
        if (merge == nullptr || merge->id != top.id) continue;  // the pair changed after its entry
        left.id = top.id;
        left.next = right.next;
        right.is_joined = true;
        if (right.next >= 0) link(right.next).previous = position;
        if (left.previous >= 0) push(left.previous, position);
        if (left.next >= 0) push(position, left.next);
    }
    symbols.clear();
    for (std::int32_t i = 0; i >= 0; i = link(i).next) symbols.push_back(link(i).id);
}

}  // namespace pitstop::text
