#include "base/json_reader.h"

#include "base/check.h"

#include <utility>

namespace pitstop {
namespace {

constexpr int kNumberOutOfRange = 406;  // nlohmann's id for this error

class TreeReader final : public JsonReader {
  public:
    TreeReader(const std::string& where, JsonLimits limits, std::size_t values_max)
        : JsonReader(where, std::move(limits)), tree_(where, values_max) {}

    [[nodiscard]] Json take() { return tree_.take(); }

  private:
    std::optional<Error> on_key(std::string& name) override {
        tree_.set_key(std::move(name));
        return std::nullopt;
    }
    std::optional<Error> on_scalar(const Scalar& scalar) override {
        return tree_.add(scalar.text != nullptr ? Json(std::move(*scalar.text)) : scalar.other);
    }
    std::optional<Error> on_object() override { return tree_.open(Json::object()); }
    std::optional<Error> on_array() override { return tree_.open(Json::array()); }
    std::optional<Error> on_end() override {
        tree_.close();
        return std::nullopt;
    }

    JsonTree tree_;
};

}  // namespace

Result<> JsonReader::read(std::string_view json) {
    nlohmann::json_sax<Json>* const events = this;
    const bool is_read = Json::sax_parse(json.data(), json.data() + json.size(), events);
    if (problem_) return *std::move(problem_);
    CHECK(is_read);  // only a problem ends the reading early
    return Ok{};
}

bool JsonReader::go_on(std::optional<Error> problem) {
    if (!problem && limits_.interrupt) problem = limits_.interrupt();
    problem_ = std::move(problem);
    return !problem_;
}

bool JsonReader::refuse(std::string_view why) {
    problem_ = make_error(ErrorCode::kMalformed, "{}{}", where_, why);
    return false;
}

bool JsonReader::scalar(const Scalar& value) {
    if (depth_ == 0) return refuse("not a JSON object");
    return go_on(on_scalar(value));
}

bool JsonReader::start(std::optional<Error> problem) {
    ++depth_;
    return go_on(std::move(problem));
}

bool JsonReader::end() {
    --depth_;
    return depth_ == 0 || go_on(on_end());
}

bool JsonReader::start_object(std::size_t) {
    if (depth_ >= limits_.depth_max)
        return refuse(fmt::format("nested deeper than {} levels", limits_.depth_max));
    return start(depth_ == 0 ? std::nullopt : on_object());
}

bool JsonReader::start_array(std::size_t) {
    if (depth_ == 0) return refuse("not a JSON object");
    if (depth_ >= limits_.depth_max)
        return refuse(fmt::format("nested deeper than {} levels", limits_.depth_max));
    return start(on_array());
}

// The parser's own message is not repeated: it quotes the text read last, which may be long.
bool JsonReader::parse_error(std::size_t byte, const std::string&, const Json::exception& error) {
    return refuse(fmt::format(
        "{} at byte {}",
        error.id == kNumberOutOfRange ? "a number is out of range" : "not JSON",
        byte
    ));
}

std::optional<Error> JsonTree::add(nlohmann::json value) {
    if (place(std::move(value)) == nullptr) return too_many();
    return std::nullopt;
}

std::optional<Error> JsonTree::open(nlohmann::json value) {
    nlohmann::json* const placed = place(std::move(value));
    if (placed == nullptr) return too_many();
    open_.push_back(placed);
    return std::nullopt;
}

Error JsonTree::too_many() const {
    return make_error(ErrorCode::kTooLarge, "{}more than {} values", where_, values_max_);
}

nlohmann::json* JsonTree::place(nlohmann::json value) {
    if (num_values_ == values_max_) return nullptr;
    ++num_values_;
    nlohmann::json& parent = open_.empty() ? root_ : *open_.back();
    if (parent.is_array()) {
        parent.push_back(std::move(value));
        return &parent.back();
    }
    nlohmann::json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
}

Result<nlohmann::json> read_json_tree(
    std::string_view json, const std::string& where, JsonLimits limits, std::size_t values_max
) {
    TreeReader reader(where, std::move(limits), values_max);
    RETURN_IF_ERROR(reader.read(json));
    return reader.take();
}

}  // namespace pitstop
