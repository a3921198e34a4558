#include "tp_worker/weights/stage_checks.h"

#include "base/log.h"
#include "base/utf8.h"
#include "tp_worker/weights/wrapped_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace pitstop::tp_worker {
namespace {

void check_declared(
    const WeightLayout& layout,
    const messages::TensorInfo& declared,
    std::vector<std::string>& problems
) {
    const WeightTensor* tensor = layout.find(declared.name);
    if (tensor == nullptr) {
        if (is_ignored_or_wrapped(layout, declared.name)) return;
        const std::string_view why =
            layout.is_tied_head(declared.name)
                ? "but is tied to the embedding: declare only the embedding"
                : "and is no tensor of this model";
        problems.push_back(fmt::format("'{}' is declared {}", declared.name, why));
        return;
    }
    if (!declared.shape.empty() && declared.shape != tensor->shape) {
        problems.push_back(fmt::format(
            "'{}' is declared as {}; the model has {}",
            declared.name,
            checkpoint::text_of(declared.shape),
            checkpoint::text_of(tensor->shape)
        ));
    }
    if (!declared.dtype.empty() && declared.dtype != name_of(tensor->encoding)) {
        problems.push_back(fmt::format(
            "'{}' is declared as {}; resident weights are {}",
            declared.name,
            declared.dtype,
            name_of(tensor->encoding)
        ));
    }
}

}  // namespace

std::vector<std::string> problems_of_manifest(
    const WeightLayout& layout, const std::vector<messages::TensorInfo>& manifest
) {
    std::vector<std::string> problems = wrapped_problems(layout, manifest);
    for (const messages::TensorInfo& declared : manifest)
        check_declared(layout, declared, problems);
    for (const WeightTensor& tensor : layout.tensors()) {
        if (!tensor.cuts_words) continue;
        problems.push_back(fmt::format(
            "'{}': the ranks' parts of its rows do not end between words of the digest", tensor.name
        ));
    }
    return problems;
}

std::map<std::string, std::string> other_names(
    const WeightLayout& layout, const std::vector<messages::TensorInfo>& manifest
) {
    std::map<std::string, std::string> names;
    for (const messages::TensorInfo& declared : manifest) {
        const WeightTensor* const tensor = layout.find(declared.name);
        if (tensor != nullptr && tensor->name != declared.name)
            names.emplace(declared.name, tensor->name);
    }
    return names;
}

std::optional<std::string> problem_of_padding(
    const WeightTensor& tensor, std::span<const std::byte> shard
) {
    std::int64_t num_rows = 0;
    for (const ShardPart& part : tensor.parts)
        num_rows = std::max(num_rows, part.shard_row + part.rows);
    const std::byte* const first = shard.data() + tensor.offset;
    const std::byte* const begin = first + num_rows * tensor.row_bytes();
    const std::byte* const end = first + tensor.bytes();
    if (std::all_of(begin, end, [](std::byte byte) { return byte == std::byte{0}; }))
        return std::nullopt;
    return fmt::format(
        "'{}': its padding, from row {} of the shard on, is not zero", tensor.name, num_rows
    );
}

std::optional<std::string> problem_of_indices(const SparseTensor& sparse) {
    std::int64_t num_elements = 1;
    for (const std::int64_t extent : sparse.spec.shape) num_elements *= extent;
    for (std::int64_t i = 0; i < sparse.num; ++i) {
        std::int32_t index = 0;
        std::memcpy(&index, sparse.indices + i * 4, sizeof index);
        if (index >= 0 && index < num_elements) continue;
        return fmt::format(
            "'{}': update {} is of element {}; the tensor has {}",
            sparse.spec.name,
            i,
            index,
            num_elements
        );
    }
    return std::nullopt;
}

std::optional<std::string> problem_of_tied_counts(
    const WeightLayout& layout, std::int64_t num_head, std::int64_t num_embedding
) {
    if (num_head == 0 || num_embedding == 0 || num_head == num_embedding) return std::nullopt;
    return fmt::format(
        "'{}' has {} updates, '{}' has {}: this model ties them (tie_word_embeddings is true)",
        layout.head_name(),
        num_head,
        layout.tied()->name,
        num_embedding
    );
}

std::string problem_of_empty(std::string_view adapter) {
    return fmt::format(
        "the update of {} is partial and brings no tensor; it must bring at least one, whole or "
        "sparse (a sparse one may have 0 updates)",
        adapter.empty() ? "the model" : fmt::format("adapter '{}'", printable(adapter))
    );
}

std::vector<const WeightTensor*> find_missing(
    const WeightLayout& layout, const std::vector<bool>& absent
) {
    std::vector<const WeightTensor*> missing;
    const std::span<const WeightTensor> tensors = layout.tensors();
    const bool has_any = std::ranges::find(absent, false) != absent.end();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::optional<std::size_t>& other = tensors[i].left_out_with;
        const bool is_left_out = has_any && other && absent[*other];
        if (absent[i] && !is_left_out) missing.push_back(&tensors[i]);
    }
    return missing;
}

void warn_of_left_out(
    const WeightLayout& layout, const std::vector<bool>& absent, const std::string& adapter
) {
    const auto first = std::ranges::find(absent, true);
    if (first == absent.end()) return;
    spdlog::warn(
        "{} tensor(s) of adapter '{}' are left out and count as zeros, the first '{}'",
        std::ranges::count(absent, true),
        printable(adapter),
        layout.tensors()[static_cast<std::size_t>(first - absent.begin())].name
    );
}

void report_missing(
    const std::vector<const WeightTensor*>& missing, messages::RankOutcome& outcome
) {
    outcome.num_missing = std::ssize(missing);
    for (const WeightTensor* const tensor : missing) {
        if (outcome.missing.size() == messages::kMissingShownMax) break;
        outcome.missing.push_back(tensor->name);
    }
}

void report(const Error& error, std::vector<std::string> problems, messages::RankOutcome& outcome) {
    outcome.code = error.code;
    outcome.problems = std::move(problems);
    if (outcome.problems.empty()) outcome.problems.push_back(error.message);
    outcome.num_problems = static_cast<std::int64_t>(outcome.problems.size());
    outcome.problems.resize(std::min(outcome.problems.size(), messages::kProblemsMax));
    // Problems may quote a sender's bytes, but a message's texts must be UTF-8.
    for (std::string& problem : outcome.problems) {
        if (!is_utf8(problem)) problem = printable(problem);
    }
}

}  // namespace pitstop::tp_worker
