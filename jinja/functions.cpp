// The functions of the environment. Source: Jinja 3.1, sandbox.py (range), and transformers,
// chat_template_utils.py (raise_exception, strftime_now).
#include "jinja/builtins.h"
#include "jinja/items.h"
#include "jinja/python_repr.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace pitstop::jinja {
namespace {

constexpr std::size_t kTimeFormatMax = 1024;
constexpr std::size_t kRangeMax = 100'000;

Result<Value> make_range(Env& env, const Value&, const Given& given) {
    const std::vector<Value>& args = given.raw().positional;
    if (!given.raw().named.empty() || args.empty() || args.size() > 3) {
        return type_error("takes one to three integers");
    }
    for (const Value& arg : args) {
        if (arg.is_undefined()) return undefined_error(arg);
        if (!arg.is_whole()) return type_error("takes integers, not {}", arg.type_name());
    }
    const std::int64_t begin = args.size() > 1 ? args[0].whole() : 0;
    const std::int64_t end = args.size() > 1 ? args[1].whole() : args[0].whole();
    const std::int64_t step = args.size() > 2 ? args[2].whole() : 1;
    if (step == 0) return type_error("its step must not be 0");
    std::size_t count = 0;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
        if (++count > kRangeMax) return type_error("has more than {} numbers", kRangeMax);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    RETURN_IF_ERROR(env.budget.items(count, sizeof(Value)));
    std::vector<Value> items;
    items.reserve(count);
    for (std::int64_t i = begin; items.size() < count;) {
        items.push_back(Value::integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::sequence(
        SequenceKind::kRange,
        std::move(items),
        step == 1 ? fmt::format("range({}, {})", begin, end)
                  : fmt::format("range({}, {}, {})", begin, end, step)
    );
}

Result<Value> make_dict(Env& env, const Value&, const Given& given) {
    const Args& args = given.raw();
    if (args.positional.size() > 1) return type_error("takes at most one mapping");
    Mapping mapping;
    if (!args.positional.empty()) {
        if (const Mapping* other = args.positional[0].as_mapping()) {
            RETURN_IF_ERROR(env.budget.items(other->size(), kEntryBytes));
            mapping = *other;
        } else {
            ASSIGN_OR_RETURN(
                const std::vector<Value> pairs, items_of(args.positional[0], env.budget)
            );
            for (const Value& pair : pairs) {
                ASSIGN_OR_RETURN(const std::vector<Value> parts, items_of(pair, env.budget));
                if (parts.size() != 2) return type_error("takes pairs");
                RETURN_IF_ERROR(set_item(mapping, parts[0], parts[1], env.budget));
            }
        }
    }
    RETURN_IF_ERROR(env.budget.items(args.named.size(), kEntryBytes));
    for (const auto& [name, value] : args.named) mapping.insert(name, value);
    return Value::mapping(std::move(mapping));
}

Result<Value> raise_exception(Env& env, const Value&, const Given& given) {
    ASSIGN_OR_RETURN(const std::string message, str_of(*given[0], env.budget));
    return make_error(ErrorCode::kInvalidArgument, "{}", message);
}

Result<Value> strftime_now(Env& env, const Value&, const Given& given) {
    ASSIGN_OR_RETURN(const std::string_view format, given.text(0, "format", ""));
    if (format.size() > kTimeFormatMax) {
        return type_error("a format of {} bytes; accepted are {}", format.size(), kTimeFormatMax);
    }
    // The extra character tells an empty result from a failure: strftime returns 0 for both.
    const std::string padded = std::string(format) + "x";
    const std::size_t room = padded.size() * 16 + 64;
    RETURN_IF_ERROR(env.budget.bytes(room));
    std::string out(room, '\0');
    const std::size_t len = std::strftime(out.data(), out.size(), padded.c_str(), &env.now);
    if (len == 0) return type_error("the format '{}' makes too long a text", format);
    out.resize(len - 1);
    return Value::text(std::move(out));
}

constexpr std::array kFunctions{
    Builtin{"range", kAnyParams, 0, make_range},
    Builtin{"dict", kAnyParams, 0, make_dict},
    // evaluated by the renderer, which owns namespaces
    Builtin{"namespace", kAnyParams, 0, nullptr},
    Builtin{"raise_exception", "message", 1, raise_exception},
    Builtin{"strftime_now", "format", 1, strftime_now},
};

}  // namespace

const Builtin* find_function(std::string_view name) {
    const auto* const found = std::ranges::find(kFunctions, name, &Builtin::name);
    return found == kFunctions.end() ? nullptr : found;
}

}  // namespace pitstop::jinja
