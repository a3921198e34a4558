#include "text/tokenizer_file.h"

#include "text/tokenizer_component.h"
#include "text/tokenizer_sax.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::text {
namespace {

using nlohmann::json;
using enum ErrorCode;

constexpr int kSequenceDepthMax = 16;  // the depth of Sequences within Sequences

// Source: the reference's pre_tokenizers/byte_level.rs; GPT-2's src/encoder.py.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Pattern {
    Regex regex;
    bool is_one_code_point = false;
};

// Reads {"String": text} or {"Regex": pattern}.
Result<Pattern> read_pattern(const Component& component) {
    const json* given = component.find("pattern");
    constexpr std::string_view kAccepted = R"({"String": text} or {"Regex": pattern})";
    if (given == nullptr || !given->is_object() || given->size() != 1) {
        return component.wrong("pattern", kAccepted);
    }
    const Component pattern(*given, component.path() + ".pattern");
    if (pattern.find("String") != nullptr) {
        ASSIGN_OR_RETURN(std::string text, pattern.string("String"));
        if (text.empty()) return pattern.unsupported("an empty String");
        const bool is_one = utf8_len(text[0]) == text.size();
        return Pattern{Regex::literal(std::move(text)), is_one};
    }
    if (pattern.find("Regex") == nullptr) return component.wrong("pattern", kAccepted);
    ASSIGN_OR_RETURN(const std::string text, pattern.string("Regex"));
    Result<Regex> regex = Regex::compile(text);
    if (!regex) {
        return make_error(regex.error().code, "{}: {}", pattern.path(), regex.error().message);
    }
    return Pattern{*std::move(regex), false};
}

Result<> read_normalizer(
    const Component& component, int depth, std::vector<NormalizerStep>& steps
) {
    if (depth > kSequenceDepthMax) return component.unsupported("nesting this deep");
    if (steps.size() >= Normalizer::kStepsMax)
        return component.unsupported("this many normalizers");
    ASSIGN_OR_RETURN(const std::string type, component.type());
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const std::vector<Component> items, component.items("normalizers"));
        for (const Component& item : items)
            RETURN_IF_ERROR(read_normalizer(item, depth + 1, steps));
    } else if (type == "NFC") {
        steps.emplace_back(NormalizationForm::kNfc);
    } else if (type == "NFD") {
        steps.emplace_back(NormalizationForm::kNfd);
    } else if (type == "NFKC") {
        steps.emplace_back(NormalizationForm::kNfkc);
    } else if (type == "NFKD") {
        steps.emplace_back(NormalizationForm::kNfkd);
    } else if (type == "Lowercase") {
        steps.emplace_back(LowercaseNormalizer{});
    } else if (type == "Strip") {
        ASSIGN_OR_RETURN(const bool left, component.boolean("strip_left"));
        ASSIGN_OR_RETURN(const bool right, component.boolean("strip_right"));
        steps.emplace_back(StripNormalizer{.left = left, .right = right});
    } else if (type == "StripAccents") {
        steps.emplace_back(StripAccentsNormalizer{});
    } else if (type == "Nmt") {
        steps.emplace_back(NmtNormalizer{});
    } else if (type == "Prepend") {
        ASSIGN_OR_RETURN(std::string text, component.string("prepend"));
        steps.emplace_back(PrependNormalizer{.text = std::move(text)});
    } else if (type == "Replace") {
        ASSIGN_OR_RETURN(Pattern pattern, read_pattern(component));
        if (pattern.regex.may_match_empty()) {
            return component.unsupported("a pattern that matches the empty text");
        }
        ASSIGN_OR_RETURN(std::string content, component.string("content"));
        steps.emplace_back(ReplaceNormalizer{
            .pattern = std::move(pattern.regex), .content = std::move(content)});
    } else if (type == "ByteLevel") {
        steps.emplace_back(ByteLevelNormalizer{});
    } else {
        return component.unsupported(fmt::format("the normalizer '{}'", type));
    }
    return Ok{};
}

Result<SplitBehavior> read_behavior(const Component& component) {
    ASSIGN_OR_RETURN(const std::string name, component.string("behavior"));
    if (name == "Removed") return SplitBehavior::kRemoved;
    if (name == "Isolated") return SplitBehavior::kIsolated;
    if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
    if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
    if (name == "Contiguous") return SplitBehavior::kContiguous;
    return component.wrong(
        "behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous"
    );
}

// Reads the fields that the pre-tokenizer and the decoder of this name share.
Result<MetaspaceStep> read_metaspace(const Component& component) {
    MetaspaceStep step;
    ASSIGN_OR_RETURN(step.replacement, component.character("replacement"));
    ASSIGN_OR_RETURN(
        const std::optional<std::string> scheme, component.optional_string("prepend_scheme")
    );
    if (!scheme || *scheme == "always") {
        step.prepend = MetaspaceStep::Prepend::kAlways;
    } else if (*scheme == "first") {
        step.prepend = MetaspaceStep::Prepend::kFirst;
    } else if (*scheme == "never") {
        step.prepend = MetaspaceStep::Prepend::kNever;
    } else {
        return component.wrong("prepend_scheme", "always, first or never");
    }
    ASSIGN_OR_RETURN(const bool adds_prefix, component.boolean_or("add_prefix_space", true));
    if (!adds_prefix && step.prepend != MetaspaceStep::Prepend::kNever) {
        return component.wrong("add_prefix_space", "true, unless prepend_scheme is 'never'");
    }
    return step;
}

SplitStep split_on(const CodePointSet& set, SplitBehavior behavior) {
    return {.pattern = set, .behavior = behavior, .invert = false};
}

Result<> read_byte_level(const Component& component, std::vector<PreTokenizerStep>& steps) {
    ASSIGN_OR_RETURN(const bool adds_space, component.boolean("add_prefix_space"));
    ASSIGN_OR_RETURN(const bool splits, component.boolean_or("use_regex", true));
    if (adds_space) steps.emplace_back(PrefixSpaceStep{});
    if (splits) {
        ASSIGN_OR_RETURN(Regex regex, Regex::compile(kGpt2Pattern));
        steps.emplace_back(SplitStep{.pattern = std::move(regex)});
    }
    steps.emplace_back(ByteLevelStep{});
    return Ok{};
}

Result<> read_split(const Component& component, std::vector<PreTokenizerStep>& steps) {
    ASSIGN_OR_RETURN(Pattern pattern, read_pattern(component));
    ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(component));
    ASSIGN_OR_RETURN(const bool invert, component.boolean("invert"));
    steps.emplace_back(SplitStep{
        .pattern = std::move(pattern.regex), .behavior = behavior, .invert = invert});
    return Ok{};
}

Result<> read_pre_tokenizer(
    const Component& component, int depth, std::vector<PreTokenizerStep>& steps
) {
    if (depth > kSequenceDepthMax) return component.unsupported("nesting this deep");
    if (steps.size() >= Normalizer::kStepsMax)
        return component.unsupported("this many pre-tokenizers");
    ASSIGN_OR_RETURN(const std::string type, component.type());
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const std::vector<Component> items, component.items("pretokenizers"));
        for (const Component& item : items)
            RETURN_IF_ERROR(read_pre_tokenizer(item, depth + 1, steps));
        return Ok{};
    }
    if (type == "ByteLevel") return read_byte_level(component, steps);
    if (type == "Split") return read_split(component, steps);
    if (type == "Metaspace") {
        ASSIGN_OR_RETURN(MetaspaceStep step, read_metaspace(component));
        ASSIGN_OR_RETURN(const bool splits, component.boolean_or("split", true));
        std::size_t pos = 0;
        const CodePointSet mark(next_code_point(step.replacement, pos));
        steps.emplace_back(std::move(step));
        if (splits) steps.emplace_back(split_on(mark, SplitBehavior::kMergedWithNext));
    } else if (type == "Digits") {
        ASSIGN_OR_RETURN(const bool individual, component.boolean("individual_digits"));
        const auto behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
        steps.emplace_back(split_on(numeric_set(), behavior));
    } else if (type == "Punctuation") {
        SplitBehavior behavior = SplitBehavior::kIsolated;
        if (component.find("behavior") != nullptr) {
            ASSIGN_OR_RETURN(behavior, read_behavior(component));
        }
        steps.emplace_back(split_on(punctuation_set(), behavior));
    } else if (type == "Whitespace") {
        // The pattern is \w+|[^\w\s]+. No word contains a space.
        steps.emplace_back(split_on(white_space_set(), SplitBehavior::kRemoved));
        steps.emplace_back(split_on(word_set(), SplitBehavior::kContiguous));
    } else if (type == "WhitespaceSplit") {
        steps.emplace_back(split_on(white_space_set(), SplitBehavior::kRemoved));
    } else if (type == "BertPreTokenizer") {
        steps.emplace_back(split_on(white_space_set(), SplitBehavior::kRemoved));
        steps.emplace_back(split_on(punctuation_set(), SplitBehavior::kIsolated));
    } else if (type == "CharDelimiterSplit") {
        ASSIGN_OR_RETURN(const std::string delimiter, component.character("delimiter"));
        std::size_t pos = 0;
        steps.emplace_back(
            split_on(CodePointSet(next_code_point(delimiter, pos)), SplitBehavior::kRemoved)
        );
    } else if (type == "FixedLength") {
        std::int32_t length = 5;  // the reference's default
        if (component.find("length") != nullptr) {
            ASSIGN_OR_RETURN(length, component.count("length"));
        }
        if (length == 0) return component.wrong("length", "a whole number from 1");
        steps.emplace_back(FixedLengthStep{.length = static_cast<std::size_t>(length)});
    } else {
        return component.unsupported(fmt::format("the pre-tokenizer '{}'", type));
    }
    return Ok{};
}

Result<Bpe> read_model(TokenizerLists& lists, Bpe::Unit unit) {
    const json* given = lists.rest.contains("model") ? &lists.rest["model"] : nullptr;
    if (given == nullptr || !given->is_object()) {
        return make_error(kMalformed, "model is missing or not an object");
    }
    const Component component(*given, "model");
    ASSIGN_OR_RETURN(const std::optional<std::string> type, component.optional_string("type"));
    // Old files lack the field. Only BPE has merges, so a file with merges is BPE.
    if (type.value_or(lists.has_merges ? "BPE" : "of no type") != "BPE") {
        return component.unsupported(fmt::format("the model '{}'", type.value_or("")));
    }
    if (!lists.has_vocab) return component.wrong("vocab", "an object of tokens and ids");
    if (!lists.has_merges) return component.wrong("merges", "an array");
    const json* dropout = component.find("dropout");
    if (dropout != nullptr && !dropout->is_null()) {
        if (!dropout->is_number()) return component.wrong("dropout", "null or 0");
        if (dropout->get<double>() != 0.0) return component.unsupported("a dropout other than 0");
    }
    BpeOptions options;
    ASSIGN_OR_RETURN(options.unk_token, component.optional_string("unk_token"));
    ASSIGN_OR_RETURN(
        const std::optional<std::string> prefix,
        component.optional_string("continuing_subword_prefix")
    );
    ASSIGN_OR_RETURN(
        const std::optional<std::string> suffix, component.optional_string("end_of_word_suffix")
    );
    options.continuing_subword_prefix = prefix.value_or("");
    options.end_of_word_suffix = suffix.value_or("");
    ASSIGN_OR_RETURN(options.fuse_unk, component.boolean_or("fuse_unk", false));
    ASSIGN_OR_RETURN(options.byte_fallback, component.boolean_or("byte_fallback", false));
    ASSIGN_OR_RETURN(options.ignore_merges, component.boolean_or("ignore_merges", false));
    RETURN_IF_ERROR(lists.vocab.finish());
    const std::vector<Bpe::Merge> merges = lists.merge_views();
    return Bpe::create(std::move(lists.vocab), merges, std::move(options), unit);
}

// The reference ignores the "id" of an added token. A token that the model has keeps the model's
// id. The others get consecutive ids, from the model's size on. If the file says otherwise, there
// is a warning, as in the reference.
Result<AddedTokens> read_added_tokens(
    const json& file,
    const Vocab& vocab,
    const Normalizer& normalizer,
    std::vector<std::string>& warnings
) {
    AddedTokens added;
    if (!file.contains("added_tokens")) return added;
    const Component root(file, "tokenizer");
    ASSIGN_OR_RETURN(const std::vector<Component> items, root.items("added_tokens"));
    auto next_id = static_cast<std::int32_t>(vocab.num_tokens());
    for (const Component& item : items) {
        AddedToken token;
        ASSIGN_OR_RETURN(const std::int32_t stated_id, item.count("id"));
        ASSIGN_OR_RETURN(token.content, item.string("content"));
        ASSIGN_OR_RETURN(token.single_word, item.boolean("single_word"));
        ASSIGN_OR_RETURN(token.lstrip, item.boolean("lstrip"));
        ASSIGN_OR_RETURN(token.rstrip, item.boolean("rstrip"));
        ASSIGN_OR_RETURN(token.normalized, item.boolean("normalized"));
        ASSIGN_OR_RETURN(token.special, item.boolean("special"));
        if (token.content.empty()) continue;  // as in the reference
        std::optional<TokenId> id = added.find(token.content);
        if (!id) id = vocab.find(token.content);
        const bool is_new = !id;
        if (is_new) id = TokenId{next_id++};
        if (is_new && vocab.token(*id)) {
            return make_error(
                kAlreadyExists,
                "{}: '{}' would get id {} by its position, but the model's '{}' has that id",
                item.path(),
                token.content,
                raw(*id),
                *vocab.token(*id)
            );
        }
        if (raw(*id) >= Vocab::kTokensMax)
            return item.unsupported(fmt::format("an id over {}", Vocab::kTokensMax - 1));
        if (raw(*id) != stated_id) {
            warnings.push_back(fmt::format(
                "{}: '{}' says it has id {}, but has {}",
                item.path(),
                token.content,
                stated_id,
                raw(*id)
            ));
        }
        if (auto inserted = added.insert(*id, std::move(token), normalizer); !inserted) {
            return make_error(
                inserted.error().code, "{}: {}", item.path(), inserted.error().message
            );
        }
    }
    RETURN_IF_ERROR(added.finish());
    return added;
}

Result<PostProcessor::Template> read_template(const Component& component) {
    PostProcessor::Template pieces;
    const json* known = component.find("special_tokens");
    if (known == nullptr || !known->is_object()) {
        return component.wrong("special_tokens", "an object of names and their tokens");
    }
    ASSIGN_OR_RETURN(const std::vector<Component> items, component.items("single"));
    for (const Component& item : items) {
        if (item.value().is_object() && item.value().size() == 1) {
            const auto piece = item.value().begin();
            const Component named(piece.value(), item.path() + "." + piece.key());
            ASSIGN_OR_RETURN(const std::string id, named.string("id"));
            if (piece.key() == "Sequence") {
                if (id != "A") return named.wrong("id", "'A', in the template of a single text");
                pieces.emplace_back();
                continue;
            }
            if (piece.key() == "SpecialToken") {
                const auto special = known->find(id);
                if (special == known->end()) return named.wrong("id", "a name of special_tokens");
                const Component entry(
                    *special, fmt::format("{}.special_tokens.{}", component.path(), id)
                );
                ASSIGN_OR_RETURN(const std::vector<Component> ids, entry.items("ids"));
                for (const Component& one : ids) {
                    ASSIGN_OR_RETURN(const TokenId token, one.token_id());
                    pieces.emplace_back(token);
                }
                continue;
            }
        }
        return make_error(kMalformed, "{} is neither a Sequence nor a SpecialToken", item.path());
    }
    return pieces;
}

// Stores the only template of the processors in `found`. ByteLevel changes only offsets.
Result<> read_post_processor(
    const Component& component, int depth, std::optional<PostProcessor::Template>& found
) {
    if (depth > kSequenceDepthMax) return component.unsupported("nesting this deep");
    ASSIGN_OR_RETURN(const std::string type, component.type());
    if (type == "ByteLevel") return Ok{};
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const std::vector<Component> items, component.items("processors"));
        for (const Component& item : items)
            RETURN_IF_ERROR(read_post_processor(item, depth + 1, found));
        return Ok{};
    }
    // The reference's result for a template around a template is not dependable.
    if (found) return component.unsupported("a second template");
    if (type == "TemplateProcessing") {
        ASSIGN_OR_RETURN(found, read_template(component));
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
        ASSIGN_OR_RETURN(const TokenId cls, component.named_token_id("cls"));
        ASSIGN_OR_RETURN(const TokenId sep, component.named_token_id("sep"));
        found = PostProcessor::Template{cls, std::nullopt, sep};
    } else {
        return component.unsupported(fmt::format("the post-processor '{}'", type));
    }
    return Ok{};
}

Result<> read_decoder(const Component& component, int depth, std::vector<DecoderStep>& steps) {
    if (depth > kSequenceDepthMax) return component.unsupported("nesting this deep");
    ASSIGN_OR_RETURN(const std::string type, component.type());
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const std::vector<Component> items, component.items("decoders"));
        for (const Component& item : items) RETURN_IF_ERROR(read_decoder(item, depth + 1, steps));
    } else if (type == "ByteLevel") {
        steps.emplace_back(ByteLevelDecoder{});
    } else if (type == "ByteFallback") {
        steps.emplace_back(ByteFallbackDecoder{});
    } else if (type == "Fuse") {
        steps.emplace_back(FuseDecoder{});
    } else if (type == "Strip") {
        StripDecoder step;
        ASSIGN_OR_RETURN(step.content, component.character("content"));
        ASSIGN_OR_RETURN(const std::int32_t start, component.count("start"));
        ASSIGN_OR_RETURN(const std::int32_t stop, component.count("stop"));
        step.start = static_cast<std::size_t>(start);
        step.stop = static_cast<std::size_t>(stop);
        steps.emplace_back(std::move(step));
    } else if (type == "Replace") {
        ASSIGN_OR_RETURN(Pattern pattern, read_pattern(component));
        ASSIGN_OR_RETURN(std::string content, component.string("content"));
        steps.emplace_back(ReplaceDecoder{
            .pattern = std::move(pattern.regex),
            .content = std::move(content),
            .is_one_code_point = pattern.is_one_code_point,
        });
    } else if (type == "Metaspace") {
        ASSIGN_OR_RETURN(MetaspaceStep step, read_metaspace(component));
        steps.emplace_back(MetaspaceDecoder{
            .replacement = std::move(step.replacement),
            .strips_first = step.prepend != MetaspaceStep::Prepend::kNever,
        });
    } else if (type == "BPEDecoder") {
        ASSIGN_OR_RETURN(std::string suffix, component.string("suffix"));
        if (suffix.empty()) return component.unsupported("an empty suffix");
        steps.emplace_back(BpeDecoder{.suffix = std::move(suffix)});
    } else if (type == "WordPiece") {
        WordPieceDecoder step;
        ASSIGN_OR_RETURN(step.prefix, component.string("prefix"));
        ASSIGN_OR_RETURN(step.cleanup, component.boolean("cleanup"));
        steps.emplace_back(std::move(step));
    } else if (type == "CTC") {
        CtcDecoder step;
        ASSIGN_OR_RETURN(step.pad_token, component.string("pad_token"));
        ASSIGN_OR_RETURN(step.word_delimiter_token, component.string("word_delimiter_token"));
        ASSIGN_OR_RETURN(step.cleanup, component.boolean("cleanup"));
        if (step.pad_token.empty() || step.word_delimiter_token.empty()) {
            return component.unsupported("an empty token");
        }
        steps.emplace_back(std::move(step));
    } else {
        return component.unsupported(fmt::format("the decoder '{}'", type));
    }
    return Ok{};
}

}  // namespace

Result<TokenizerParts> read_tokenizer_file(std::string_view text) {
    ASSIGN_OR_RETURN(TokenizerLists lists, read_tokenizer_lists(text));
    const json& file = lists.rest;
    const Component root(file, "tokenizer");
    if (root.find("version") != nullptr) {
        ASSIGN_OR_RETURN(const std::string version, root.string("version"));
        if (version != "1.0") return root.unsupported(fmt::format("version '{}'", version));
    }
    const auto has = [&](const char* name) { return file.contains(name) && !file[name].is_null(); };
    for (const char* name : {"truncation", "padding"}) {
        if (has(name)) return root.unsupported(fmt::format("{} (set it to null)", name));
    }

    TokenizerParts parts;
    if (has("normalizer")) {
        std::vector<NormalizerStep> steps;
        RETURN_IF_ERROR(read_normalizer(Component(file["normalizer"], "normalizer"), 0, steps));
        parts.normalizer = Normalizer(std::move(steps));
    }
    if (has("pre_tokenizer")) {
        std::vector<PreTokenizerStep> steps;
        RETURN_IF_ERROR(
            read_pre_tokenizer(Component(file["pre_tokenizer"], "pre_tokenizer"), 0, steps)
        );
        parts.pre_tokenizer = PreTokenizer(std::move(steps));
    }
    const bool yields_bytes = parts.pre_tokenizer.yields_bytes();
    ASSIGN_OR_RETURN(
        Bpe model, read_model(lists, yields_bytes ? Bpe::Unit::kByte : Bpe::Unit::kCodePoint)
    );
    parts.model = std::make_unique<const Bpe>(std::move(model));
    ASSIGN_OR_RETURN(
        parts.added_tokens,
        read_added_tokens(file, parts.model->vocab(), parts.normalizer, parts.warnings)
    );
    if (has("post_processor")) {
        std::optional<PostProcessor::Template> found;
        RETURN_IF_ERROR(
            read_post_processor(Component(file["post_processor"], "post_processor"), 0, found)
        );
        if (found) parts.post_processor = PostProcessor(*std::move(found));
    }
    if (has("decoder")) {
        std::vector<DecoderStep> steps;
        RETURN_IF_ERROR(read_decoder(Component(file["decoder"], "decoder"), 0, steps));
        parts.decoder = Decoder(std::move(steps));
    }
    return parts;
}

}  // namespace pitstop::text
