#include "tp_worker/weights/checkpoint_tensors.h"

#include "tp_worker/weights/unpack.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kNamesShownMax = 8;
constexpr std::int64_t kCompareBytes = std::int64_t{1} << 20;  // compared at a time, per tensor

// Returns whether the tensor belongs to the decoder or its head. Other unknown tensors belong to
// other programs.
bool is_of_a_decoder(std::string_view name) {
    return name.starts_with("model.") || name.starts_with("lm_head.");
}

std::string shown(std::span<const std::string_view> names) {
    const std::size_t num = std::min(names.size(), kNamesShownMax);
    std::string text = fmt::format("{}", fmt::join(names.first(num), ", "));
    if (names.size() > num) text += fmt::format(" and {} more", names.size() - num);
    return text;
}

}  // namespace

CheckpointTensors::CheckpointTensors(
    const WeightLayout& layout, const checkpoint::Checkpoint& checkpoint
)
    : layout_(layout), checkpoint_(checkpoint) {
    const auto kept = std::make_shared<OrderedPacks>();
    for (const checkpoint::StoredTensor& stored : checkpoint.tensors()) {
        const std::string_view name = stored.spec.name;
        const bool is_known =
            layout.find_tied(name) != nullptr || layout.find_pack(name) != nullptr;
        if (is_known || (is_of_a_decoder(name) && !layout.is_ignored(name))) {
            offered_.push_back(&stored);
            const TensorBytes bytes = stored_bytes(checkpoint, stored);
            for (Incoming& weight : unpacked(layout, stored.spec, bytes, kept))
                unpacked_.emplace(std::move(weight.spec.name), std::move(weight.bytes));
            const WeightTensor* const tensor = layout.find(name);
            if (tensor != nullptr && tensor->name != name) renamed_.emplace(tensor->name, &stored);
        } else if (!layout.is_rotary_table(name)) {
            left_out_.push_back(name);
        }
    }
}

Result<> CheckpointTensors::check_whole(const std::string& source) const {
    std::vector<checkpoint::TensorSpec> specs;
    for (const checkpoint::StoredTensor* stored : offered_) specs.push_back(stored->spec);
    const std::vector<std::string> problems = find_problems(layout_, specs, Completeness::kWhole);
    if (!problems.empty()) return error_of(source, problems);
    return check_tied_head(source);
}

const checkpoint::StoredTensor* CheckpointTensors::find_stored(std::string_view name) const {
    const auto renamed = renamed_.find(name);
    return renamed == renamed_.end() ? checkpoint_.find(name) : renamed->second;
}

TensorBytes CheckpointTensors::bytes_for(std::string_view name) const {
    const auto packed = unpacked_.find(name);
    if (packed != unpacked_.end()) return packed->second;
    const checkpoint::StoredTensor* stored = find_stored(name);
    const WeightTensor* const tied = layout_.tied();
    if (stored == nullptr && tied != nullptr && name == tied->name)
        stored = checkpoint_.find(layout_.head_name());
    CHECK(stored != nullptr);  // the check found nothing missing
    return stored_bytes(checkpoint_, *stored);
}

// Compares this rank's rows of the head and the embedding, in resident form.
Result<> CheckpointTensors::check_tied_head(const std::string& source) const {
    if (layout_.tied() == nullptr) return Ok{};
    const WeightTensor& embedding = *layout_.tied();
    const std::array<const checkpoint::StoredTensor*, 2> both{
        find_stored(embedding.name), checkpoint_.find(layout_.head_name())};
    if (both[0] == nullptr || both[1] == nullptr) return Ok{};
    const ShardPart& part = embedding.parts.front();
    CHECK(part.is_contiguous());  // rows of the vocabulary
    const std::int64_t end = part.whole_begin() + part.rows * part.cols;
    constexpr std::int64_t kElementsMax = kCompareBytes / 4;
    std::vector<std::byte> stored_bytes(static_cast<std::size_t>(kCompareBytes));
    std::array<std::vector<std::byte>, 2> values;  // in resident form
    for (std::int64_t at = part.whole_begin(); at < end; at += kElementsMax) {
        const std::int64_t num = std::min(kElementsMax, end - at);
        for (std::size_t i = 0; i < 2; ++i) {
            const checkpoint::StoredDtype dtype = both[i]->spec.dtype;
            const std::int64_t size = bytes_of(dtype);
            const std::span<std::byte> bytes(
                stored_bytes.data(), static_cast<std::size_t>(num * size)
            );
            RETURN_IF_ERROR(checkpoint_.read(*both[i], at * size, bytes));
            values[i].resize(static_cast<std::size_t>(bytes_of(embedding.encoding, num)));
            encode(embedding.encoding, dtype, bytes.data(), num, values[i].data());
        }
        if (values[0] == values[1]) continue;
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}': tie_word_embeddings is true, but '{}' differs from '{}': transformers 5 does "
            "not tie them, and older versions drop the first. Set tie_word_embeddings to false, or "
            "remove one of them",
            source,
            layout_.head_name(),
            embedding.name
        );
    }
    return Ok{};
}

std::vector<std::string> CheckpointTensors::notes() const {
    std::vector<std::string> notes;
    if (!left_out_.empty()) {
        notes.push_back(fmt::format(
            "{} tensor(s) that this model does not use are ignored: {}",
            left_out_.size(),
            shown(left_out_)
        ));
    }
    for (const checkpoint::StoredDtype dtype :
         {checkpoint::StoredDtype::kF32, checkpoint::StoredDtype::kF16}) {
        std::vector<std::string_view> rounded;
        for (const checkpoint::StoredTensor* stored : offered_) {
            const WeightTensor* const tensor = layout_.find_tied(stored->spec.name);
            const bool is_wide = tensor != nullptr && tensor->encoding == Encoding::kF32;
            if (stored->spec.dtype == dtype && !is_wide) rounded.push_back(stored->spec.name);
        }
        if (rounded.empty()) continue;
        notes.push_back(fmt::format(
            "{} tensor(s) of {} are rounded to BF16, their resident form, even with --compute "
            "fp32: {}",
            rounded.size(),
            name_of(dtype),
            shown(rounded)
        ));
    }
    return notes;
}

}  // namespace pitstop::tp_worker
