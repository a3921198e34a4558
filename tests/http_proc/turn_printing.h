// Prints the parts of a turn in a failed test.
#pragma once

#include "http_proc/format/turn_pieces.h"

#include <ostream>

namespace pitstop::http {

inline void PrintTo(const TurnItem& item, std::ostream* out) {
    *out << item.text << '|' << item.call.name << item.call.arguments << item.call.id;
}
inline void PrintTo(const TurnPiece& piece, std::ostream* out) {
    *out << static_cast<int>(piece.kind) << ':' << piece.text << '/' << piece.written;
}

}  // namespace pitstop::http
