// A vocabulary of every byte, and some longer tokens: id 0 ends an output, id 1 is special.
#pragma once

#include "grammar/vocabulary.h"

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::grammar {

inline constexpr TokenId kEnd{0};
inline constexpr TokenId kSpecial{1};

inline Vocabulary small_vocabulary() {
    Vocabulary vocabulary;
    vocabulary.tokens = {"", ""};
    for (int byte = 1; byte < 256; ++byte)
        vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    for (const std::string_view token : {"{\"", "\":", "true", "}", "},", "abc", "ab", " a"})
        vocabulary.tokens.emplace_back(token);
    vocabulary.end_ids = {kEnd};
    return vocabulary;
}

// The token of one byte.
inline TokenId id_of(char c) { return TokenId{static_cast<unsigned char>(c) + 1}; }

}  // namespace pitstop::grammar
