// The post-processor of a tokenizer.json: which special tokens surround an encoding.
//
// Thread: any; immutable.
#pragma once

#include "base/ids.h"

#include <optional>
#include <span>
#include <vector>

namespace pitstop::text {

class PostProcessor {
  public:
    // Each entry is a special token, or nothing: there the text's own tokens are put.
    using Template = std::vector<std::optional<TokenId>>;

    PostProcessor() : template_{std::nullopt} {}  // only the text's own tokens
    explicit PostProcessor(Template pieces) : template_(std::move(pieces)) {}

    // Puts the template around `ids`, or returns `ids` alone if special tokens are not wanted.
    [[nodiscard]] std::vector<TokenId> apply(std::vector<TokenId> ids, bool with_special) const;

  private:
    Template template_;
};

}  // namespace pitstop::text
