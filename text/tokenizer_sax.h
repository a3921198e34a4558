// The first step of reading a tokenizer.json. The two long lists, the vocabulary and the merges, go
// directly into their tables. All other values become a small tree.
//
// Only tokenizer_file.cpp and tokenizer_sax.cpp include this header: it uses nlohmann::json.
#pragma once

#include "base/result.h"
#include "text/bpe.h"
#include "text/vocab.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::text {

struct TokenizerLists {
    static constexpr std::size_t kMergesMax = 1 << 23;

    nlohmann::json rest{};  // all except model.vocab and model.merges
    Vocab vocab{};          // before finish()
    bool has_vocab = false;
    bool has_merges = false;
    std::string merge_text{};  // both sides of each merge, one after the other

    struct Sides {
        std::size_t begin = 0;
        std::uint32_t left_len = 0;
        std::uint32_t right_len = 0;
    };
    std::vector<Sides> merges{};

    // Returns views of merge_text.
    [[nodiscard]] std::vector<Bpe::Merge> merge_views() const;
};

Result<TokenizerLists> read_tokenizer_lists(std::string_view json);

}  // namespace pitstop::text
