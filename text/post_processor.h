// Puts special tokens around an encoding, by the post-processor of a tokenizer.json.
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
    // Each entry is a special token, or nothing: the place of the text's own tokens.
    using Template = std::vector<std::optional<TokenId>>;

    PostProcessor() : template_{std::nullopt} {}  // only the text's own tokens
    explicit PostProcessor(Template pieces) : template_(std::move(pieces)) {}

    // Returns the template with `ids` in their place; without special tokens, returns only `ids`.
    [[nodiscard]] std::vector<TokenId> apply(std::vector<TokenId> ids, bool with_special) const;

  private:
    Template template_;
};

}  // namespace pitstop::text
