// The header of a numpy array file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pitstop::http {

// Returns the header of an .npy file, format 1.0, in C order. `code` is numpy's name of the element
// type, such as "<f4". The size is a multiple of 64, as numpy writes it, and of 3, so that no group
// of base64 is open after it.
[[nodiscard]] std::string npy_header(std::string_view code, std::span<const std::int64_t> shape);

}  // namespace pitstop::http
