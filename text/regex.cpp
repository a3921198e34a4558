#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <utility>

namespace pitstop::text {
namespace {

using namespace regex;

// A match that needs more steps of backtracking is an error.
constexpr std::uint32_t kMatchStepsMax = 10'000'000;

// Writes a tree as a PCRE2 pattern. Every group becomes (?:...), every class a list of code points.
class Pcre2Writer {
  public:
    static std::string write(const Node& node) {
        Pcre2Writer writer;
        writer.put(node);
        return std::move(writer.out_);
    }

  private:
    void put(const Node& node) {
        std::visit([&](const auto& kind) { put_kind(kind); }, node.kind);
    }
    void put_group(std::string_view open, const Node& body) {
        out_ += open;
        put(body);
        out_ += ')';
    }

    void put_kind(const OneOf& node) {
        if (node.set.is_empty()) {
            out_ += "(?!)";
            return;
        }
        out_ += '[';
        for (const CodePointRange& range : node.set.ranges()) {
            out_ += fmt::format(
                "\\x{{{:x}}}-\\x{{{:x}}}",
                static_cast<std::uint32_t>(range.first),
                static_cast<std::uint32_t>(range.last)
            );
        }
        out_ += ']';
    }
    void put_kind(const Concat& node) {
        for (const Node& part : node.parts) put_group("(?:", part);
    }
    void put_kind(const Alternate& node) {
        out_ += "(?:";
        for (std::size_t i = 0; i < node.branches.size(); ++i) {
            if (i > 0) out_ += '|';
            put(node.branches[i]);
        }
        out_ += ')';
    }
    void put_kind(const Repeat& node) {
        put_group("(?:", node.body[0]);
        const std::string max = node.max ? std::to_string(*node.max) : "";
        out_ += fmt::format("{{{},{}}}", node.min, max);
        if (node.greed == Greed::kLazy) out_ += '?';
        if (node.greed == Greed::kPossessive) out_ += '+';
    }
    void put_kind(const Atomic& node) { put_group("(?>", node.body[0]); }
    void put_kind(const Look& node) {
        const bool ahead = node.direction == Direction::kAhead;
        put_group(node.negated ? (ahead ? "(?!" : "(?<!") : (ahead ? "(?=" : "(?<="), node.body[0]);
    }
    void put_kind(const At& node) {
        switch (node.position) {
            case Position::kTextBegin:
                out_ += "\\A";
                break;
            case Position::kTextEnd:
                out_ += "\\z";
                break;
            case Position::kTextEndOrLastNewline:
                out_ += "(?=\\n?\\z)";
                break;
            // No line begins after a newline at the end of the text.
            case Position::kLineBegin:
                out_ += "(?:\\A|(?<=\\n)(?!\\z))";
                break;
            case Position::kLineEnd:
                out_ += "(?=\\n|\\z)";
                break;
        }
    }

    std::string out_{};
};

bool may_be_empty(const Node& node);

bool may_be_empty(const Node& node) {
    if (std::holds_alternative<OneOf>(node.kind)) return false;
    if (const auto* concat = std::get_if<Concat>(&node.kind)) {
        return std::all_of(concat->parts.begin(), concat->parts.end(), may_be_empty);
    }
    if (const auto* alternate = std::get_if<Alternate>(&node.kind)) {
        return std::any_of(alternate->branches.begin(), alternate->branches.end(), may_be_empty);
    }
    if (const auto* repeat = std::get_if<Repeat>(&node.kind)) {
        return repeat->min == 0 || may_be_empty(repeat->body[0]);
    }
    if (const auto* atomic = std::get_if<Atomic>(&node.kind)) return may_be_empty(atomic->body[0]);
    return true;  // a condition takes no text
}

}  // namespace

struct Regex::Pcre2 {
    pcre2_code* code = nullptr;
    pcre2_match_context* context = nullptr;

    Pcre2() = default;
    Pcre2(const Pcre2&) = delete;
    Pcre2& operator=(const Pcre2&) = delete;
    ~Pcre2() {
        pcre2_match_context_free(context);
        pcre2_code_free(code);
    }
};

Regex::Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex Regex::literal(std::string text) {
    CHECK(!text.empty());
    Regex regex;
    regex.literal_ = std::move(text);
    return regex;
}

Result<Regex> Regex::compile(std::string_view pattern, Engine engine) {
    ASSIGN_OR_RETURN(const Node tree, parse(pattern));
    Regex regex;
    regex.may_match_empty_ = may_be_empty(tree);
    if (engine == Engine::kBest) regex.dfa_ = Dfa::compile(tree);
    if (regex.dfa_) return regex;

    const std::string written = Pcre2Writer::write(tree);
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    regex.pcre2_ = std::make_unique<Pcre2>();
    regex.pcre2_->code = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(written.data()),
        written.size(),
        PCRE2_UTF | PCRE2_NO_UTF_CHECK,
        &error,
        &error_offset,
        nullptr
    );
    if (regex.pcre2_->code == nullptr) {
        unsigned char text[256] = {};
        pcre2_get_error_message(error, text, sizeof text);
        return make_error(
            ErrorCode::kUnsupported,
            "the pattern '{}' cannot be compiled: {}",
            pattern,
            reinterpret_cast<const char*>(text)
        );
    }
    // If this machine has no JIT, the interpreter gives the same matches, but slower.
    pcre2_jit_compile(regex.pcre2_->code, PCRE2_JIT_COMPLETE);
    regex.pcre2_->context = pcre2_match_context_create(nullptr);
    CHECK(regex.pcre2_->context != nullptr);
    pcre2_set_match_limit(regex.pcre2_->context, kMatchStepsMax);
    return regex;
}

Result<std::optional<TextSpan>> Regex::Search::find(std::size_t from) const {
    using Found = std::optional<TextSpan>;
    if (!regex_.literal_.empty()) {
        const std::size_t at = text_.find(regex_.literal_, from);
        return at == text_.npos ? Found() : Found({at, at + regex_.literal_.size()});
    }
    if (regex_.dfa_) {
        const char* const end = text_.data() + text_.size();
        for (std::size_t begin = from;; begin += utf8_len(text_[begin])) {
            if (const char* matched = regex_.dfa_->match(text_.data() + begin, end)) {
                return Found({begin, static_cast<std::size_t>(matched - text_.data())});
            }
            if (begin == text_.size()) return Found();
        }
    }
    struct Match {
        pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
        ~Match() { pcre2_match_data_free(data); }
    } match;
    const auto try_match = [&](std::uint32_t options) {
        return pcre2_match(
            regex_.pcre2_->code,
            reinterpret_cast<PCRE2_SPTR>(text_.data()),
            text_.size(),
            from,
            PCRE2_NO_UTF_CHECK | options,
            match.data,
            regex_.pcre2_->context
        );
    };
    int found = try_match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = try_match(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) return Found();
    if (found < 0) {
        return make_error(
            ErrorCode::kResourceExhausted,
            "a pattern of the tokenizer needs too many steps on this text ({} bytes)",
            text_.size()
        );
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.data);
    return Found({span[0], span[1]});
}

Result<std::optional<TextSpan>> Regex::Search::next() {
    using Found = std::optional<TextSpan>;
    for (;;) {
        if (pos_ > text_.size()) return Found();
        ASSIGN_OR_RETURN(const Found found, find(pos_));
        if (!found) {
            pos_ = text_.size() + 1;
            return found;
        }
        const bool is_empty = found->begin == found->end;
        pos_ = found->end;
        if (is_empty) pos_ += pos_ < text_.size() ? utf8_len(text_[pos_]) : 1;
        if (is_empty && last_end_ == found->end) continue;
        last_end_ = found->end;
        return found;
    }
}

}  // namespace pitstop::text
