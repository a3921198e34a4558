// Says, as a tokenizer.json does in its post-processor, which special tokens go around an encoding.
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
    // Each entry is a special token, or (nothing) the encoding itself.
    using Template = std::vector<std::optional<TokenId>>;

    PostProcessor() : template_{std::nullopt} {}  // the encoding alone
    explicit PostProcessor(Template pieces) : template_(std::move(pieces)) {}

    // Puts the template around `ids`, without its special tokens if they are not wanted.
    [[nodiscard]] std::vector<TokenId> apply(std::vector<TokenId> ids, bool with_special) const;

  private:
    Template template_;
};

}  // namespace pitstop::text
