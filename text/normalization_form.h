// The normalization forms of the reference implementation of tokenizer.json. They are those of
// Unicode 9: newer code points stay unchanged, and separate their neighbours.
//
// Source: UAX #15. utf8proc decomposes and composes. Marks are sorted here, because utf8proc needs
// quadratic time to sort them, and a prompt may consist only of marks.
#pragma once

#include <string>
#include <string_view>

namespace pitstop::text {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Replaces `text` by its normal form. Needs one scan if both are equal. REQUIRES: valid UTF-8.
void normalize(NormalizationForm form, std::string& text);

}  // namespace pitstop::text
