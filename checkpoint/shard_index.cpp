#include "checkpoint/shard_index.h"

#include "base/json_reader.h"
#include "base/utf8.h"

#include <optional>
#include <utility>

namespace pitstop::checkpoint {
namespace {

constexpr std::string_view kWeightMap = "weight_map";

class IndexReader final : public JsonReader {
  public:
    IndexReader(const std::string& path, const ReadLimits& limits)
        : JsonReader(
              fmt::format("'{}': ", path),
              {.depth_max = kIndexDepthMax, .interrupt = interrupt_of(path, limits)}
          ),
          path_(path),
          tensors_max_(limits.tensors_max) {}

    [[nodiscard]] ShardIndex take_index() { return std::move(index_); }

  private:
    // Returns whether the event is in weight_map's own object, or at its beginning.
    [[nodiscard]] bool is_in_map() const { return is_weight_map_ && depth() <= 2; }
    [[nodiscard]] Error misplaced() const {
        if (depth() == 1) {
            return make_error(
                ErrorCode::kMalformed, "'{}' has no weight_map of tensors to files", path_
            );
        }
        return no_file("");
    }
    [[nodiscard]] Error no_file(std::string_view name) const {
        return make_error(
            ErrorCode::kMalformed,
            "'{}': tensor '{}' must name a file of the same directory, not '{}'",
            path_,
            tensor_,
            utf8_prefix(name, kFileNameBytesMax)
        );
    }
    [[nodiscard]] Error twice(std::string_view name) const {
        return make_error(ErrorCode::kMalformed, "'{}': '{}' appears twice", path_, name);
    }
    [[nodiscard]] Error too_large(std::string_view what, std::size_t max) const {
        return make_error(
            ErrorCode::kTooLarge, "'{}' lists {}; at most {} are accepted", path_, what, max
        );
    }

    std::optional<Error> on_key(std::string& name) override {
        if (depth() == 1) {
            is_weight_map_ = name == kWeightMap;
            if (is_weight_map_ && std::exchange(has_weight_map_, true)) return twice(kWeightMap);
            return std::nullopt;
        }
        if (!is_in_map()) return std::nullopt;
        if (index_.shard_of.size() == tensors_max_)
            return too_large("more tensors than this model needs", tensors_max_);
        if (name.size() > kTensorNameBytesMax) {
            return too_large(
                fmt::format("a tensor whose name has {} bytes", name.size()), kTensorNameBytesMax
            );
        }
        if (index_.shard_of.contains(name)) return twice(name);
        tensor_ = std::move(name);
        return std::nullopt;
    }
    std::optional<Error> on_object() override {
        if (!is_in_map() || depth() == 1) return std::nullopt;
        return misplaced();
    }
    std::optional<Error> on_array() override {
        return is_in_map() ? std::optional(misplaced()) : std::nullopt;
    }
    std::optional<Error> on_scalar(const Scalar& scalar) override {
        if (!is_in_map()) return std::nullopt;
        if (depth() == 1 || scalar.text == nullptr) return misplaced();
        const std::string& file = *scalar.text;
        if (file.empty() || file == "." || file == ".." || file.size() > kFileNameBytesMax ||
            file.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
            return no_file(file);
        index_.shards.insert(file);
        if (index_.shards.size() > kShardsMax) return too_large("more files", kShardsMax);
        index_.shard_of.emplace(std::move(tensor_), file);
        return std::nullopt;
    }
    std::optional<Error> on_end() override { return std::nullopt; }

    const std::string& path_;
    std::size_t tensors_max_;
    bool is_weight_map_ = false;  // reading this member of the root
    bool has_weight_map_ = false;
    std::string tensor_{};
    ShardIndex index_{};
};

}  // namespace

Result<ShardIndex> parse_shard_index(
    std::string_view json, const std::string& path, const ReadLimits& limits
) {
    IndexReader reader(path, limits);
    RETURN_IF_ERROR(reader.read(json));
    ShardIndex index = reader.take_index();
    if (index.shards.empty()) {
        return make_error(
            ErrorCode::kMalformed, "'{}' has no weight_map of tensors to files", path
        );
    }
    return index;
}

}  // namespace pitstop::checkpoint
