// Makes a synthetic byte-level BPE tokenizer of any size. Its tokens are the 256 bytes, then merges
// of two to four lower-case letters (a space may replace the first), then three special tokens.
//
// Text in lower case has about four bytes per token, as with a trained tokenizer. Every id below
// the vocabulary's size decodes to text, because a model with random weights emits any id.
//
// Source: the layout of tokenizer.json as Hugging Face tokenizers writes it; pre-tokenizer pattern
// and special tokens as Qwen2 publishes them.
#pragma once

#include <cstdint>
#include <string>

namespace pitstop::bench {

inline constexpr std::int64_t kNumBytes = 256;
inline constexpr std::int64_t kNumSpecial = 3;
inline constexpr std::int64_t kNumPairs = std::int64_t{27} * 26;  // a letter or space, a letter
inline constexpr std::int64_t kNumTriples = kNumPairs * 26;       // a pair and a letter
inline constexpr std::int64_t kNumQuads = kNumPairs * 26 * 26;    // a pair and a pair of letters
inline constexpr std::int64_t kBpeVocabMin = kNumBytes + kNumSpecial;
inline constexpr std::int64_t kBpeVocabMax =
    kNumBytes + kNumPairs + kNumTriples + kNumQuads + kNumSpecial;

// REQUIRES: kBpeVocabMin <= vocab <= kBpeVocabMax.
[[nodiscard]] std::string tokenizer_json(std::int64_t vocab);

// `context` is the number of positions the model has.
[[nodiscard]] std::string tokenizer_config_json(std::int64_t vocab, std::int64_t context);

}  // namespace pitstop::bench
