// Does the Unicode normalization forms as the reference implementation of tokenizer.json has them:
// of Unicode 9, so that code points newer than that are left alone and keep their neighbours apart.
//
// Source: UAX #15; utf8proc decomposes and composes, the order of marks is made here, because
// utf8proc sorts them in quadratic time and a prompt may be nothing but marks.
#pragma once

#include <string>
#include <string_view>

namespace pitstop::text {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Replaces `text` by its normal form. Costs a scan where there is nothing to do. REQUIRES: valid
// UTF-8.
void normalize(NormalizationForm form, std::string& text);

}  // namespace pitstop::text
