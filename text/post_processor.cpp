#include "text/post_processor.h"

namespace pitstop::text {

std::vector<TokenId> PostProcessor::apply(std::vector<TokenId> ids, bool with_special) const {
    if (template_.size() == 1 && !template_[0]) return ids;
    std::vector<TokenId> out;
    out.reserve(ids.size() + template_.size());
    for (const std::optional<TokenId>& piece : template_) {
        if (!piece) {
            out.insert(out.end(), ids.begin(), ids.end());
        } else if (with_special) {
            out.push_back(*piece);
        }
    }
    return out;
}

}  // namespace pitstop::text
