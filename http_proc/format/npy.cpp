#include "http_proc/format/npy.h"

#include <fmt/format.h>

#include <cstddef>

namespace pitstop::http {

std::string npy_header(std::string_view code, std::span<const std::int64_t> shape) {
    constexpr std::size_t kMultiple = std::size_t{3} * 64;
    constexpr std::size_t kFixedBytes = 10;  // the magic, the version and the length
    std::string about = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", code);
    for (const std::int64_t& size : shape)
        about += fmt::format("{}{}", &size == shape.data() ? "" : ", ", size);
    about += "), }";
    const std::size_t num_least = kFixedBytes + about.size() + 1;
    about.append((kMultiple - num_least % kMultiple) % kMultiple, ' ');
    about += '\n';
    std::string header("\x93NUMPY\x01\x00", 8);
    header += static_cast<char>(about.size() & 0xff);
    header += static_cast<char>(about.size() >> 8);
    return header + about;
}

}  // namespace pitstop::http
