#include "jinja/items.h"

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/comparison.h"
#include "jinja/python_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::jinja {
namespace {

// Describes a value like Jinja's object_type_repr.
std::string described(const Value& value) {
    return value.is_none() ? "None" : fmt::format("{} object", value.type_name());
}

bool is_mutator(const Value& of, std::string_view name) {
    static constexpr std::string_view kOfMapping[] = {
        "clear", "pop", "popitem", "setdefault", "update"};
    static constexpr std::string_view kOfList[] = {
        "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    if (of.as_mapping() != nullptr) return std::ranges::count(kOfMapping, name) != 0;
    const Sequence* sequence = of.as_sequence();
    return sequence != nullptr && sequence->kind == SequenceKind::kList &&
           std::ranges::count(kOfList, name) != 0;
}

// Finds a method. For a method that would change the value, returns an undefined value with the
// reason.
std::optional<Value> method_of(const Value& of, std::string_view name) {
    if (const Builtin* method = find_method(of, name)) return Value::method(of, *method);
    if (is_mutator(of, name)) {
        return Value::undefined(fmt::format(
            "access to attribute '{}' of '{}' object is unsafe: a template may not change values",
            name,
            of.type_name()
        ));
    }
    return std::nullopt;
}

Result<std::optional<Value>> item_of(const Value& of, const Value& key, Budget& budget) {
    constexpr std::optional<Value> kNone{};
    if (const Mapping* mapping = of.as_mapping()) {
        ASSIGN_OR_RETURN(const Value* found, find_item(*mapping, key, budget));
        return found == nullptr ? kNone : std::optional(*found);
    }
    if (!key.is_whole()) return kNone;
    std::int64_t index = key.whole();
    if (const Text* text = of.as_text()) {
        RETURN_IF_ERROR(budget.scan(2 * text->bytes.size()));  // for counting the positions
        const auto len = static_cast<std::int64_t>(num_code_points(text->bytes));
        if (index < 0) index += len;
        if (index < 0 || index >= len) return kNone;
        const std::size_t begin = byte_at(text->bytes, static_cast<std::size_t>(index));
        const std::string_view rest = std::string_view(text->bytes).substr(begin);
        std::string one(rest.substr(0, byte_at(rest, 1)));
        return std::optional(
            text->is_markup ? Value::markup(std::move(one)) : Value::text(std::move(one))
        );
    }
    const Sequence* sequence = of.as_sequence();
    if (sequence == nullptr || sequence->kind > SequenceKind::kRange) return kNone;
    const auto len = static_cast<std::int64_t>(sequence->items.size());
    if (index < 0) index += len;
    if (index < 0 || index >= len) return kNone;
    return std::optional(sequence->items[static_cast<std::size_t>(index)]);
}

// Finds the entry of a key that is not a text.
Result<std::optional<std::size_t>> place_of(
    const Mapping& mapping, const Value& key, Budget& budget
) {
    const auto& entries = mapping.entries();
    RETURN_IF_ERROR(budget.scan(entries.size() * sizeof(entries[0])));
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].first.as_text() != nullptr) continue;
        ASSIGN_OR_RETURN(const bool is_equal, equals(entries[i].first, key, budget));
        if (is_equal) return std::optional(i);
    }
    return std::optional<std::size_t>{};
}

// Shortens a name for an error.
std::string_view shown(std::string_view name) {
    constexpr std::size_t kNameShown = 256;
    return utf8_prefix(name, kNameShown);
}

}  // namespace

Result<Value> get_attribute(const Value& of, const std::string& name) {
    if (of.is_undefined()) return undefined_error(of);
    if (Namespace* const* space = of.get_if<Namespace*>()) {
        const Value* found = (*space)->attributes.find(name);
        if (found != nullptr) return *found;
    } else if (!name.starts_with('_')) {
        if (std::optional<Value> method = method_of(of, name)) return *std::move(method);
    }
    if (const Mapping* mapping = of.as_mapping()) {
        if (const Value* found = mapping->find(name)) return *found;
    }
    return Value::undefined(fmt::format("'{}' has no attribute '{}'", described(of), shown(name)));
}

Result<const Value*> find_item(const Mapping& mapping, const Value& key, Budget& budget) {
    if (const Text* text = key.as_text()) {
        RETURN_IF_ERROR(budget.scan(text->bytes.size()));
        return mapping.find(text->bytes);
    }
    ASSIGN_OR_RETURN(const std::optional<std::size_t> place, place_of(mapping, key, budget));
    return place ? &mapping.entries()[*place].second : nullptr;
}

Result<> set_item(Mapping& mapping, Value key, Value value, Budget& budget) {
    RETURN_IF_ERROR(budget.bytes(kEntryBytes));
    if (const Text* text = key.as_text()) {
        RETURN_IF_ERROR(budget.items(2, text->bytes.size()));
        mapping.insert(text->bytes, std::move(value));
        return Ok{};
    }
    ASSIGN_OR_RETURN(const std::optional<std::size_t> place, place_of(mapping, key, budget));
    mapping.put(place, std::move(key), std::move(value));
    return Ok{};
}

Result<Value> get_item(const Value& of, const Value& key, Budget& budget) {
    RETURN_IF_ERROR(budget.steps());
    if (of.is_undefined()) return undefined_error(of);
    ASSIGN_OR_RETURN(std::optional<Value> item, item_of(of, key, budget));
    if (item) return *std::move(item);
    if (const Text* text = key.as_text()) {
        if (Namespace* const* space = of.get_if<Namespace*>()) {
            const Value* found = (*space)->attributes.find(text->bytes);
            if (found != nullptr) return *found;
        } else if (!text->bytes.starts_with('_')) {
            if (std::optional<Value> method = method_of(of, text->bytes)) return *std::move(method);
        }
        return Value::undefined(
            fmt::format("'{}' has no attribute '{}'", described(of), shown(text->bytes))
        );
    }
    return Value::undefined(fmt::format("{} has no such element", described(of)));
}

Result<Value> slice(const Value& of, const SliceBounds& bounds, Budget& budget) {
    ASSIGN_OR_RETURN(const std::optional<std::size_t> size, length_of(of, budget));
    const Text* text = of.as_text();
    const Sequence* sequence = of.as_sequence();
    if (of.is_undefined()) return undefined_error(of);
    if (text == nullptr && (sequence == nullptr || sequence->kind > SequenceKind::kRange)) {
        return type_error("a value of type {} cannot be sliced", of.type_name());
    }
    // Source: CPython's PySlice_AdjustIndices.
    const auto len = static_cast<std::int64_t>(*size);
    const std::int64_t step = bounds.step;
    const bool is_down = step < 0;
    const auto adjusted = [&](std::optional<std::int64_t> given, std::int64_t otherwise) {
        if (!given) return otherwise;
        std::int64_t at = *given < 0 ? *given + len : *given;
        at = std::max<std::int64_t>(at, is_down ? -1 : 0);
        return std::min(at, is_down ? len - 1 : len);
    };
    const std::int64_t begin = adjusted(bounds.begin, is_down ? len - 1 : 0);
    const std::int64_t end = adjusted(bounds.end, is_down ? -1 : len);

    // The number of items in the slice. Unsigned 64 bits, as adding a whole step to a position
    // might overflow.
    std::uint64_t count = 0;
    if (is_down ? begin > end : begin < end) {
        const std::uint64_t stride =
            is_down ? ~static_cast<std::uint64_t>(step) + 1 : static_cast<std::uint64_t>(step);
        const auto distance = static_cast<std::uint64_t>(is_down ? begin - end : end - begin);
        count = (distance - 1) / stride + 1;
    }
    if (text != nullptr) {
        RETURN_IF_ERROR(budget.bytes(text->bytes.size()));
        std::string out;
        if (step != 1) RETURN_IF_ERROR(budget.items(*size, sizeof(std::string_view)));
        if (step == 1) {
            if (end > begin) {
                const std::size_t from = byte_at(text->bytes, static_cast<std::size_t>(begin));
                const std::string_view rest = std::string_view(text->bytes).substr(from);
                out = rest.substr(0, byte_at(rest, static_cast<std::size_t>(end - begin)));
            }
        } else {
            const std::vector<std::string_view> all = code_points_of(text->bytes);
            for (std::int64_t i = begin; is_down ? i > end : i < end;) {
                out += all[static_cast<std::size_t>(i)];
                if (__builtin_add_overflow(i, step, &i)) break;
            }
        }
        return text->is_markup ? Value::markup(std::move(out)) : Value::text(std::move(out));
    }
    RETURN_IF_ERROR(budget.items(count, sizeof(Value)));
    std::vector<Value> items;
    items.reserve(count);
    for (std::int64_t i = begin; is_down ? i > end : i < end;) {
        items.push_back(sequence->items[static_cast<std::size_t>(i)]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    const SequenceKind kind =
        sequence->kind == SequenceKind::kTuple ? SequenceKind::kTuple : SequenceKind::kList;
    return Value::sequence(kind, std::move(items));
}

Result<std::vector<Value>> items_of(const Value& value, Budget& budget) {
    if (value.is_undefined()) return std::vector<Value>{};
    if (const Sequence* sequence = value.as_sequence()) {
        RETURN_IF_ERROR(budget.items(sequence->items.size(), sizeof(Value)));
        return sequence->items;
    }
    std::vector<Value> items;
    if (Iterator* iterator = value.as_iterator()) {
        RETURN_IF_ERROR(budget.items(iterator->items.size() - iterator->next, sizeof(Value)));
        items.assign(
            iterator->items.begin() + static_cast<std::ptrdiff_t>(iterator->next),
            iterator->items.end()
        );
        iterator->next = iterator->items.size();
    } else if (const Mapping* mapping = value.as_mapping()) {
        RETURN_IF_ERROR(budget.items(mapping->size(), sizeof(Value)));
        items.reserve(mapping->size());
        for (const auto& [key, item] : mapping->entries()) items.push_back(key);
    } else if (const Text* text = value.as_text()) {
        RETURN_IF_ERROR(
            budget.items(num_code_points(text->bytes), kTextBytes + sizeof(std::string_view))
        );
        for (const std::string_view one : code_points_of(text->bytes)) {
            items.push_back(Value::text(std::string(one)));
        }
    } else {
        return type_error("a value of type {} cannot be iterated", value.type_name());
    }
    return items;
}

bool is_iterable(const Value& value) {
    return value.is_undefined() || value.as_sequence() != nullptr ||
           value.as_iterator() != nullptr || value.as_mapping() != nullptr ||
           value.as_text() != nullptr || value.is<Loop*>();
}

Result<std::optional<std::size_t>> length_of(const Value& value, Budget& budget) {
    if (value.is_undefined()) return std::optional<std::size_t>(0);
    if (const Text* text = value.as_text()) {
        RETURN_IF_ERROR(budget.scan(text->bytes.size()));
        return std::optional(num_code_points(text->bytes));
    }
    if (const Sequence* sequence = value.as_sequence()) {
        return std::optional(sequence->items.size());
    }
    if (const Mapping* mapping = value.as_mapping()) return std::optional(mapping->size());
    return std::optional<std::size_t>{};
}

}  // namespace pitstop::jinja
