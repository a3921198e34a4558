#define PCRE2_CODE_UNIT_WIDTH 8
#include "tp_worker/config/module_pattern.h"

#include "base/check.h"

#include <pcre2.h>

#include <algorithm>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::uint32_t kStepsMax = 100'000;  // of a match: some milliseconds
constexpr std::uint32_t kFirstSteps = 64;     // enough for most paths
constexpr std::uint32_t kGrowth = 8;
constexpr std::uint32_t kNestingMax = 64;

}  // namespace

struct ModulePattern::Compiled {
    pcre2_code* code = nullptr;
    pcre2_match_context* context = nullptr;
    pcre2_match_data* data = nullptr;

    Compiled() = default;
    Compiled(const Compiled&) = delete;
    Compiled& operator=(const Compiled&) = delete;
    ~Compiled() {
        pcre2_match_data_free(data);
        pcre2_match_context_free(context);
        pcre2_code_free(code);
    }
};

void ModulePattern::Free::operator()(Compiled* compiled) const { delete compiled; }

Result<ModulePattern> ModulePattern::compile(std::string pattern) {
    if (pattern.size() > kBytesMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a pattern of {} bytes; at most {} are accepted",
            pattern.size(),
            kBytesMax
        );
    }
    ModulePattern made;
    made.text_ = std::move(pattern);
    made.compiled_.reset(new Compiled);
    pcre2_compile_context* const context = pcre2_compile_context_create(nullptr);
    CHECK(context != nullptr);
    pcre2_set_parens_nest_limit(context, kNestingMax);
    int error = 0;
    PCRE2_SIZE at = 0;
    made.compiled_->code = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(made.text_.data()),
        made.text_.size(),
        PCRE2_UTF | PCRE2_ANCHORED,
        &error,
        &at,
        context
    );
    pcre2_compile_context_free(context);
    if (made.compiled_->code == nullptr) {
        unsigned char why[128];
        pcre2_get_error_message(error, why, sizeof why);
        return make_error(
            ErrorCode::kInvalidArgument,
            "the pattern '{}' is wrong at byte {}: {}",
            made.text_,
            at,
            reinterpret_cast<const char*>(why)
        );
    }
    made.compiled_->context = pcre2_match_context_create(nullptr);
    made.compiled_->data = pcre2_match_data_create_from_pattern(made.compiled_->code, nullptr);
    CHECK(made.compiled_->context != nullptr && made.compiled_->data != nullptr);
    return made;
}

// Stores the match in the match data. PCRE2 does not say how many steps it made, so it gets a low
// limit first, and a higher one if it exceeds that.
Result<bool> ModulePattern::match(std::string_view path, std::uint32_t options, MatchSteps& steps)
    const {
    int found = PCRE2_ERROR_MATCHLIMIT;
    for (std::uint32_t limit = kFirstSteps;; limit = std::min(limit * kGrowth, kStepsMax)) {
        RETURN_IF_ERROR(steps.take(limit));
        pcre2_set_match_limit(compiled_->context, limit);
        found = pcre2_match(
            compiled_->code,
            reinterpret_cast<PCRE2_SPTR>(path.data()),
            path.size(),
            0,
            options,
            compiled_->data,
            compiled_->context
        );
        if (found != PCRE2_ERROR_MATCHLIMIT || limit == kStepsMax) break;
    }
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found >= 0) return true;
    return make_error(
        ErrorCode::kResourceExhausted, "the pattern '{}' needs too many steps on '{}'", text_, path
    );
}

Result<bool> ModulePattern::matches_whole(std::string_view path, MatchSteps& steps) const {
    return match(path, PCRE2_ENDANCHORED, steps);
}

Result<std::optional<std::string>> ModulePattern::group(
    std::string_view path, const char* name, MatchSteps& steps
) const {
    using Group = std::optional<std::string>;
    ASSIGN_OR_RETURN(const bool is_found, match(path, 0, steps));
    if (!is_found) return Group();
    const int number =
        pcre2_substring_number_from_name(compiled_->code, reinterpret_cast<PCRE2_SPTR>(name));
    if (number < 0) {  // text before the group may have made the group a comment
        return make_error(
            ErrorCode::kInvalidArgument, "the pattern '{}' has no group '{}'", text_, name
        );
    }
    const auto at = 2 * static_cast<std::size_t>(number);
    const PCRE2_SIZE* const spans = pcre2_get_ovector_pointer(compiled_->data);
    if (spans[at] == PCRE2_UNSET) return Group();
    return Group(path.substr(spans[at], spans[at + 1] - spans[at]));
}

}  // namespace pitstop::tp_worker
