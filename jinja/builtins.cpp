#include "jinja/builtins.h"

#include <algorithm>
#include <array>

namespace pitstop::jinja {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(' '), text.size());
        words.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return words;
}

}  // namespace

Result<> Given::bind(std::string_view params, std::size_t num_required) {
    if (params == kAnyParams) return Ok{};
    const std::vector<std::string_view> names = words_of(params);
    if (raw_.positional.size() > names.size()) {
        return type_error(
            "takes at most {} arguments, not {}", names.size(), raw_.positional.size()
        );
    }
    by_param_.resize(names.size());
    for (std::size_t i = 0; i < raw_.positional.size(); ++i) {
        by_param_[i] = std::move(raw_.positional[i]);
    }
    for (auto& [name, value] : raw_.named) {
        const auto found = std::ranges::find(names, name);
        if (found == names.end()) return type_error("has no argument '{}'", name);
        std::optional<Value>& param = by_param_[static_cast<std::size_t>(found - names.begin())];
        if (param) return type_error("got its argument '{}' twice", name);
        param = std::move(value);
    }
    for (std::size_t i = 0; i < num_required; ++i) {
        if (!by_param_[i]) return type_error("needs its argument '{}'", names[i]);
    }
    return Ok{};
}

Result<std::int64_t> Given::integer(
    std::size_t param, std::string_view name, std::int64_t otherwise
) const {
    const Value* value = (*this)[param];
    if (value == nullptr) return otherwise;
    if (value->is_whole()) return value->whole();
    return type_error("its argument '{}' is {}; an integer is accepted", name, value->type_name());
}

Result<std::string_view> Given::text(
    std::size_t param, std::string_view name, std::string_view otherwise
) const {
    const Value* value = (*this)[param];
    if (value == nullptr) return otherwise;
    if (const Text* text = value->as_text()) return std::string_view(text->bytes);
    return type_error("its argument '{}' is {}; a string is accepted", name, value->type_name());
}

bool Given::flag(std::size_t param, bool otherwise) const {
    const Value* value = (*this)[param];
    return value == nullptr ? otherwise : value->is_true();
}

Result<Value> call(Env& env, const Builtin& builtin, const Value& self, Args args) {
    Given given(std::move(args));
    Result<> bound = given.bind(builtin.params, builtin.num_required);
    Result<Value> result =
        bound ? builtin.run(env, self, given) : Result<Value>(std::move(bound).error());
    if (result || builtin.name == "raise_exception") return result;
    return make_error(result.error().code, "{}: {}", builtin.name, result.error().message);
}

bool is_unsupported_function(std::string_view name) {
    static constexpr std::array<std::string_view, 8> kNames{
        "lipsum", "cycler", "joiner", "_", "gettext", "ngettext", "caller", "super"};
    return std::ranges::count(kNames, name) != 0;
}

bool is_unsupported_method(std::string_view name) {
    static constexpr std::array<std::string_view, 12> kNames{
        "encode",
        "translate",
        "maketrans",
        "format_map",
        "expandtabs",
        "isascii",
        "isidentifier",
        "istitle",
        "isprintable",
        "isdecimal",
        "fromkeys",
        "casefold"};
    return std::ranges::count(kNames, name) != 0;
}

Error undefined_error(const Value& value) {
    const auto* undefined = value.get_if<Undefined>();
    if (undefined == nullptr || !undefined->why) return type_error("the value is undefined");
    return type_error("{}", *undefined->why);
}

}  // namespace pitstop::jinja
