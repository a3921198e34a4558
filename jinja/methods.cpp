// Methods of texts, sequences and mappings. Source: Python 3.11, library reference,
// "Built-in Types".
#include "jinja/builtins.h"
#include "jinja/comparison.h"
#include "jinja/format.h"
#include "jinja/items.h"
#include "jinja/python_repr.h"
#include "jinja/python_text.h"
#include "jinja/text_methods.h"

#include <algorithm>
#include <array>
#include <span>

namespace pitstop::jinja {
namespace {

// REQUIRES: `self` is a text, which holds for every method of a text.
std::string_view text_of(const Value& self) { return self.as_text()->bytes; }

Value like(const Value& self, std::string text) {
    return self.as_text()->is_markup ? Value::markup(std::move(text))
                                     : Value::text(std::move(text));
}

// Arguments that are combined with markup are escaped, as markup's methods do.
Result<std::string> beside(const Value& self, const Value& arg, Budget& budget) {
    const Text* text = arg.as_text();
    if (self.as_text()->is_markup && !text->is_markup) return escaped(text->bytes, budget);
    RETURN_IF_ERROR(budget.bytes(text->bytes.size()));
    return text->bytes;
}

template <std::string (*kChange)(std::string_view)>
Result<Value> changed(Env& env, const Value& self, const Given&) {
    RETURN_IF_ERROR(env.budget.items(kCasedGrowthMax, text_of(self).size()));
    RETURN_IF_ERROR(env.budget.look_up(text_of(self).size()));
    return like(self, kChange(text_of(self)));
}

template <TextClass kClass>
Result<Value> is_class(Env& env, const Value& self, const Given&) {
    RETURN_IF_ERROR(env.budget.look_up(text_of(self).size()));
    return Value::boolean(is_all(text_of(self), kClass));
}

template <StripSide kSide>
Result<Value> stripped(Env& env, const Value& self, const Given& given) {
    RETURN_IF_ERROR(env.budget.bytes(text_of(self).size()));
    if (given[0] == nullptr || given[0]->is_none()) {
        RETURN_IF_ERROR(env.budget.look_up(text_of(self).size()));
        return like(self, std::string(strip(text_of(self), kSide)));
    }
    ASSIGN_OR_RETURN(const std::string_view characters, given.text(0, "chars", ""));
    ASSIGN_OR_RETURN(
        const std::string_view kept, strip(text_of(self), characters, kSide, env.budget)
    );
    return like(self, std::string(kept));
}

// The part between start and end, and its position in code points. Absent if start is after the
// end: then not even an empty text is found.
struct Part {
    std::string_view text{};
    std::int64_t begin = 0;
};
Result<std::optional<Part>> part_of(
    Env& env, const Value& self, const Given& given, std::size_t first
) {
    const std::string_view text = text_of(self);
    RETURN_IF_ERROR(env.budget.scan(2 * text.size()));  // for counting the positions
    const bool has_start = given[first] != nullptr && !given[first]->is_none();
    const bool has_end = given[first + 1] != nullptr && !given[first + 1]->is_none();
    if (!has_start && !has_end) return std::optional(Part{text, 0});
    const auto len = static_cast<std::int64_t>(num_code_points(text));
    std::int64_t start = 0;
    std::int64_t end = len;
    if (has_start) {
        ASSIGN_OR_RETURN(start, given.integer(first, "start", 0));
    }
    if (has_end) {
        ASSIGN_OR_RETURN(end, given.integer(first + 1, "end", len));
    }
    if (start < 0) start = std::max<std::int64_t>(start + len, 0);
    if (end < 0) end = std::max<std::int64_t>(end + len, 0);
    end = std::min(end, len);
    if (start > end) return std::optional<Part>{};
    const std::size_t from = byte_at(text, static_cast<std::size_t>(start));
    const std::size_t to = from + byte_at(text.substr(from), static_cast<std::size_t>(end - start));
    return std::optional(Part{text.substr(from, to - from), start});
}

enum class End { kFirst, kLast };
enum class IfMissing { kMinusOne, kError };

template <End kEnd, IfMissing kIfMissing>
Result<Value> found(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view sub, given.text(0, "sub", ""));
    ASSIGN_OR_RETURN(const std::optional<Part> part, part_of(env, self, given, 1));
    std::size_t at = std::string_view::npos;
    if (part) {
        ASSIGN_OR_RETURN(
            at,
            kEnd == End::kFirst ? find_text(part->text, sub, env.budget)
                                : find_last_text(part->text, sub, env.budget)
        );
    }
    if (at == std::string_view::npos) {
        if (kIfMissing == IfMissing::kError) return type_error("substring not found");
        return Value::integer(-1);
    }
    const std::size_t before = num_code_points(part->text.substr(0, at));
    return Value::integer(part->begin + static_cast<std::int64_t>(before));
}

Result<Value> counted(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view sub, given.text(0, "sub", ""));
    ASSIGN_OR_RETURN(const std::optional<Part> part, part_of(env, self, given, 1));
    RETURN_IF_ERROR(env.budget.look_up(text_of(self).size()));
    if (!part) return Value::integer(0);
    if (sub.empty()) return Value::integer(num_code_points(part->text) + 1);
    std::int64_t count = 0;
    std::string_view rest = part->text;
    for (std::size_t at = find_text(rest, sub); at != std::string_view::npos;
         at = find_text(rest, sub)) {
        ++count;
        rest.remove_prefix(at + sub.size());
    }
    return Value::integer(count);
}

enum class Side { kStart, kEnd };

template <Side kSide>
Result<Value> has_affix(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::optional<Part> part, part_of(env, self, given, 1));
    const auto matches = [&](const Value& affix) -> Result<bool> {
        const Text* text = affix.as_text();
        if (text == nullptr) {
            if (affix.is_undefined()) return undefined_error(affix);
            return type_error("takes a string or a tuple of strings, not {}", affix.type_name());
        }
        if (!part) return false;
        RETURN_IF_ERROR(env.budget.steps());
        RETURN_IF_ERROR(env.budget.scan(std::min(text->bytes.size(), part->text.size())));
        return kSide == Side::kStart ? part->text.starts_with(text->bytes)
                                     : part->text.ends_with(text->bytes);
    };
    const Sequence* several = given[0]->as_sequence();
    if (several == nullptr || several->kind != SequenceKind::kTuple) {
        ASSIGN_OR_RETURN(const bool holds, matches(*given[0]));
        return Value::boolean(holds);
    }
    for (const Value& one : several->items) {
        ASSIGN_OR_RETURN(const bool holds, matches(one));
        if (holds) return Value::boolean(true);
    }
    return Value::boolean(false);
}

template <Side kSide>
Result<Value> without_affix(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view affix, given.text(0, "affix", ""));
    RETURN_IF_ERROR(env.budget.bytes(text_of(self).size() + 1));
    std::string_view text = text_of(self);
    if (kSide == Side::kStart && text.starts_with(affix)) text.remove_prefix(affix.size());
    if (kSide == Side::kEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
    return like(self, std::string(text));
}

Result<Value> replaced(Env& env, const Value& self, const Given& given) {
    RETURN_IF_ERROR(given.text(0, "old", ""));
    RETURN_IF_ERROR(given.text(1, "new", ""));
    ASSIGN_OR_RETURN(const std::int64_t count, given.integer(2, "count", -1));
    ASSIGN_OR_RETURN(const std::string from, beside(self, *given[0], env.budget));
    ASSIGN_OR_RETURN(const std::string to, beside(self, *given[1], env.budget));
    ASSIGN_OR_RETURN(std::string out, replace_all(text_of(self), from, to, count, env.budget));
    return like(self, std::move(out));
}

// The result of splitting: up to `count` pieces from the left or the right end of a text, then the
// remaining text.
using Pieces = std::vector<std::string_view>;
Result<> add_piece(Pieces& pieces, std::string_view piece, Budget& budget) {
    RETURN_IF_ERROR(budget.bytes(piece.size() + sizeof(std::string_view) + kTextBytes));
    pieces.push_back(piece);
    return Ok{};
}

bool is_space(std::string_view one) { return strip(one, StripSide::kLeft).empty(); }

Result<Pieces> split_at_space(std::string_view text, std::int64_t count, Budget& budget) {
    Pieces pieces;
    text = strip(text, StripSide::kLeft);
    while (!text.empty()) {
        if (count-- == 0) {
            RETURN_IF_ERROR(add_piece(pieces, text, budget));  // including the white space after it
            return pieces;
        }
        std::size_t end = 0;
        while (end < text.size()) {
            const std::string_view rest = text.substr(end);
            const std::size_t len = byte_at(rest, 1);
            if (is_space(rest.substr(0, len))) break;
            end += len;
        }
        RETURN_IF_ERROR(add_piece(pieces, text.substr(0, end), budget));
        text = strip(text.substr(end), StripSide::kLeft);
    }
    return pieces;
}

Result<Pieces> split_at_last_space(std::string_view text, std::int64_t count, Budget& budget) {
    Pieces pieces;
    text = strip(text, StripSide::kRight);
    while (!text.empty()) {
        if (count-- == 0) {
            RETURN_IF_ERROR(add_piece(pieces, text, budget));
            break;
        }
        // The last word is the text after everything before it is stripped.
        std::size_t begin = text.size();
        while (begin > 0) {
            std::size_t last = begin - 1;
            while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0u) == 0x80u) --last;
            if (is_space(text.substr(last, begin - last))) break;
            begin = last;
        }
        RETURN_IF_ERROR(add_piece(pieces, text.substr(begin), budget));
        text = strip(text.substr(0, begin), StripSide::kRight);
    }
    std::ranges::reverse(pieces);
    return pieces;
}

Result<Pieces> split_at(
    std::string_view text, std::string_view separator, std::int64_t count, Budget& budget
) {
    Pieces pieces;
    for (; count != 0; --count) {
        const std::size_t at = find_text(text, separator);
        if (at == std::string_view::npos) break;
        RETURN_IF_ERROR(add_piece(pieces, text.substr(0, at), budget));
        text.remove_prefix(at + separator.size());
    }
    RETURN_IF_ERROR(add_piece(pieces, text, budget));
    return pieces;
}

// Reverses the text first: only then is a search from the end linear.
Result<Pieces> split_at_last(
    std::string_view text, std::string_view separator, std::int64_t count, Budget& budget
) {
    RETURN_IF_ERROR(budget.items(2, text.size()));
    const std::string backwards(text.rbegin(), text.rend());
    const std::string separator_backwards(separator.rbegin(), separator.rend());
    std::string_view rest = backwards;
    Pieces pieces;
    for (; count != 0; --count) {
        const std::size_t at = find_text(rest, separator_backwards);
        if (at == std::string_view::npos) break;
        const std::size_t end = rest.size();
        RETURN_IF_ERROR(add_piece(pieces, text.substr(end - at, at), budget));
        rest.remove_prefix(at + separator.size());
    }
    RETURN_IF_ERROR(add_piece(pieces, text.substr(0, rest.size()), budget));
    std::ranges::reverse(pieces);
    return pieces;
}

template <End kFrom>
Result<Value> split(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t count, given.integer(1, "maxsplit", -1));
    const std::string_view text = text_of(self);
    RETURN_IF_ERROR(env.budget.look_up(text.size()));
    Pieces pieces;
    if (given[0] == nullptr || given[0]->is_none()) {
        ASSIGN_OR_RETURN(
            pieces,
            kFrom == End::kFirst ? split_at_space(text, count, env.budget)
                                 : split_at_last_space(text, count, env.budget)
        );
    } else {
        ASSIGN_OR_RETURN(const std::string_view separator, given.text(0, "sep", ""));
        if (separator.empty()) return type_error("empty separator");
        ASSIGN_OR_RETURN(
            pieces,
            kFrom == End::kFirst ? split_at(text, separator, count, env.budget)
                                 : split_at_last(text, separator, count, env.budget)
        );
    }
    std::vector<Value> items;
    items.reserve(pieces.size());
    for (const std::string_view piece : pieces) items.push_back(like(self, std::string(piece)));
    return Value::list(std::move(items));
}

template <End kFrom>
Result<Value> partition(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view separator, given.text(0, "sep", ""));
    if (separator.empty()) return type_error("empty separator");
    const std::string_view text = text_of(self);
    RETURN_IF_ERROR(env.budget.bytes(text.size()));
    ASSIGN_OR_RETURN(
        const std::size_t at,
        kFrom == End::kFirst ? find_text(text, separator, env.budget)
                             : find_last_text(text, separator, env.budget)
    );
    std::array<std::string_view, 3> parts{};
    if (at != std::string_view::npos) {
        parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
    } else if (kFrom == End::kFirst) {
        parts[0] = text;
    } else {
        parts[2] = text;
    }
    std::vector<Value> items;
    for (const std::string_view part : parts) items.push_back(like(self, std::string(part)));
    return Value::tuple(std::move(items));
}

Result<Value> split_to_lines(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(
        const std::vector<std::string_view> all,
        split_lines(text_of(self), given.flag(0, false), env.budget)
    );
    RETURN_IF_ERROR(env.budget.items(all.size(), kTextBytes));
    RETURN_IF_ERROR(env.budget.bytes(text_of(self).size()));
    std::vector<Value> lines;
    for (const std::string_view line : all) lines.push_back(like(self, std::string(line)));
    return Value::list(std::move(lines));
}

Result<Value> joined(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::vector<Value> items, items_of(*given[0], env.budget));
    TextBuilder out(env.budget);
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (items[i].as_text() == nullptr) {
            return type_error("item {} is {}, not a string", i, items[i].type_name());
        }
        if (i != 0) out.add(text_of(self));
        const Text& item = *items[i].as_text();
        if (self.as_text()->is_markup && !item.is_markup) {
            write_escaped(item.bytes, out);
        } else {
            out.add(item.bytes);
        }
        if (out.is_full()) break;
    }
    ASSIGN_OR_RETURN(std::string text, out.take());
    return like(self, std::move(text));
}

template <Justify kHow>
Result<Value> justified(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t width, given.integer(0, "width", 0));
    ASSIGN_OR_RETURN(const std::string_view fill, given.text(1, "fillchar", " "));
    ASSIGN_OR_RETURN(std::string text, justify(text_of(self), width, fill, kHow, env.budget));
    return like(self, std::move(text));
}

Result<Value> zero_filled(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t width, given.integer(0, "width", 0));
    std::string_view text = text_of(self);
    const bool is_signed = text.starts_with('-') || text.starts_with('+');
    const std::string_view sign = text.substr(0, is_signed ? 1 : 0);
    text.remove_prefix(sign.size());
    const std::int64_t rest_width = width > 0 && is_signed ? width - 1 : width;
    ASSIGN_OR_RETURN(
        const std::string filled, justify(text, rest_width, "0", Justify::kRight, env.budget)
    );
    return like(self, std::string(sign) + filled);
}

Result<Value> format(Env& env, const Value& self, const Given& given) {
    return brace_format(*self.as_text(), given.raw(), env.budget);
}

constexpr std::array kTextMethods{
    Builtin{"capitalize", "", 0, changed<to_capitalized>},
    Builtin{"center", "width fillchar", 1, justified<Justify::kCenter>},
    Builtin{"count", "sub start end", 1, counted},
    Builtin{"endswith", "suffix start end", 1, has_affix<Side::kEnd>},
    Builtin{"find", "sub start end", 1, found<End::kFirst, IfMissing::kMinusOne>},
    Builtin{"format", kAnyParams, 0, format},
    Builtin{"index", "sub start end", 1, found<End::kFirst, IfMissing::kError>},
    Builtin{"isalnum", "", 0, is_class<TextClass::kAlnum>},
    Builtin{"isalpha", "", 0, is_class<TextClass::kAlpha>},
    Builtin{"isdigit", "", 0, is_class<TextClass::kDigit>},
    Builtin{"isnumeric", "", 0, is_class<TextClass::kDigit>},
    Builtin{"islower", "", 0, is_class<TextClass::kLower>},
    Builtin{"isspace", "", 0, is_class<TextClass::kSpace>},
    Builtin{"isupper", "", 0, is_class<TextClass::kUpper>},
    Builtin{"join", "iterable", 1, joined},
    Builtin{"ljust", "width fillchar", 1, justified<Justify::kLeft>},
    Builtin{"lower", "", 0, changed<to_lower>},
    Builtin{"lstrip", "chars", 0, stripped<StripSide::kLeft>},
    Builtin{"partition", "sep", 1, partition<End::kFirst>},
    Builtin{"removeprefix", "prefix", 1, without_affix<Side::kStart>},
    Builtin{"removesuffix", "suffix", 1, without_affix<Side::kEnd>},
    Builtin{"replace", "old new count", 2, replaced},
    Builtin{"rfind", "sub start end", 1, found<End::kLast, IfMissing::kMinusOne>},
    Builtin{"rindex", "sub start end", 1, found<End::kLast, IfMissing::kError>},
    Builtin{"rjust", "width fillchar", 1, justified<Justify::kRight>},
    Builtin{"rpartition", "sep", 1, partition<End::kLast>},
    Builtin{"rsplit", "sep maxsplit", 0, split<End::kLast>},
    Builtin{"rstrip", "chars", 0, stripped<StripSide::kRight>},
    Builtin{"split", "sep maxsplit", 0, split<End::kFirst>},
    Builtin{"splitlines", "keepends", 0, split_to_lines},
    Builtin{"startswith", "prefix start end", 1, has_affix<Side::kStart>},
    Builtin{"strip", "chars", 0, stripped<StripSide::kBoth>},
    Builtin{"swapcase", "", 0, changed<swap_case>},
    Builtin{"title", "", 0, changed<to_title>},
    Builtin{"upper", "", 0, changed<to_upper>},
    Builtin{"zfill", "width", 1, zero_filled},
};

// ---- sequences ----

Result<Value> index_in(Env& env, const Value& self, const Given& given) {
    const std::vector<Value>& items = self.as_sequence()->items;
    for (std::size_t i = 0; i < items.size(); ++i) {
        ASSIGN_OR_RETURN(const bool is_equal, equals(items[i], *given[0], env.budget));
        if (is_equal) return Value::integer(i);
    }
    return type_error("the value is not in the list");
}

Result<Value> count_in(Env& env, const Value& self, const Given& given) {
    std::int64_t count = 0;
    for (const Value& item : self.as_sequence()->items) {
        ASSIGN_OR_RETURN(const bool is_equal, equals(item, *given[0], env.budget));
        if (is_equal) ++count;
    }
    return Value::integer(count);
}

Result<Value> copied(Env&, const Value& self, const Given&) { return self; }

constexpr std::array kSequenceMethods{
    Builtin{"index", "value", 1, index_in},
    Builtin{"count", "value", 1, count_in},
    Builtin{"copy", "", 0, copied},  // only lists have copy; other sequences have index and count
};

// ---- mappings ----

Result<Value> get(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(
        const Value* found_value, find_item(*self.as_mapping(), *given[0], env.budget)
    );
    if (found_value != nullptr) return *found_value;
    return given[1] != nullptr ? *given[1] : Value::none();
}

template <SequenceKind kKind>
Result<Value> view(Env& env, const Value& self, const Given&) {
    const Mapping& mapping = *self.as_mapping();
    constexpr std::size_t kEach = kKind == SequenceKind::kItems ? kPairBytes : sizeof(Value);
    RETURN_IF_ERROR(env.budget.items(mapping.size(), kEach));
    std::vector<Value> items;
    items.reserve(mapping.size());
    for (const auto& [key, value] : mapping.entries()) {
        if (kKind == SequenceKind::kKeys) items.push_back(key);
        if (kKind == SequenceKind::kValues) items.push_back(value);
        if (kKind == SequenceKind::kItems) items.push_back(Value::tuple({key, value}));
    }
    return Value::sequence(kKind, std::move(items));
}

constexpr std::array kMappingMethods{
    Builtin{"get", "key default", 1, get},
    Builtin{"items", "", 0, view<SequenceKind::kItems>},
    Builtin{"keys", "", 0, view<SequenceKind::kKeys>},
    Builtin{"values", "", 0, view<SequenceKind::kValues>},
    Builtin{"copy", "", 0, copied},
};

const Builtin* find_in(std::span<const Builtin> methods, std::string_view name) {
    const auto method = std::ranges::find(methods, name, &Builtin::name);
    return method == methods.end() ? nullptr : &*method;
}

}  // namespace

const Builtin* find_method(const Value& self, std::string_view name) {
    if (self.as_text() != nullptr) return find_in(kTextMethods, name);
    if (self.as_mapping() != nullptr) return find_in(kMappingMethods, name);
    const Sequence* sequence = self.as_sequence();
    if (sequence == nullptr || sequence->kind > SequenceKind::kRange) return nullptr;
    const std::span<const Builtin> methods(kSequenceMethods);
    return find_in(sequence->kind == SequenceKind::kList ? methods : methods.first(2), name);
}

}  // namespace pitstop::jinja
