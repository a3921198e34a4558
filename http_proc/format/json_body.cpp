#include "http_proc/format/json_body.h"

#include "base/utf8.h"
#include "http_proc/format/field_notes.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kInteger = "an integer from -2^63 to 2^63 - 1";

// Checks the depth before the parser builds a value, because destroying a deeply nested value would
// need a stack frame per level.
bool is_too_deep(std::string_view text) {
    int depth = 0;
    bool is_string = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (is_string) {
            if (c == '\\') ++i;
            is_string = c != '"';
        } else if (c == '"') {
            is_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > kJsonDepthMax) return true;
        } else if (c == ']' || c == '}') {
            --depth;
        }
    }
    return false;
}

template <class T>
std::optional<T> from_text(std::string_view text) {
    T value{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::optional<std::uint64_t> unsigned_of(const Json& value) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    // A negative seed becomes its two's complement, which differs from every positive seed that an
    // int64 can have.
    if (const auto number = integer_of(value)) return static_cast<std::uint64_t>(*number);
    return std::nullopt;
}

// Notes the type of a member and the value that applies if the member is absent.
template <class T>
void note_value(FieldNotes::Note& note, const T& target) {
    using Kind = FieldNotes::Kind;
    if constexpr (requires { target.has_value(); }) {
        using Value = typename T::value_type;
        note_value(note, target.value_or(Value{}));
        if (!target.has_value()) note.initial = nullptr;
    } else if constexpr (std::is_same_v<T, std::vector<TokenId>>) {
        note.kind = Kind::kTokens;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
        note.kind = Kind::kTexts;
    } else {
        if constexpr (std::is_same_v<T, bool>) note.kind = Kind::kBool;
        if constexpr (std::is_same_v<T, std::int64_t>) note.kind = Kind::kInteger;
        if constexpr (std::is_same_v<T, std::uint64_t>) note.kind = Kind::kUnsigned;
        if constexpr (std::is_same_v<T, double>) note.kind = Kind::kNumber;
        if constexpr (std::is_same_v<T, std::string>) note.kind = Kind::kText;
        note.initial = target;
    }
}

}  // namespace

Result<Json> parse_json(std::string_view body) {
    if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) return Json::object();
    if (!is_utf8(body)) return make_error(ErrorCode::kMalformed, "the body is not UTF-8");
    if (is_too_deep(body)) {
        return make_error(
            ErrorCode::kMalformed, "the body's JSON is more than {} levels deep", kJsonDepthMax
        );
    }
    try {
        return Json::parse(body);
    } catch (const Json::parse_error& error) {
        return make_error(ErrorCode::kMalformed, "the body is not JSON at byte {}", error.byte);
    } catch (const Json::exception&) {  // a number too large for a double
        return make_error(ErrorCode::kMalformed, "the body has a number out of range");
    }
}

Result<Json> parse_json_object(std::string_view body) {
    ASSIGN_OR_RETURN(Json json, parse_json(body));
    if (json.is_null()) return Json::object();
    if (!json.is_object()) {
        return make_error(ErrorCode::kMalformed, "the body is not a JSON object");
    }
    return json;
}

std::optional<std::int64_t> integer_of(const Json& value) {
    if (value.is_number_unsigned()) {
        const auto number = value.get<std::uint64_t>();
        if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            return std::nullopt;
        return static_cast<std::int64_t>(number);
    }
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (value.is_number_float()) {
        const auto number = value.get<double>();
        if (std::trunc(number) != number || std::abs(number) > 9e15) return std::nullopt;
        return static_cast<std::int64_t>(number);
    }
    if (value.is_string()) return from_text<std::int64_t>(value.get_ref<const std::string&>());
    return std::nullopt;
}

std::optional<double> number_of(const Json& value) {
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) return from_text<double>(value.get_ref<const std::string&>());
    return std::nullopt;
}

std::optional<bool> bool_of(const Json& value) {
    if (value.is_boolean()) return value.get<bool>();
    if (value == 0 || value == "false" || value == "False" || value == "0") return false;
    if (value == 1 || value == "true" || value == "True" || value == "1") return true;
    return std::nullopt;
}

std::optional<TokenId> token_of(const Json& value) {
    if (!value.is_number()) return std::nullopt;
    const auto number = integer_of(value);
    if (!number || *number < 0 || *number > std::numeric_limits<std::int32_t>::max())
        return std::nullopt;
    return static_cast<TokenId>(*number);
}

FieldReader::FieldReader(const Json& object, std::string_view where)
    : object_(&object), where_(where) {
    CHECK(object.is_object());
}

FieldReader::FieldReader(Result<Json> object) : object_(nullptr) {
    if (!object) error_ = object.error();
    own_ = std::make_unique<Json>(object ? *std::move(object) : Json::object());
    object_ = own_.get();
    CHECK(own_->is_object());
}

FieldReader::~FieldReader() = default;

const Json* FieldReader::find(std::string_view name) const {
    if (FieldNotes* notes = FieldNotes::of_thread()) notes->note_of(where_, name);
    const auto place = object_->find(name);
    return place == object_->end() || place->is_null() ? nullptr : &*place;
}

void FieldReader::fail(std::string_view name, std::string_view accepted) {
    if (error_) return;
    constexpr std::size_t kShownMax = 80;
    const Json* given = find(name);
    if (FieldNotes* notes = FieldNotes::of_thread()) {
        FieldNotes::Note& note = notes->note_of(where_, name);
        note.accepted = accepted;
        note.is_missing = given == nullptr;
    }
    std::string shown =
        given ? given->dump(-1, ' ', true, Json::error_handler_t::replace) : std::string("absent");
    if (shown.size() > kShownMax) shown = shown.substr(0, kShownMax) + "...";
    error_ = make_error(
        ErrorCode::kInvalidArgument,
        "{}{}{} is {}; accepted is {}",
        where_,
        where_.empty() ? "" : ".",
        name,
        shown,
        accepted
    );
}

void FieldReader::refuse(std::string_view name, std::string_view why) {
    if (error_ || !has(name)) return;
    if (FieldNotes* notes = FieldNotes::of_thread()) notes->note_of(where_, name).is_refused = true;
    error_ = make_error(
        ErrorCode::kInvalidArgument,
        "{}{}{} is not supported: {}",
        where_,
        where_.empty() ? "" : ".",
        name,
        why
    );
}

template <class T, class Read>
void FieldReader::read_with(
    std::string_view name, T& target, std::string_view accepted, Read convert
) {
    const Json* value = find(name);
    if (FieldNotes* notes = FieldNotes::of_thread())
        note_value(notes->note_of(where_, name), target);
    if (error_ || value == nullptr) return;
    if (auto result = convert(*value)) {
        target = *std::move(result);
    } else {
        fail(name, accepted);
    }
}

void FieldReader::read(std::string_view name, bool& target) {
    read_with(name, target, "true or false", bool_of);
}
void FieldReader::read(std::string_view name, std::int64_t& target) {
    read_with(name, target, kInteger, integer_of);
}
void FieldReader::read(std::string_view name, double& target) {
    read_with(name, target, "a number", number_of);
}
void FieldReader::read(std::string_view name, std::optional<bool>& target) {
    read_with(name, target, "true or false", bool_of);
}
void FieldReader::read(std::string_view name, std::optional<std::int64_t>& target) {
    read_with(name, target, kInteger, integer_of);
}
void FieldReader::read(std::string_view name, std::optional<std::uint64_t>& target) {
    read_with(name, target, "an integer from -2^63 to 2^64 - 1", unsigned_of);
}
void FieldReader::read(std::string_view name, std::optional<double>& target) {
    read_with(name, target, "a number", number_of);
}

namespace {
std::optional<std::string> string_of(const Json& value) {
    if (!value.is_string()) return std::nullopt;
    return value.get<std::string>();
}
}  // namespace

void FieldReader::read(std::string_view name, std::string& target) {
    read_with(name, target, "a string", string_of);
}
void FieldReader::read(std::string_view name, std::optional<std::string>& target) {
    read_with(name, target, "a string", string_of);
}

void FieldReader::read(std::string_view name, std::vector<std::string>& target) {
    read_with(
        name,
        target,
        "a string or a list of strings",
        [](const Json& value) -> std::optional<std::vector<std::string>> {
            std::vector<std::string> texts;
            if (value.is_string()) return std::vector{value.get<std::string>()};
            if (!value.is_array()) return std::nullopt;
            for (const Json& entry : value) {
                if (!entry.is_string()) return std::nullopt;
                texts.push_back(entry.get<std::string>());
            }
            return texts;
        }
    );
}

namespace {

constexpr std::string_view kTokens = "a list of token ids";

enum class Nulls { kRefuse, kSkip };

template <Nulls nulls>
std::optional<std::vector<TokenId>> tokens_of(const Json& value) {
    if (!value.is_array()) return std::nullopt;
    std::vector<TokenId> ids;
    ids.reserve(value.size());
    for (const Json& entry : value) {
        if (nulls == Nulls::kSkip && entry.is_null()) continue;
        const auto id = token_of(entry);
        if (!id) return std::nullopt;
        ids.push_back(*id);
    }
    return ids;
}

}  // namespace

void FieldReader::read(std::string_view name, std::vector<TokenId>& target) {
    read_with(name, target, kTokens, tokens_of<Nulls::kRefuse>);
}
void FieldReader::read_without_nulls(std::string_view name, std::vector<TokenId>& target) {
    read_with(name, target, kTokens, tokens_of<Nulls::kSkip>);
}

}  // namespace pitstop::http
