#include "tokenizer_proc/tree_identity.h"

#include "base/utf8.h"

namespace pitstop::tokenizer {
namespace {

constexpr std::size_t kShownBytesMax = 64;  // of a client's identity that an error shows

}  // namespace

// The first update's number has 31 random bits, so that it and later ones fit a double, which JSON
// readers may use.
TreeIdentity::TreeIdentity(std::uint64_t high, std::uint64_t low)
    : id_(fmt::format("{:016x}{:016x}", high, low)), first_update_{(low >> 33) + 1} {}

bool TreeIdentity::is_other(const messages::Frames& frames) const {
    messages::Frames own = frames;
    const Result<std::string> meant = take_tree(own);
    return meant && !meant->empty() && *meant != id_;
}

Result<> TreeIdentity::check(std::string_view type, std::string_view meant) const {
    if (meant == id_) return Ok{};
    if (meant.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}: tree is missing; it is the identity that this tree gave in hello_reply",
            type
        );
    }
    return make_error(
        ErrorCode::kUnavailable,
        "{}: it is for tree '{}', which no longer serves here: it was restarted, or another tree "
        "took its place",
        type,
        utf8_prefix(meant, kShownBytesMax)
    );
}

}  // namespace pitstop::tokenizer
