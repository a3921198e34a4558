#include "text/tokenizer.h"

#include "base/mapped_file.h"
#include "base/mutex.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

namespace pitstop::text {
namespace {

// The interrupt is checked each time this many pieces are encoded: about every 100 us.
constexpr std::size_t kPiecesPerLook = 512;

// A scratch that grew beyond this size is freed after its call.
constexpr std::size_t kScratchBytesMax = std::size_t{16} << 20;

// The working memory of one call of encode().
struct Scratch {
    Bpe::Scratch model{};
    Pieces pieces{};
    Pieces pieces_before{};
    std::vector<AddedTokens::Split> splits{};
    std::vector<AddedTokens::Split> normalized_splits{};
    const Interrupt* interrupt = nullptr;  // of this call

    [[nodiscard]] std::size_t bytes() const {
        return pieces.text.capacity() + pieces_before.text.capacity() +
               (pieces.pieces.capacity() + pieces_before.pieces.capacity()) *
                   sizeof(Pieces::Piece) +
               (splits.capacity() + normalized_splits.capacity()) * sizeof(AddedTokens::Split);
    }
};

// The scratches that no call uses now.
class ScratchPool {
  public:
    std::unique_ptr<Scratch> take() {
        {
            const MutexLock lock(mutex_);
            if (!free_.empty()) {
                std::unique_ptr<Scratch> scratch = std::move(free_.back());
                free_.pop_back();
                return scratch;
            }
        }
        return std::make_unique<Scratch>();
    }
    void give_back(std::unique_ptr<Scratch> scratch) {
        if (scratch->bytes() > kScratchBytesMax) {
            scratch->pieces = {};
            scratch->pieces_before = {};
            scratch->splits = {};
            scratch->normalized_splits = {};
        }
        const MutexLock lock(mutex_);
        free_.push_back(std::move(scratch));
    }

  private:
    Mutex mutex_{};
    std::vector<std::unique_ptr<Scratch>> free_ GUARDED_BY(mutex_){};
};

}  // namespace

struct Tokenizer::State {
    TokenizerParts parts{};
    std::vector<bool> is_special{};  // [id]
    mutable ScratchPool pool{};

    Result<> encode(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const;
    Result<> encode_section(Section section, Scratch& scratch, std::vector<TokenId>& ids) const;
    Result<> encode_normalized(Section section, Scratch& scratch, std::vector<TokenId>& ids) const;
    static Result<> check(const Scratch& scratch);
};

// Splits off the tokens that are matched in unchanged text.
Result<> Tokenizer::State::encode(
    std::string_view text, Scratch& scratch, std::vector<TokenId>& ids
) const {
    scratch.splits.clear();
    parts.added_tokens.split(text, AddedTokens::Kind::kAsIs, scratch.splits);
    for (const AddedTokens::Split& split : scratch.splits) {
        if (split.id) {
            ids.push_back(*split.id);
            continue;
        }
        Section section{
            .text = std::string(text.substr(split.begin, split.end - split.begin)),
            .at_origin = split.begin == 0,
        };
        RETURN_IF_ERROR(encode_section(std::move(section), scratch, ids));
    }
    return Ok{};
}

// Normalizes the section, and splits off the tokens that are matched in normalized text.
Result<> Tokenizer::State::encode_section(
    Section section, Scratch& scratch, std::vector<TokenId>& ids
) const {
    RETURN_IF_ERROR(check(scratch));
    RETURN_IF_ERROR(parts.normalizer.apply(section));
    RETURN_IF_ERROR(check(scratch));
    std::vector<AddedTokens::Split>& splits = scratch.normalized_splits;
    splits.clear();
    parts.added_tokens.split(section.text, AddedTokens::Kind::kNormalized, splits);
    if (splits.size() == 1 && !splits[0].id)
        return encode_normalized(std::move(section), scratch, ids);
    for (const AddedTokens::Split& split : splits) {
        if (split.id) {
            ids.push_back(*split.id);
            continue;
        }
        Section part{
            .text = section.text.substr(split.begin, split.end - split.begin),
            .at_origin = section.at_origin && split.begin == 0,
        };
        RETURN_IF_ERROR(encode_normalized(std::move(part), scratch, ids));
    }
    return Ok{};
}

Result<> Tokenizer::State::encode_normalized(
    Section section, Scratch& scratch, std::vector<TokenId>& ids
) const {
    RETURN_IF_ERROR(
        parts.pre_tokenizer.apply(std::move(section), scratch.pieces, scratch.pieces_before)
    );
    scratch.pieces.text.append(Bpe::kReadableBytes, '\0');
    std::size_t until_look = kPiecesPerLook;
    for (const Pieces::Piece& piece : scratch.pieces.pieces) {
        if (--until_look == 0) {
            until_look = kPiecesPerLook;
            RETURN_IF_ERROR(check(scratch));
        }
        if (!parts.model->encode(scratch.pieces.text_of(piece), scratch.model, ids)) {
            return make_error(
                ErrorCode::kUnsupported,
                "the text has a character that is not in the vocabulary, and the vocabulary lacks "
                "the tokenizer's unk_token, too"
            );
        }
    }
    return Ok{};
}

// Returns the interrupt's error once the caller no longer waits.
Result<> Tokenizer::State::check(const Scratch& scratch) {
    if (scratch.interrupt == nullptr || !*scratch.interrupt) return Ok{};
    if (std::optional<Error> why = (*scratch.interrupt)()) return *std::move(why);
    return Ok{};
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::parse(std::string_view json) {
    ASSIGN_OR_RETURN(TokenizerParts parts, read_tokenizer_file(json));
    auto state = std::make_unique<State>();
    state->parts = std::move(parts);
    std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(state)));
    State& made = *tokenizer->state_;
    made.is_special.resize(static_cast<std::size_t>(tokenizer->vocab_size()));
    for (const TokenId id : made.parts.added_tokens.special_ids(made.parts.model->vocab())) {
        made.is_special[static_cast<std::size_t>(raw(id))] = true;
    }
    return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& path) {
    std::error_code ignored;
    const bool is_directory = std::filesystem::is_directory(path, ignored);
    const std::string file = is_directory ? path + "/tokenizer.json" : path;
    ASSIGN_OR_RETURN(const std::string json, MappedFile::read(file, kFileBytesMax));
    Result<std::shared_ptr<const Tokenizer>> tokenizer = parse(json);
    if (!tokenizer) {
        return make_error(tokenizer.error().code, "'{}': {}", file, tokenizer.error().message);
    }
    return tokenizer;
}

std::size_t Tokenizer::work_max(std::size_t text_bytes) const {
    return text_bytes + state_->parts.normalizer.work_max(text_bytes);
}

Result<std::vector<TokenId>> Tokenizer::encode(
    std::string_view text, AddSpecial add_special, const Interrupt& interrupt
) const {
    if (const std::optional<std::size_t> bad = find_invalid_utf8(text)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "the text is not valid UTF-8 at byte {} of {}",
            *bad,
            text.size()
        );
    }
    std::vector<TokenId> ids;
    std::unique_ptr<Scratch> scratch = state_->pool.take();
    scratch->interrupt = &interrupt;
    const Result<> encoded = state_->encode(text, *scratch, ids);
    scratch->interrupt = nullptr;
    state_->pool.give_back(std::move(scratch));
    if (!encoded) return encoded.error();
    return state_->parts.post_processor.apply(std::move(ids), add_special == AddSpecial::kYes);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, SkipSpecial skip_special)
    const {
    std::string text;
    Decoder::Stream stream(state_->parts.decoder);
    for (const TokenId id : ids) {
        const std::optional<std::string_view> token = id_to_token(id);
        if (!token) continue;
        if (skip_special == SkipSpecial::kYes && is_special(id)) continue;
        RETURN_IF_ERROR(stream.push(*token, text));
    }
    RETURN_IF_ERROR(stream.finish(text));
    return text;
}

Result<std::string> Tokenizer::bytes_of(TokenId id) const {
    const std::optional<std::string_view> token = id_to_token(id);
    if (!token) return std::string();
    if (auto bytes = decoder().bytes_of(*token); bytes && find_invalid_utf8(*bytes))
        return *std::move(bytes);
    ASSIGN_OR_RETURN(std::string alone, decode({&id, 1}, SkipSpecial::kNo));
    const std::array twice{id, id};
    ASSIGN_OR_RETURN(const std::string text, decode(twice, SkipSpecial::kNo));
    if (text.size() <= alone.size() || !text.starts_with(alone)) return alone;
    return text.substr(alone.size());
}

std::int32_t Tokenizer::vocab_size() const {
    return std::max(state_->parts.model->vocab().id_end(), state_->parts.added_tokens.id_end());
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
    const std::optional<TokenId> added = state_->parts.added_tokens.find(token);
    return added ? added : state_->parts.model->vocab().find(token);
}

std::optional<std::string_view> Tokenizer::id_to_token(TokenId id) const {
    const std::optional<std::string_view> added = state_->parts.added_tokens.text_of(id);
    return added ? added : state_->parts.model->vocab().token(id);
}

bool Tokenizer::is_special(TokenId id) const {
    const auto index = static_cast<std::size_t>(raw(id));
    return raw(id) >= 0 && index < state_->is_special.size() && state_->is_special[index];
}

bool Tokenizer::is_added(TokenId id) const { return state_->parts.added_tokens.contains(id); }

std::span<const std::string> Tokenizer::warnings() const { return state_->parts.warnings; }

const Decoder& Tokenizer::decoder() const { return state_->parts.decoder; }

}  // namespace pitstop::text
