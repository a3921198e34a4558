// Reads bodies: parses JSON with limits, and reads members as leniently as the engines do.
//
//   FieldReader fields(parse_json_object(request.body));
//   fields.read("temperature", params.temperature);   // absent or null: left unchanged
//   fields.read("max_new_tokens", params.max_new_tokens);
//   if (fields.error()) return *fields.error();       // names the member and what is accepted
//
// Like the engines, a reader accepts an integral float or a string of digits for an integer, a
// string for a number, and 0, 1 or "true" for a bool. Unknown members are ignored.
#pragma once

#include "base/ids.h"
#include "base/result.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

inline constexpr int kJsonDepthMax = 64;

// Parses a body; an empty body is an empty object. Errors: kMalformed (not JSON, with the byte; not
// UTF-8; too deep). Bounded: by the body, whose size the server limits.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view body);
// Parses a body that must be a JSON object. Errors: the same.
[[nodiscard]] Result<nlohmann::json> parse_json_object(std::string_view body);

class FieldReader {
  public:
    // `where` precedes names in errors: "sampling_params.top_k". REQUIRES: `object` is a JSON
    // object that outlives the reader.
    explicit FieldReader(const nlohmann::json& object, std::string_view where = {});
    // Owns the object. An error in its place becomes the reader's error, and the reader then has no
    // members.
    explicit FieldReader(Result<nlohmann::json> object);
    ~FieldReader();
    FieldReader(const FieldReader&) = delete;
    FieldReader& operator=(const FieldReader&) = delete;

    // Each read() leaves `target` unchanged if the member is absent, null or wrong, or if there was
    // an error before.
    void read(std::string_view name, bool& target);
    void read(std::string_view name, std::int64_t& target);
    void read(std::string_view name, double& target);
    void read(std::string_view name, std::string& target);
    void read(std::string_view name, std::optional<bool>& target);
    void read(std::string_view name, std::optional<std::int64_t>& target);
    void read(std::string_view name, std::optional<std::uint64_t>& target);
    void read(std::string_view name, std::optional<double>& target);
    void read(std::string_view name, std::optional<std::string>& target);
    void read(std::string_view name, std::vector<std::string>& target);  // accepts one string, too
    void read(std::string_view name, std::vector<TokenId>& target);
    // Skips null entries. A client that sends the tokenizer's end and pad tokens has a null if the
    // tokenizer has no pad token.
    void read_without_nulls(std::string_view name, std::vector<TokenId>& target);

    // Returns the member, or nullptr if absent or null.
    [[nodiscard]] const nlohmann::json* find(std::string_view name) const;
    [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }

    void fail(std::string_view name, std::string_view accepted);
    // Refuses a member that requests an unsupported feature: "is not supported".
    void refuse(std::string_view name, std::string_view why);
    [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  private:
    template <class T, class Read>
    void read_with(std::string_view name, T& target, std::string_view accepted, Read convert);

    std::unique_ptr<const nlohmann::json> own_{};
    const nlohmann::json* object_;
    std::string where_;
    std::optional<Error> error_{};
};

// Reads a token id from a JSON value; nothing if the value is no token id.
[[nodiscard]] std::optional<TokenId> token_of(const nlohmann::json& value);
[[nodiscard]] std::optional<std::int64_t> integer_of(const nlohmann::json& value);
[[nodiscard]] std::optional<double> number_of(const nlohmann::json& value);
[[nodiscard]] std::optional<bool> bool_of(const nlohmann::json& value);

}  // namespace pitstop::http
