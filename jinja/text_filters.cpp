// Filters of texts. Source: Jinja 3.1, filters.py; tojson: transformers, chat_template_utils.py.
#include "jinja/filters.h"
#include "jinja/items.h"
#include "jinja/json.h"
#include "jinja/python_repr.h"
#include "jinja/python_text.h"
#include "jinja/text_methods.h"
#include "text/utf8.h"

#include <algorithm>
#include <array>

namespace pitstop::jinja {
namespace {

// Applies kChange to a text, or to str() of any other value.
template <auto kChange>
Result<Value> filter_text(Env& env, const Value& self, const Given&) {
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    RETURN_IF_ERROR(env.budget.items(kCasedGrowthMax, text.size()));
    RETURN_IF_ERROR(env.budget.look_up(text.size()));
    return text_like(self, kChange(text));
}

std::string title_of(std::string_view text) {
    std::string out;
    bool is_first = true;
    std::string word;
    const auto flush = [&] {
        if (word.empty()) return;
        const std::size_t len = text::utf8_len(word.front());
        out += to_upper(std::string_view(word).substr(0, len));
        out += to_lower(std::string_view(word).substr(len));
        word.clear();
    };
    bool was_break = false;
    for (std::size_t pos = 0; pos < text.size();) {
        const std::size_t begin = pos;
        const char32_t c = text::next_code_point(text, pos);
        const bool is_break =
            c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_python_space(c);
        if (!is_first && is_break != was_break) flush();
        word += text.substr(begin, pos - begin);
        was_break = is_break;
        is_first = false;
    }
    flush();
    return out;
}

Result<Value> filter_string(Env& env, const Value& self, const Given&) {
    if (self.as_text() != nullptr) return self;
    ASSIGN_OR_RETURN(std::string text, str_of(self, env.budget));
    return Value::text(std::move(text));
}

Result<Value> filter_safe(Env& env, const Value& self, const Given&) {
    ASSIGN_OR_RETURN(std::string text, str_of(self, env.budget));
    return Value::markup(std::move(text));
}

Result<Value> filter_escape(Env& env, const Value& self, const Given&) {
    if (const Text* text = self.as_text(); text != nullptr && text->is_markup) return self;
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    ASSIGN_OR_RETURN(std::string out, escaped(text, env.budget));
    return Value::markup(std::move(out));
}

Result<Value> filter_trim(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    if (given[0] == nullptr || given[0]->is_none()) {
        RETURN_IF_ERROR(env.budget.look_up(text.size()));
        return text_like(self, std::string(strip(text, StripSide::kBoth)));
    }
    ASSIGN_OR_RETURN(const std::string_view characters, given.text(0, "chars", ""));
    ASSIGN_OR_RETURN(
        const std::string_view kept, strip(text, characters, StripSide::kBoth, env.budget)
    );
    return text_like(self, std::string(kept));
}

Result<Value> filter_replace(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    ASSIGN_OR_RETURN(const std::string from, str_of(*given[0], env.budget));
    ASSIGN_OR_RETURN(const std::string to, str_of(*given[1], env.budget));
    std::int64_t count = -1;
    if (given[2] != nullptr && !given[2]->is_none()) {
        ASSIGN_OR_RETURN(count, given.integer(2, "count", -1));
    }
    ASSIGN_OR_RETURN(std::string out, replace_all(text, from, to, count, env.budget));
    return Value::text(std::move(out));
}

Result<Value> filter_center(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t width, given.integer(0, "width", 80));
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    ASSIGN_OR_RETURN(std::string out, justify(text, width, " ", Justify::kCenter, env.budget));
    return text_like(self, std::move(out));
}

Result<Value> filter_indent(Env& env, const Value& self, const Given& given) {
    if (self.is_undefined()) return undefined_error(self);
    const Text* text = self.as_text();
    if (text == nullptr) return type_error("does not accept {}", self.type_name());
    std::string indent(4, ' ');
    if (given[0] != nullptr) {
        if (const Text* width = given[0]->as_text()) {
            RETURN_IF_ERROR(env.budget.bytes(width->bytes.size()));
            indent = width->bytes;
        } else {
            ASSIGN_OR_RETURN(const std::int64_t width_len, given.integer(0, "width", 4));
            if (width_len > (1 << 16)) return type_error("its width is more than 65536");
            indent.assign(static_cast<std::size_t>(std::max<std::int64_t>(width_len, 0)), ' ');
        }
    }
    const bool indents_blank = given.flag(2, false);
    RETURN_IF_ERROR(env.budget.bytes(text->bytes.size() + 1));
    const std::string ended = text->bytes + "\n";
    ASSIGN_OR_RETURN(
        const std::vector<std::string_view> lines,
        split_lines(ended, /*keeps_ends=*/false, env.budget)
    );
    TextBuilder out(env.budget);
    if (given.flag(1, false)) out.add(indent);
    for (std::size_t i = 0; i < lines.size() && !out.is_full(); ++i) {
        if (i != 0) {
            out.add("\n");
            if (indents_blank || !lines[i].empty()) out.add(indent);
        }
        out.add(lines[i]);
    }
    ASSIGN_OR_RETURN(std::string indented, out.take());
    return text_like(self, std::move(indented));
}

Result<Value> filter_truncate(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t length, given.integer(0, "length", 255));
    ASSIGN_OR_RETURN(const std::string_view end, given.text(2, "end", "..."));
    std::int64_t leeway = 5;
    if (given[3] != nullptr && !given[3]->is_none()) {
        ASSIGN_OR_RETURN(leeway, given.integer(3, "leeway", 5));
    }
    if (self.is_undefined()) return self;
    RETURN_IF_ERROR(env.budget.scan(end.size()));
    const auto end_len = static_cast<std::int64_t>(num_code_points(end));
    if (length < end_len || leeway < 0) return type_error("its length or leeway is too small");
    ASSIGN_OR_RETURN(const std::optional<std::size_t> self_len, length_of(self, env.budget));
    // Avoids the sum `length + leeway`, which may overflow.
    if (self_len && static_cast<std::int64_t>(*self_len) - leeway <= length) return self;
    const Text* text = self.as_text();
    if (text == nullptr) return type_error("does not accept {}", self.type_name());
    RETURN_IF_ERROR(env.budget.bytes(text->bytes.size()));
    RETURN_IF_ERROR(env.budget.bytes(end.size()));
    std::string cut =
        text->bytes.substr(0, byte_at(text->bytes, static_cast<std::size_t>(length - end_len)));
    if (!given.flag(1, false)) {
        const std::size_t space = cut.rfind(' ');
        if (space != std::string::npos) cut.resize(space);
    }
    return text_like(self, cut + std::string(end));
}

Result<Value> filter_wordcount(Env& env, const Value& self, const Given&) {
    ASSIGN_OR_RETURN(const std::string text, str_of(self, env.budget));
    RETURN_IF_ERROR(env.budget.items(num_code_points(text), sizeof(std::string_view)));
    RETURN_IF_ERROR(env.budget.look_up(text.size()));
    std::int64_t count = 0;
    bool was_word = false;
    for (const std::string_view one : code_points_of(text)) {
        const bool is_word = one == "_" || is_all(one, TextClass::kAlnum);
        if (is_word && !was_word) ++count;
        was_word = is_word;
    }
    return Value::integer(count);
}

Result<Value> filter_tojson(Env& env, const Value& self, const Given& given) {
    JsonFormat format{.ascii_only = given.flag(0, false), .sort_keys = given.flag(3, false)};
    if (given[1] != nullptr && !given[1]->is_none()) {
        if (const Text* indent = given[1]->as_text()) {
            RETURN_IF_ERROR(env.budget.bytes(indent->bytes.size()));
            format.indent = indent->bytes;
        } else {
            ASSIGN_OR_RETURN(const std::int64_t width, given.integer(1, "indent", 0));
            if (width > 1024) return type_error("its indent is more than 1024");
            format.indent =
                std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
        }
        format.item_separator = ",";
    }
    if (given[2] != nullptr && !given[2]->is_none()) {
        const Sequence* separators = given[2]->as_sequence();
        const bool is_pair = separators != nullptr && separators->items.size() == 2 &&
                             separators->items[0].as_text() != nullptr &&
                             separators->items[1].as_text() != nullptr;
        if (!is_pair) return type_error("its separators must be two strings");
        for (const Value& separator : separators->items) {
            RETURN_IF_ERROR(env.budget.bytes(separator.as_text()->bytes.size()));
        }
        format.item_separator = separators->items[0].as_text()->bytes;
        format.key_separator = separators->items[1].as_text()->bytes;
    }
    ASSIGN_OR_RETURN(std::string json, to_json(self, format, env.budget));
    return Value::text(std::move(json));
}

constexpr std::array kTextFilters{
    Builtin{"capitalize", "", 0, filter_text<to_capitalized>},
    Builtin{"center", "width", 0, filter_center},
    Builtin{"e", "", 0, filter_escape},
    Builtin{"escape", "", 0, filter_escape},
    Builtin{"indent", "width first blank", 0, filter_indent},
    Builtin{"lower", "", 0, filter_text<to_lower>},
    Builtin{"replace", "old new count", 2, filter_replace},
    Builtin{"safe", "", 0, filter_safe},
    Builtin{"string", "", 0, filter_string},
    Builtin{"title", "", 0, filter_text<title_of>},
    Builtin{"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    Builtin{"trim", "chars", 0, filter_trim},
    Builtin{"truncate", "length killwords end leeway", 0, filter_truncate},
    Builtin{"upper", "", 0, filter_text<to_upper>},
    Builtin{"wordcount", "", 0, filter_wordcount},
};

}  // namespace

std::span<const Builtin> text_filters() { return kTextFilters; }

}  // namespace pitstop::jinja
