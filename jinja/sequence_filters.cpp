// Filters of sequences and mappings. Source: Jinja 3.1, filters.py.
#include "jinja/arithmetic.h"
#include "jinja/comparison.h"
#include "jinja/filters.h"
#include "jinja/items.h"
#include "jinja/python_repr.h"
#include "jinja/python_text.h"
#include "jinja/text_methods.h"
#include "text/utf8.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace pitstop::jinja {
namespace {

using Items = std::vector<Value>;

Result<Value> lowered(const Value& value, Budget& budget) {
    const Text* text = value.as_text();
    if (text == nullptr) return value;
    RETURN_IF_ERROR(budget.bytes(kTextBytes));
    RETURN_IF_ERROR(budget.items(kCasedGrowthMax, text->bytes.size()));
    RETURN_IF_ERROR(budget.look_up(text->bytes.size()));
    return Value::text(to_lower(text->bytes));
}

// Follows a path such as "a.b.0", as in map(attribute=...).
class Path {
  public:
    static Result<Path> of(const Value& attribute, Budget& budget) {
        Path path;
        if (attribute.is_none()) return path;
        const Text* text = attribute.as_text();
        if (text == nullptr) {
            path.parts_.push_back(attribute);
            return path;
        }
        std::string_view rest = text->bytes;
        for (;;) {
            const std::size_t end = std::min(rest.find('.'), rest.size());
            const std::string_view part = rest.substr(0, end);
            std::int64_t index = 0;
            const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
            const bool is_index = !part.empty() && part.front() != '-' && read.ec == std::errc{} &&
                                  read.ptr == part.data() + part.size();
            RETURN_IF_ERROR(budget.bytes(kTextBytes + part.size()));
            path.parts_.push_back(
                is_index ? Value::integer(index) : Value::text(std::string(part))
            );
            if (end == rest.size()) return path;
            rest.remove_prefix(end + 1);
        }
    }

    [[nodiscard]] Result<Value> read(Value item, Budget& budget, const Value* otherwise = nullptr)
        const {
        for (const Value& part : parts_) {
            ASSIGN_OR_RETURN(item, get_item(item, part, budget));
            if (otherwise != nullptr && !otherwise->is_none() && item.is_undefined()) {
                item = *otherwise;
            }
        }
        return item;
    }

  private:
    std::vector<Value> parts_{};
};

// Charges before the arguments are copied: a template may pass very many.
Result<> charge_copy(const Args& args, Budget& budget) {
    RETURN_IF_ERROR(budget.items(args.positional.size(), sizeof(Value)));
    return budget.items(args.named.size(), kEntryBytes);
}

Value given_or_none(const Given& given, std::size_t param) {
    const Value* value = given[param];
    return value == nullptr ? Value::none() : *value;
}

Result<Value> filter_length(Env& env, const Value& self, const Given&) {
    ASSIGN_OR_RETURN(const std::optional<std::size_t> length, length_of(self, env.budget));
    if (!length) return type_error("a value of type {} has no length", self.type_name());
    return Value::integer(*length);
}

Result<Value> filter_list(Env& env, const Value& self, const Given&) {
    ASSIGN_OR_RETURN(Items items, items_of(self, env.budget));
    return Value::list(std::move(items));
}

Result<Value> filter_first(Env& env, const Value& self, const Given&) {
    if (Iterator* iterator = self.as_iterator()) {
        if (iterator->next < iterator->items.size()) return iterator->items[iterator->next++];
        return Value::undefined("No first item, sequence was empty.");
    }
    if (const Text* text = self.as_text()) {
        if (text->bytes.empty()) return Value::undefined("No first item, sequence was empty.");
        return text_like(self, text->bytes.substr(0, text::utf8_len(text->bytes.front())));
    }
    if (const Sequence* sequence = self.as_sequence(); sequence != nullptr) {
        if (!sequence->items.empty()) return sequence->items.front();
        return Value::undefined("No first item, sequence was empty.");
    }
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    if (items.empty()) return Value::undefined("No first item, sequence was empty.");
    return items.front();
}

Result<Value> filter_last(Env& env, const Value& self, const Given&) {
    if (self.as_iterator() != nullptr) return type_error("a generator has no last item");
    if (const Sequence* sequence = self.as_sequence(); sequence != nullptr) {
        if (!sequence->items.empty()) return sequence->items.back();
        return Value::undefined("No last item, sequence was empty.");
    }
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    if (items.empty()) return Value::undefined("No last item, sequence was empty.");
    return items.back();
}

Result<Value> filter_join(Env& env, const Value& self, const Given& given) {
    std::string between;
    if (given[0] != nullptr) {
        ASSIGN_OR_RETURN(between, str_of(*given[0], env.budget));
    }
    ASSIGN_OR_RETURN(const Path path, Path::of(given_or_none(given, 1), env.budget));
    if (const Text* text = self.as_text(); text != nullptr && between.empty()) {
        RETURN_IF_ERROR(env.budget.bytes(text->bytes.size()));
        return Value::text(text->bytes);
    }
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    TextBuilder out(env.budget);
    for (std::size_t i = 0; i < items.size(); ++i) {
        if (i != 0) out.add(between);
        ASSIGN_OR_RETURN(const Value item, path.read(items[i], env.budget));
        if (!write_str(item, out)) break;
    }
    ASSIGN_OR_RETURN(std::string joined, out.take());
    return Value::text(std::move(joined));
}

Result<Value> filter_reverse(Env& env, const Value& self, const Given&) {
    if (const Text* text = self.as_text()) {
        RETURN_IF_ERROR(env.budget.items(num_code_points(text->bytes), sizeof(std::string_view)));
        RETURN_IF_ERROR(env.budget.bytes(text->bytes.size()));
        RETURN_IF_ERROR(env.budget.look_up(text->bytes.size()));
        std::string out;
        const std::vector<std::string_view> all = code_points_of(text->bytes);
        for (auto one = all.rbegin(); one != all.rend(); ++one) out += *one;
        return text_like(self, std::move(out));
    }
    ASSIGN_OR_RETURN(Items items, items_of(self, env.budget));
    std::ranges::reverse(items);
    // Equals Python's reversed() if the type has it, else a list.
    const bool is_reversible = self.as_sequence() != nullptr || self.as_mapping() != nullptr;
    return is_reversible ? Value::iterator(std::move(items)) : Value::list(std::move(items));
}

enum class KeyCase { kIgnore, kKeep };

// The sort keys of an item: one, or one per comma in the attribute.
struct Sortable {
    Value item{};
    std::vector<Value> keys{};
};

Result<Value> sorted(Env& env, std::vector<Sortable> all, bool is_reverse) {
    std::optional<Error> failure;
    const auto is_before = [&](const Sortable& a, const Sortable& b) {
        const Sortable& left = is_reverse ? b : a;
        const Sortable& right = is_reverse ? a : b;
        for (std::size_t i = 0; i < left.keys.size() && !failure; ++i) {
            const Result<bool> is_equal = equals(left.keys[i], right.keys[i], env.budget);
            if (is_equal && *is_equal) continue;
            if (!is_equal) {
                failure = is_equal.error();
                break;
            }
            const auto sign = order(left.keys[i], right.keys[i], env.budget);
            if (sign) return *sign < 0;
            failure = sign.error();
        }
        return false;
    };
    std::ranges::stable_sort(all, is_before);
    if (failure) return *std::move(failure);
    Items items;
    for (Sortable& one : all) items.push_back(std::move(one.item));
    return Value::list(std::move(items));
}

Result<Value> filter_sort(Env& env, const Value& self, const Given& given) {
    const bool keeps_case = given.flag(1, false);
    std::vector<Path> paths;
    const Text* attribute = given[2] == nullptr ? nullptr : given[2]->as_text();
    if (attribute == nullptr) {
        ASSIGN_OR_RETURN(Path path, Path::of(given_or_none(given, 2), env.budget));
        paths.push_back(std::move(path));
    } else {
        std::string_view rest = attribute->bytes;
        for (bool more = true; more;) {
            const std::size_t end = rest.find(',');
            more = end != std::string_view::npos;
            RETURN_IF_ERROR(env.budget.bytes(kTextBytes + sizeof(Path)));
            RETURN_IF_ERROR(env.budget.bytes(std::min(end, rest.size())));
            ASSIGN_OR_RETURN(
                Path path, Path::of(Value::text(std::string(rest.substr(0, end))), env.budget)
            );
            paths.push_back(std::move(path));
            if (more) rest.remove_prefix(end + 1);
        }
    }
    ASSIGN_OR_RETURN(Items items, items_of(self, env.budget));
    std::vector<Sortable> all;
    for (Value& item : items) {
        Sortable one;
        RETURN_IF_ERROR(env.budget.bytes(sizeof(one)));
        RETURN_IF_ERROR(env.budget.items(paths.size(), sizeof(Value)));
        for (const Path& path : paths) {
            ASSIGN_OR_RETURN(Value key, path.read(item, env.budget));
            if (!keeps_case) {
                ASSIGN_OR_RETURN(key, lowered(key, env.budget));
            }
            one.keys.push_back(std::move(key));
        }
        one.item = std::move(item);
        all.push_back(std::move(one));
    }
    return sorted(env, std::move(all), given.flag(0, false));
}

Result<Value> filter_dictsort(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view by, given.text(1, "by", "key"));
    if (by != "key" && by != "value") return type_error("sorts by 'key' or 'value'");
    if (self.is_undefined()) return undefined_error(self);
    const Mapping* mapping = self.as_mapping();
    if (mapping == nullptr) return type_error("does not accept {}", self.type_name());
    const bool keeps_case = given.flag(0, false);
    RETURN_IF_ERROR(env.budget.items(mapping->size(), kPairBytes + sizeof(Sortable)));
    std::vector<Sortable> all;
    for (const auto& [key, value] : mapping->entries()) {
        Value sort_key = by == "key" ? key : value;
        if (!keeps_case) {
            ASSIGN_OR_RETURN(sort_key, lowered(sort_key, env.budget));
        }
        all.push_back({Value::tuple({key, value}), {std::move(sort_key)}});
    }
    return sorted(env, std::move(all), given.flag(2, false));
}

Result<Value> filter_unique(Env& env, const Value& self, const Given& given) {
    const bool keeps_case = given.flag(0, false);
    ASSIGN_OR_RETURN(const Path path, Path::of(given_or_none(given, 1), env.budget));
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    std::set<std::string> seen_texts;
    Items seen;
    Items kept;
    for (const Value& item : items) {
        RETURN_IF_ERROR(env.budget.steps());
        ASSIGN_OR_RETURN(Value key, path.read(item, env.budget));
        if (!keeps_case) {
            ASSIGN_OR_RETURN(key, lowered(key, env.budget));
        }
        if (const Text* text = key.as_text()) {
            RETURN_IF_ERROR(env.budget.bytes(kTextBytes + text->bytes.size()));
            RETURN_IF_ERROR(env.budget.look_up(text->bytes.size()));  // compared in lower case
            if (seen_texts.insert(text->bytes).second) kept.push_back(item);
            continue;
        }
        const Sequence* sequence = key.as_sequence();
        const bool is_list = sequence != nullptr && sequence->kind == SequenceKind::kList;
        if (is_list || key.as_mapping() != nullptr) {
            return type_error("a value of type {} is no key", key.type_name());
        }
        bool is_new = true;
        for (const Value& other : seen) {
            ASSIGN_OR_RETURN(const bool is_equal, equals(other, key, env.budget));
            if (is_equal) is_new = false;
        }
        if (!is_new) continue;
        seen.push_back(std::move(key));
        kept.push_back(item);
    }
    return Value::iterator(std::move(kept));
}

enum class Extreme { kMin, kMax };

template <Extreme kWhich>
Result<Value> filter_extreme(Env& env, const Value& self, const Given& given) {
    const bool keeps_case = given.flag(0, false);
    ASSIGN_OR_RETURN(const Path path, Path::of(given_or_none(given, 1), env.budget));
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
    std::size_t best = 0;
    Value best_key;
    for (std::size_t i = 0; i < items.size(); ++i) {
        RETURN_IF_ERROR(env.budget.steps());
        ASSIGN_OR_RETURN(Value key, path.read(items[i], env.budget));
        if (!keeps_case) {
            ASSIGN_OR_RETURN(key, lowered(key, env.budget));
        }
        if (i != 0) {
            ASSIGN_OR_RETURN(const auto sign, order(key, best_key, env.budget));
            if (kWhich == Extreme::kMin ? !(sign < 0) : !(sign > 0)) continue;
        }
        best = i;
        best_key = std::move(key);
    }
    return items[best];
}

Result<Value> filter_items(Env& env, const Value& self, const Given&) {
    if (self.is_undefined()) return Value::iterator({});
    const Mapping* mapping = self.as_mapping();
    if (mapping == nullptr) return type_error("can only get item pairs from a mapping");
    RETURN_IF_ERROR(env.budget.items(mapping->size(), kPairBytes));
    Items items;
    for (const auto& [key, value] : mapping->entries()) {
        items.push_back(Value::tuple({key, value}));
    }
    return Value::iterator(std::move(items));
}

Result<Value> filter_batch(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t count, given.integer(0, "linecount", 1));
    if (count < 1) return type_error("its linecount must be at least 1");
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    const auto line_len = static_cast<std::size_t>(count);
    Items lines;
    for (std::size_t begin = 0; begin < items.size(); begin += line_len) {
        RETURN_IF_ERROR(env.budget.bytes(kSequenceBytes));
        const std::size_t end = std::min(begin + line_len, items.size());
        Items line(
            items.begin() + static_cast<std::ptrdiff_t>(begin),
            items.begin() + static_cast<std::ptrdiff_t>(end)
        );
        if (given[1] != nullptr && !given[1]->is_none() && line.size() < line_len) {
            RETURN_IF_ERROR(env.budget.items(line_len, sizeof(Value)));
            line.resize(line_len, *given[1]);
        }
        lines.push_back(Value::list(std::move(line)));
        if (end == items.size()) break;
    }
    return Value::iterator(std::move(lines));
}

Result<Value> filter_slice(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const std::int64_t slices, given.integer(0, "slices", 1));
    if (slices < 1 || slices > 65536) return type_error("its slices must be in [1, 65536]");
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    const auto count = static_cast<std::size_t>(slices);
    const std::size_t len = items.size() / count;
    const std::size_t num_longer = items.size() % count;
    RETURN_IF_ERROR(env.budget.items(count, kSequenceBytes + sizeof(Value)));
    Items out;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t end = begin + len + (i < num_longer ? 1 : 0);
        Items part(
            items.begin() + static_cast<std::ptrdiff_t>(begin),
            items.begin() + static_cast<std::ptrdiff_t>(end)
        );
        if (given[1] != nullptr && !given[1]->is_none() && i >= num_longer) {
            part.push_back(*given[1]);
        }
        out.push_back(Value::list(std::move(part)));
        begin = end;
    }
    return Value::iterator(std::move(out));
}

Result<Value> filter_map(Env& env, const Value& self, const Given& given) {
    RETURN_IF_ERROR(charge_copy(given.raw(), env.budget));
    Args args = given.raw();
    if (!self.is_true()) return Value::iterator({});
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    Items out;
    if (args.positional.empty()) {
        const Value* attribute = nullptr;
        const Value* otherwise = nullptr;
        for (const auto& [name, value] : args.named) {
            if (name == "attribute")
                attribute = &value;
            else if (name == "default")
                otherwise = &value;
            else
                return type_error("has no argument '{}'", name);
        }
        if (attribute == nullptr) return type_error("needs a filter's name or an attribute");
        ASSIGN_OR_RETURN(const Path path, Path::of(*attribute, env.budget));
        for (const Value& item : items) {
            RETURN_IF_ERROR(env.budget.steps());
            ASSIGN_OR_RETURN(Value value, path.read(item, env.budget, otherwise));
            out.push_back(std::move(value));
        }
        return Value::iterator(std::move(out));
    }
    const Text* name = args.positional.front().as_text();
    const Builtin* filter = name == nullptr ? nullptr : find_filter(name->bytes);
    if (filter == nullptr) return type_error("there is no filter of that name");
    args.positional.erase(args.positional.begin());
    for (const Value& item : items) {
        RETURN_IF_ERROR(env.budget.steps());
        RETURN_IF_ERROR(charge_copy(args, env.budget));
        ASSIGN_OR_RETURN(Value value, call(env, *filter, item, args));
        out.push_back(std::move(value));
    }
    return Value::iterator(std::move(out));
}

enum class Keep { kPassing, kFailing };
enum class Of { kItem, kAttribute };

template <Keep kKeep, Of kOf>
Result<Value> filter_select(Env& env, const Value& self, const Given& given) {
    RETURN_IF_ERROR(charge_copy(given.raw(), env.budget));
    Args args = given.raw();
    Path path;
    if (!self.is_true()) return Value::iterator({});
    if (kOf == Of::kAttribute) {
        if (args.positional.empty()) return type_error("needs an attribute's name");
        ASSIGN_OR_RETURN(path, Path::of(args.positional.front(), env.budget));
        args.positional.erase(args.positional.begin());
    }
    const Builtin* test = nullptr;
    if (!args.positional.empty()) {
        const Text* name = args.positional.front().as_text();
        test = name == nullptr ? nullptr : find_test(name->bytes);
        if (test == nullptr) return type_error("there is no test of that name");
        args.positional.erase(args.positional.begin());
    }
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    Items kept;
    for (const Value& item : items) {
        RETURN_IF_ERROR(env.budget.steps());
        ASSIGN_OR_RETURN(Value value, path.read(item, env.budget));
        if (test != nullptr) {
            RETURN_IF_ERROR(charge_copy(args, env.budget));
            ASSIGN_OR_RETURN(value, call(env, *test, value, args));
        }
        if (value.is_true() == (kKeep == Keep::kPassing)) kept.push_back(item);
    }
    return Value::iterator(std::move(kept));
}

Result<Value> filter_sum(Env& env, const Value& self, const Given& given) {
    ASSIGN_OR_RETURN(const Path path, Path::of(given_or_none(given, 0), env.budget));
    Value sum = given[1] != nullptr ? *given[1] : Value::integer(0);
    ASSIGN_OR_RETURN(const Items items, items_of(self, env.budget));
    for (const Value& item : items) {
        RETURN_IF_ERROR(env.budget.steps());
        ASSIGN_OR_RETURN(const Value value, path.read(item, env.budget));
        ASSIGN_OR_RETURN(sum, binary(BinaryOp::kAdd, sum, value, env.budget));
    }
    return sum;
}

constexpr std::array kSequenceFilters{
    Builtin{"batch", "linecount fill_with", 1, filter_batch},
    Builtin{"count", "", 0, filter_length},
    Builtin{"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    Builtin{"first", "", 0, filter_first},
    Builtin{"items", "", 0, filter_items},
    Builtin{"join", "d attribute", 0, filter_join},
    Builtin{"last", "", 0, filter_last},
    Builtin{"length", "", 0, filter_length},
    Builtin{"list", "", 0, filter_list},
    Builtin{"map", kAnyParams, 0, filter_map},
    Builtin{"max", "case_sensitive attribute", 0, filter_extreme<Extreme::kMax>},
    Builtin{"min", "case_sensitive attribute", 0, filter_extreme<Extreme::kMin>},
    Builtin{"reject", kAnyParams, 0, filter_select<Keep::kFailing, Of::kItem>},
    Builtin{"rejectattr", kAnyParams, 0, filter_select<Keep::kFailing, Of::kAttribute>},
    Builtin{"reverse", "", 0, filter_reverse},
    Builtin{"select", kAnyParams, 0, filter_select<Keep::kPassing, Of::kItem>},
    Builtin{"selectattr", kAnyParams, 0, filter_select<Keep::kPassing, Of::kAttribute>},
    Builtin{"slice", "slices fill_with", 1, filter_slice},
    Builtin{"sort", "reverse case_sensitive attribute", 0, filter_sort},
    Builtin{"sum", "attribute start", 0, filter_sum},
    Builtin{"unique", "case_sensitive attribute", 0, filter_unique},
};

}  // namespace

std::span<const Builtin> sequence_filters() { return kSequenceFilters; }

}  // namespace pitstop::jinja
