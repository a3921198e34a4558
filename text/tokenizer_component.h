// Reads a component of a tokenizer.json, field by field. An error names the path, the value, and
// what is accepted.
//
// Only tokenizer_file.cpp includes this header, because it uses nlohmann::json.
#pragma once

#include "base/result.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::text {

// An object of the file, and its path for messages.
class Component {
  public:
    Component(const nlohmann::json& value, std::string path)
        : value_(value), path_(std::move(path)) {}

    [[nodiscard]] const nlohmann::json& value() const { return value_; }
    [[nodiscard]] const std::string& path() const { return path_; }

    [[nodiscard]] Error wrong(std::string_view field, std::string_view accepted) const {
        const nlohmann::json* given = find(field);
        std::string shown =
            given == nullptr
                ? "missing"
                : given->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        if (shown.size() > 80) shown = shown.substr(0, 80) + "...";
        return make_error(
            ErrorCode::kMalformed, "{}.{} is {}; it takes {}", path_, field, shown, accepted
        );
    }
    [[nodiscard]] Error unsupported(std::string_view what) const {
        return make_error(ErrorCode::kUnsupported, "{}: {} is not supported", path_, what);
    }

    Result<std::string> string(std::string_view field) const {
        const nlohmann::json* given = find(field);
        if (given == nullptr || !given->is_string()) return wrong(field, "a string");
        return given->get<std::string>();
    }
    // Reads a string of one code point.
    Result<std::string> character(std::string_view field) const {
        ASSIGN_OR_RETURN(std::string text, string(field));
        if (text.empty() || utf8_len(text[0]) != text.size()) return wrong(field, "one character");
        return text;
    }
    Result<bool> boolean(std::string_view field) const {
        const nlohmann::json* given = find(field);
        if (given == nullptr || !given->is_boolean()) return wrong(field, "true or false");
        return given->get<bool>();
    }
    Result<bool> boolean_or(std::string_view field, bool fallback) const {
        const nlohmann::json* given = find(field);
        return given == nullptr || given->is_null() ? Result<bool>(fallback) : boolean(field);
    }
    Result<std::optional<std::string>> optional_string(std::string_view field) const {
        const nlohmann::json* given = find(field);
        if (given == nullptr || given->is_null()) return std::optional<std::string>();
        ASSIGN_OR_RETURN(std::string text, string(field));
        return std::optional(std::move(text));
    }
    Result<std::int32_t> count(std::string_view field) const {
        const nlohmann::json* given = find(field);
        constexpr std::uint64_t kMax = std::numeric_limits<std::int32_t>::max();
        if (given == nullptr || !given->is_number_unsigned() ||
            given->get<std::uint64_t>() > kMax) {
            return wrong(field, "a whole number from 0");
        }
        return static_cast<std::int32_t>(given->get<std::uint64_t>());
    }
    // Reads the items of an array, each as a component.
    Result<std::vector<Component>> items(std::string_view field) const {
        const nlohmann::json* given = find(field);
        if (given == nullptr || !given->is_array()) return wrong(field, "an array");
        std::vector<Component> out;
        for (std::size_t i = 0; i < given->size(); ++i) {
            out.emplace_back((*given)[i], fmt::format("{}.{}[{}]", path_, field, i));
        }
        return out;
    }
    // Reads the component itself as a token id.
    Result<TokenId> token_id() const {
        if (!value_.is_number_unsigned() || value_.get<std::uint64_t>() >= Vocab::kTokensMax) {
            return make_error(
                ErrorCode::kMalformed, "{} is not a token id, 0 to {}", path_, Vocab::kTokensMax - 1
            );
        }
        return TokenId{value_.get<std::int32_t>()};
    }
    // Reads ["</s>", 2], the form in BertProcessing and RobertaProcessing.
    Result<TokenId> named_token_id(std::string_view field) const {
        const nlohmann::json* given = find(field);
        if (given == nullptr || !given->is_array() || given->size() != 2 ||
            !(*given)[0].is_string()) {
            return wrong(field, "[token, id]");
        }
        return Component((*given)[1], fmt::format("{}.{}[1]", path_, field)).token_id();
    }
    Result<std::string> type() const {
        if (!value_.is_object())
            return make_error(ErrorCode::kMalformed, "{} is not an object", path_);
        return string("type");
    }
    // Returns null if there is no such field.
    [[nodiscard]] const nlohmann::json* find(std::string_view field) const {
        if (!value_.is_object()) return nullptr;
        const auto found = value_.find(field);
        return found == value_.end() ? nullptr : &*found;
    }

  private:
    const nlohmann::json& value_;
    std::string path_;
};

}  // namespace pitstop::text
