#include "jinja/format.h"

#include "base/utf8.h"
#include "jinja/python_repr.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace pitstop::jinja {
namespace {

constexpr std::size_t kShownLen = 256;  // bytes of a template's text in an error

class BraceFormat {
  public:
    BraceFormat(const Args& args, Budget& budget) : args_(args), budget_(budget) {}

    Result<std::string> write(std::string_view format) {
        TextBuilder out(budget_);
        for (std::size_t pos = 0; pos < format.size();) {
            const std::size_t brace = std::min(format.find_first_of("{}", pos), format.size());
            if (!out.add(format.substr(pos, brace - pos))) break;
            if (brace == format.size()) break;
            if (brace + 1 < format.size() && format[brace + 1] == format[brace]) {
                out.add(format.substr(brace, 1));
                pos = brace + 2;
                continue;
            }
            if (format[brace] == '}') return type_error("a single '}}' in a format");
            const std::size_t end = format.find('}', brace);
            if (end == std::string_view::npos) {
                return type_error("a '{{' in a format that is not closed");
            }
            ASSIGN_OR_RETURN(
                const Value* value, value_of(format.substr(brace + 1, end - brace - 1))
            );
            write_str(*value, out);
            pos = end + 1;
        }
        return out.take();
    }

  private:
    Result<const Value*> value_of(std::string_view field) {
        RETURN_IF_ERROR(budget_.steps());
        if (field.find_first_of("!:.[{") != std::string_view::npos) {
            return type_error(
                "the format's field '{}' is not served: {{}}, {{0}} and {{name}} are",
                utf8_prefix(field, kShownLen)
            );
        }
        std::size_t index = 0;
        const char* const end = field.data() + field.size();
        const auto [stop, problem] = std::from_chars(field.data(), end, index);
        if (field.empty()) index = num_unnumbered_++;
        const bool is_numbered = problem == std::errc{} && stop == end;
        has_numbers_ |= is_numbered;
        if (has_numbers_ && num_unnumbered_ != 0) {
            return type_error("a format has {{}} or {{0}}, not both");
        }
        if (field.empty() || is_numbered) {
            if (index < args_.positional.size()) return &args_.positional[index];
            return type_error("the format has no argument {}", index);
        }
        RETURN_IF_ERROR(budget_.scan(args_.named.size() * sizeof(args_.named[0])));
        const auto found =
            std::ranges::find(args_.named, field, &std::pair<std::string, Value>::first);
        if (found != args_.named.end()) return &found->second;
        return type_error("the format has no argument '{}'", utf8_prefix(field, kShownLen));
    }

    const Args& args_;
    Budget& budget_;
    std::size_t num_unnumbered_ = 0;
    bool has_numbers_ = false;
};

}  // namespace

Result<Value> brace_format(const Text& format, const Args& args, Budget& budget) {
    ASSIGN_OR_RETURN(std::string text, BraceFormat(args, budget).write(format.bytes));
    return format.is_markup ? Value::markup(std::move(text)) : Value::text(std::move(text));
}

}  // namespace pitstop::jinja
