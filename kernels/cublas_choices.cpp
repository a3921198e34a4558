#include "kernels/cublas_choices.h"

#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <unistd.h>

namespace pitstop::kernels {
namespace {

constexpr std::string_view kFirstLine = "pitstop linear choices 1\n";
constexpr std::string_view kLastWord = "check ";
constexpr std::uintmax_t kFileBytesMax = 1 << 20;
constexpr std::size_t kKeyNumbers = 10;
constexpr std::size_t kWords = sizeof(cublasLtMatmulAlgo_t::data) / sizeof(std::uint64_t);
static_assert(sizeof(cublasLtMatmulAlgo_t) == kWords * sizeof(std::uint64_t));

std::string head_of(const CudaDeviceInfo& device) {
    return fmt::format(
        "{}device {}\ndriver {}\nruntime {}\ncublasLt {}\n",
        kFirstLine,
        device.name,
        device.driver_version,
        device.runtime_version,
        device.cublas_lt_version
    );
}

// FNV-1a of 64 bits (draft-eastlake-fnv-17) detects truncation and damage. Protection against
// forgery is not needed: the user owns the directory.
std::string check_of(std::string_view text) {
    std::uint64_t sum = 0xcbf29ce484222325u;
    for (const char byte : text) {
        sum ^= static_cast<unsigned char>(byte);
        sum *= 0x100000001b3u;
    }
    return fmt::format("{}{:016x}\n", kLastWord, sum);
}

std::string line_of(const CublasKey& key, const cublasLtMatmulAlgo_t& algo) {
    std::string line = fmt::format(
        "{} {} {} {} {} {} {} {} {} {}",
        key.bucket,
        key.N,
        key.K,
        key.x_stride,
        key.w_stride,
        key.y_stride,
        key.y_dtype == DType::kF32 ? 0 : 1,
        key.has_bias ? 1 : 0,
        key.y_alignment,
        key.workspace_bytes
    );
    for (const std::uint64_t word : algo.data) line += fmt::format(" {:016x}", word);
    return line + "\n";
}

template <class Number>
bool take_number(std::string_view& text, int base, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.starts_with(' ')) text.remove_prefix(1);
    return true;
}

bool take_line(std::string_view line, CublasChoices& choices) {
    std::array<std::int64_t, kKeyNumbers> numbers{};
    for (std::int64_t& number : numbers) {
        if (!take_number(line, 10, number) || number < 0) return false;
    }
    cublasLtMatmulAlgo_t algo{};
    for (std::uint64_t& word : algo.data) {
        if (!take_number(line, 16, word)) return false;
    }
    if (!line.empty() || numbers[6] > 1 || numbers[7] > 1 || numbers[8] > 256) return false;
    const CublasKey key{
        .bucket = numbers[0],
        .N = numbers[1],
        .K = numbers[2],
        .x_stride = numbers[3],
        .w_stride = numbers[4],
        .y_stride = numbers[5],
        .y_dtype = numbers[6] == 0 ? DType::kF32 : DType::kBF16,
        .has_bias = numbers[7] == 1,
        .y_alignment = static_cast<std::uint32_t>(numbers[8]),
        .workspace_bytes = numbers[9],
    };
    choices[key] = algo;
    return true;
}

}  // namespace

std::string choices_path(const std::string& directory, const CudaDeviceInfo& device) {
    std::string name = fmt::format(
        "linear-{}-{}-{}.txt", device.name, device.driver_version, device.cublas_lt_version
    );
    for (char& c : name) {
        if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
    }
    return (std::filesystem::path(directory) / name).string();
}

Result<CublasChoices> read_choices(const std::string& path, const CudaDeviceInfo& device) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error) return make_error(ErrorCode::kNotFound, "'{}': {}", path, error.message());
    const auto damaged = [&](std::string_view what) {
        return make_error(ErrorCode::kInvalidArgument, "'{}': {}", path, what);
    };
    if (size > kFileBytesMax) return damaged("too large for a file of choices");
    std::ostringstream content;
    content << std::ifstream(path, std::ios::binary).rdbuf();
    const std::string whole = content.str();
    const std::string head = head_of(device);
    if (!whole.starts_with(head)) return damaged("of another device, driver or library");
    const std::size_t last = whole.rfind(kLastWord);
    if (last == std::string::npos || whole.substr(last) != check_of(whole.substr(0, last)))
        return damaged("its last line, a checksum, does not match the others");
    CublasChoices choices;
    std::string_view left = std::string_view(whole).substr(head.size(), last - head.size());
    while (!left.empty()) {
        const std::size_t end = left.find('\n');
        if (end == std::string_view::npos || choices.size() == kChoicesMax ||
            !take_line(left.substr(0, end), choices))
            return damaged(fmt::format("not a choice: '{}'", left.substr(0, end)));
        left.remove_prefix(end + 1);
    }
    return choices;
}

Result<> write_choices(
    const std::string& path, const CudaDeviceInfo& device, const CublasChoices& choices
) {
    std::string text = head_of(device);
    for (const auto& [key, algo] : choices) text += line_of(key, algo);
    text += check_of(text);
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    const std::string draft = fmt::format("{}.{}", path, ::getpid());
    {
        std::ofstream file(draft, std::ios::binary);
        file << text;
        if (!file.flush()) {
            return make_error(ErrorCode::kUnavailable, "'{}' cannot be written", draft);
        }
    }
    std::filesystem::rename(draft, path, error);
    if (!error) return Ok{};
    std::error_code ignored;
    std::filesystem::remove(draft, ignored);
    return make_error(ErrorCode::kUnavailable, "'{}' cannot be written: {}", path, error.message());
}

}  // namespace pitstop::kernels
