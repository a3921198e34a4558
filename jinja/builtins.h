// The filters, tests, methods and functions of templates, by name, and how to call them.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::jinja {

struct Env {
    Budget& budget;
    const std::tm& now;  // for strftime_now
};

// The arguments of a call.
struct Args {
    std::vector<Value> positional{};
    std::vector<std::pair<std::string, Value>> named{};
};

// The arguments by parameter. Null if an argument was not given.
class Given {
  public:
    explicit Given(Args raw) : raw_(std::move(raw)) {}

    [[nodiscard]] const Value* operator[](std::size_t param) const {
        return param < by_param_.size() && by_param_[param] ? &*by_param_[param] : nullptr;
    }
    // for builtins that accept any arguments
    [[nodiscard]] const Args& raw() const { return raw_; }

    // REQUIRES: called once. Errors: too many or too few arguments, an unknown one, or
    // one given twice.
    Result<> bind(std::string_view params, std::size_t num_required);

    // Returns the argument converted to this type, or the default if absent. The error names the
    // parameter and the type.
    [[nodiscard]] Result<std::int64_t> integer(
        std::size_t param, std::string_view name, std::int64_t otherwise
    ) const;
    [[nodiscard]] Result<std::string_view> text(
        std::size_t param, std::string_view name, std::string_view otherwise
    ) const;
    [[nodiscard]] bool flag(std::size_t param, bool otherwise) const;

  private:
    Args raw_;
    std::vector<std::optional<Value>> by_param_{};
};

inline constexpr std::string_view kAnyParams = "*";

struct Builtin {
    std::string_view name;
    std::string_view params;  // names separated by one space; or kAnyParams
    std::size_t num_required;
    // `self` is the value that is filtered or tested, or the method's object.
    Result<Value> (*run)(Env& env, const Value& self, const Given& given);
};

[[nodiscard]] Result<Value> call(Env& env, const Builtin& builtin, const Value& self, Args args);

// Return null if no such builtin exists.
[[nodiscard]] const Builtin* find_filter(std::string_view name);
[[nodiscard]] const Builtin* find_test(std::string_view name);
[[nodiscard]] const Builtin* find_method(const Value& self, std::string_view name);
[[nodiscard]] const Builtin* find_function(std::string_view name);

// Names that exist in Jinja or Python but not here: a template that uses one is refused when
// it is loaded.
[[nodiscard]] bool is_unsupported_function(std::string_view name);
[[nodiscard]] bool is_unsupported_method(std::string_view name);

// Makes an error about the template or its arguments.
template <class... Text>
[[nodiscard]] Error type_error(fmt::format_string<Text...> format, Text&&... text) {
    return make_error(ErrorCode::kInvalidArgument, format, std::forward<Text>(text)...);
}

// Makes the error for using an undefined value.
[[nodiscard]] Error undefined_error(const Value& value);

}  // namespace pitstop::jinja
