#include "bench/bpe_vocabulary.h"

#include "base/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, kNumSpecial> kSpecialTokens{
    "<|endoftext|>", "<|im_start|>", "<|im_end|>"};

constexpr std::string_view kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kSpace = "\u0120";  // how byte-level vocabularies write a space

std::string utf8(unsigned code_point) {
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {
        static_cast<char>(0xc0u | (code_point >> 6)),
        static_cast<char>(0x80u | (code_point & 0x3fu))};
}

// Lists GPT-2's alphabet, a character per byte: a printable byte of Latin-1 is its own character,
// and the n-th other byte is U+0100+n. Sorted by code point, as in published vocabularies.
std::vector<std::string> byte_tokens() {
    const auto is_printable = [](unsigned byte) {
        return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    };
    std::vector<std::string> tokens;
    for (unsigned byte = 0; byte < 256; ++byte) {
        if (is_printable(byte)) tokens.push_back(utf8(byte));
    }
    for (unsigned n = 0; tokens.size() < 256; ++n) tokens.push_back(utf8(0x100 + n));
    return tokens;
}

using Merge = std::pair<std::string, std::string>;

// Makes merges in order of length, so that both halves of a merge exist before it. No two merges
// make the same text.
std::vector<Merge> merges(std::size_t count) {
    std::vector<std::string> pairs;         // "ab", "\u0120a"
    std::vector<std::string> letter_pairs;  // "ab"
    std::vector<Merge> made;
    const auto add = [&](const std::string& left, const std::string& right) {
        if (made.size() < count) made.emplace_back(left, right);
        return made.size() < count;
    };
    const auto letter = [](int index) { return std::string(1, static_cast<char>('a' + index)); };

    for (int first = 0; first < 27; ++first) {  // 0: the space
        for (int second = 0; second < 26; ++second) {
            const std::string left = first == 0 ? std::string(kSpace) : letter(first - 1);
            pairs.push_back(left + letter(second));
            if (first != 0) letter_pairs.push_back(pairs.back());
            if (!add(left, letter(second))) return made;
        }
    }
    for (const std::string& pair : pairs) {
        for (int last = 0; last < 26; ++last) {
            if (!add(pair, letter(last))) return made;
        }
    }
    for (const std::string& pair : pairs) {
        for (const std::string& last : letter_pairs) {
            if (!add(pair, last)) return made;
        }
    }
    return made;
}

Json added_token(std::string_view content) {
    return {
        {"content", content},
        {"single_word", false},
        {"lstrip", false},
        {"rstrip", false},
        {"normalized", false},
        {"special", true},
    };
}

}  // namespace

std::string tokenizer_json(std::int64_t vocab) {
    CHECK(vocab >= kBpeVocabMin && vocab <= kBpeVocabMax);
    const Json byte_level = {
        {"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", false},
        {"use_regex", false},
    };
    Json root;
    root["version"] = "1.0";
    root["truncation"] = nullptr;
    root["padding"] = nullptr;
    root["added_tokens"] = Json::array();
    for (std::size_t i = 0; i < kSpecialTokens.size(); ++i) {
        Json token = {{"id", vocab - kNumSpecial + static_cast<std::int64_t>(i)}};
        token.update(added_token(kSpecialTokens[i]));
        root["added_tokens"].push_back(std::move(token));
    }
    root["normalizer"] = {{"type", "NFC"}};
    root["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"},
           {"pattern", {{"Regex", kPattern}}},
           {"behavior", "Isolated"},
           {"invert", false}},
          byte_level}},
    };
    root["post_processor"] = byte_level;
    root["decoder"] = byte_level;

    // The two long parts are written as text: an ordered JSON object scans all its keys for
    // each new one.
    root["model"] = {
        {"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", ""},
        {"end_of_word_suffix", ""},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
    };
    std::string vocab_text;
    std::string merges_text;
    std::int64_t id = 0;
    const auto add_vocab = [&](const std::string& token) {
        vocab_text += id == 0 ? "\n" : ",\n";
        vocab_text += Json(token).dump() + ": " + std::to_string(id++);
    };
    for (const std::string& token : byte_tokens()) add_vocab(token);
    for (const auto& [left, right] : merges(static_cast<std::size_t>(vocab - kBpeVocabMin))) {
        add_vocab(left + right);
        merges_text += merges_text.empty() ? "\n" : ",\n";
        merges_text += Json(fmt::format("{} {}", left, right)).dump();
    }
    std::string text = root.dump(2);
    text.resize(text.rfind('}'));  // cuts the root's closing brace
    text.resize(text.rfind('}'));  // cuts the model's closing brace
    text.resize(text.find_last_not_of(" \n") + 1);
    text += ",\n\"vocab\": {" + vocab_text + "\n},\n\"merges\": [" + merges_text + "\n]\n}\n}\n";
    return text;
}

std::string tokenizer_config_json(std::int64_t vocab, std::int64_t context) {
    Json added;
    for (std::size_t i = 0; i < kSpecialTokens.size(); ++i) {
        const std::int64_t id = vocab - kNumSpecial + static_cast<std::int64_t>(i);
        added[std::to_string(id)] = added_token(kSpecialTokens[i]);
    }
    Json config;
    config["add_bos_token"] = false;
    config["add_prefix_space"] = false;
    config["added_tokens_decoder"] = std::move(added);
    config["additional_special_tokens"] = {kSpecialTokens[1], kSpecialTokens[2]};
    config["bos_token"] = nullptr;
    config["chat_template"] =
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content "
        "+ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- "
        "'<|im_start|>assistant\\n' }}{%- endif %}";
    config["clean_up_tokenization_spaces"] = false;
    config["eos_token"] = kSpecialTokens[2];
    config["errors"] = "replace";
    config["model_max_length"] = context;
    config["pad_token"] = kSpecialTokens[0];
    config["split_special_tokens"] = false;
    config["tokenizer_class"] = "Qwen2Tokenizer";
    config["unk_token"] = nullptr;
    return config.dump(2) + "\n";
}

}  // namespace pitstop::bench
