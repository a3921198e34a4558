#include "bench/workload.h"

#include "base/mapped_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace pitstop::bench {
namespace {

constexpr std::int64_t kLengthMax = std::int64_t{1} << 22;
constexpr double kSigmaMax = 5;
constexpr std::size_t kLengthFileBytesMax = std::size_t{64} << 20;

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (true) {
        const std::size_t at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == text.npos) return parts;
        text.remove_prefix(at + 1);
    }
}

template <class Number>
std::optional<Number> number(std::string_view text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::optional<std::int64_t> length(std::string_view text) {
    const auto value = number<std::int64_t>(text);
    return value && *value >= 1 && *value <= kLengthMax ? value : std::nullopt;
}

Result<std::vector<std::int64_t>> read_lengths(const std::string& path) {
    ASSIGN_OR_RETURN(const std::string text, MappedFile::read(path, kLengthFileBytesMax));
    std::vector<std::int64_t> lengths;
    for (const std::string_view line : split(text, '\n')) {
        if (line.empty()) continue;
        const auto value = length(line);
        if (!value) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "{}: '{}' is not a length from 1 to {}",
                path,
                line.substr(0, 40),
                kLengthMax
            );
        }
        lengths.push_back(*value);
    }
    if (lengths.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "{} has no lengths", path);
    }
    return lengths;
}

}  // namespace

void append_tokens(
    Random& random, std::int64_t count, std::int64_t vocab, std::vector<TokenId>& to
) {
    for (std::int64_t i = 0; i < count; ++i)
        to.push_back(static_cast<TokenId>(random.integer(0, vocab - 1)));
}

Result<LengthDistribution> LengthDistribution::parse(std::string_view text) {
    LengthDistribution made;
    made.text_ = text;
    const std::vector<std::string_view> parts = split(text, ':');
    const std::string_view kind = parts[0];
    if (kind == "file" && parts.size() >= 2) {
        made.kind_ = Kind::kFile;
        ASSIGN_OR_RETURN(made.from_file_, read_lengths(std::string(text.substr(5))));
        return made;
    }
    if (kind == "lognormal" && parts.size() == 3) {
        const auto median = number<double>(parts[1]);
        const auto sigma = number<double>(parts[2]);
        if (median && *median >= 1 && *median <= static_cast<double>(kLengthMax) && sigma &&
            *sigma >= 0 && *sigma <= kSigmaMax) {
            made.kind_ = Kind::kLognormal;
            made.median_ = *median;
            made.sigma_ = *sigma;
            return made;
        }
    }
    std::optional<std::int64_t> low, high;
    if (parts.size() == 1) low = high = length(text);
    if (kind == "fixed" && parts.size() == 2) low = high = length(parts[1]);
    if (kind == "uniform" && parts.size() == 3) low = length(parts[1]), high = length(parts[2]);
    if (!low || !high || *low > *high) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' is not a length distribution: N, fixed:N, uniform:LOW:HIGH, "
            "lognormal:MEDIAN:SIGMA (sigma up to {}) or file:PATH, lengths from 1 to {}",
            text,
            kSigmaMax,
            kLengthMax
        );
    }
    made.low_ = *low;
    made.high_ = *high;
    return made;
}

std::int64_t LengthDistribution::draw(Random& random, std::size_t index) const {
    switch (kind_) {
        case Kind::kUniform:
            return random.integer(low_, high_);
        case Kind::kFile:
            return from_file_[index % from_file_.size()];
        case Kind::kLognormal:
            break;
    }
    const double drawn = std::round(median_ * std::exp(sigma_ * random.normal()));
    return static_cast<std::int64_t>(std::clamp(drawn, 1.0, static_cast<double>(kLengthMax)));
}

Result<Workload> make_workload(const WorkloadArgs& args) {
    if (args.num_requests < 1 || args.num_requests > kRequestsMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} requests; a workload has 1 to {}",
            args.num_requests,
            kRequestsMax
        );
    }
    if (args.shared_prefix_len < 0 || args.prefix_groups < 1) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a shared prefix must have 0 or more tokens and 1 or more groups"
        );
    }
    const std::int64_t room = args.context_len - args.shared_prefix_len;
    if (room < 2) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a shared prefix of {} tokens leaves no room in the context of {}",
            args.shared_prefix_len,
            args.context_len
        );
    }
    Workload workload;
    Random lengths(args.seed);
    Random arrivals(args.seed + 1);
    double at_s = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(args.num_requests); ++i) {
        const std::int64_t prompt_drawn = args.prompt_len.draw(lengths, i);
        const std::int64_t output_drawn = args.output_len.draw(lengths, i);
        const std::int64_t prompt_len = std::min(prompt_drawn, room - 1);
        PlannedRequest request{.output_len = std::min(output_drawn, room - prompt_len)};
        if (prompt_len != prompt_drawn || request.output_len != output_drawn) ++workload.num_cut;

        workload.prompt_tokens += args.shared_prefix_len + prompt_len;
        workload.output_tokens += request.output_len;
        if (workload.prompt_tokens > kWorkloadTokensMax ||
            workload.output_tokens > kWorkloadTokensMax) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "a workload holds at most {} tokens of prompts and as many of outputs",
                kWorkloadTokensMax
            );
        }
        const auto group =
            static_cast<std::uint64_t>(i) % static_cast<std::uint64_t>(args.prefix_groups);
        Random prefix(mix64(args.seed + 2) + group);
        Random own(mix64(args.seed + 3) + i);
        append_tokens(prefix, args.shared_prefix_len, args.vocab, request.prompt);
        append_tokens(own, prompt_len, args.vocab, request.prompt);
        if (args.rate) {
            request.arrival =
                std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at_s));
            at_s += arrivals.exponential() / *args.rate;
        }
        workload.requests.push_back(std::move(request));
    }
    return workload;
}

}  // namespace pitstop::bench
