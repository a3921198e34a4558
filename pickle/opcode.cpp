#include "pickle/opcode.h"

#include <array>
#include <utility>

namespace pitstop::pickle {

std::string_view name_of(std::uint8_t opcode) {
    static constexpr std::array<std::pair<char, std::string_view>, 34> kNames{{
        {'0', "POP"},
        {'1', "POP_MARK"},
        {'2', "DUP"},
        {'F', "FLOAT"},
        {'G', "BINFLOAT"},
        {'I', "INT"},
        {'L', "LONG"},
        {'P', "PERSID"},
        {'Q', "BINPERSID"},
        {'S', "STRING"},
        {'T', "BINSTRING"},
        {'U', "SHORT_BINSTRING"},
        {'V', "UNICODE"},
        {'c', "GLOBAL"},
        {'d', "DICT"},
        {'g', "GET"},
        {'i', "INST"},
        {'l', "LIST"},
        {'o', "OBJ"},
        {'p', "PUT"},
        {'q', "BINPUT"},
        {'r', "LONG_BINPUT"},
        {'\x82', "EXT1"},
        {'\x83', "EXT2"},
        {'\x84', "EXT4"},
        {'\x8b', "LONG4"},
        {'\x8d', "BINUNICODE8"},
        {'\x8e', "BINBYTES8"},
        {'\x8f', "EMPTY_SET"},
        {'\x90', "ADDITEMS"},
        {'\x91', "FROZENSET"},
        {'\x92', "NEWOBJ_EX"},
        {'\x96', "BYTEARRAY8"},
        {'\x97', "NEXT_BUFFER"},
    }};
    for (const auto& [byte, name] : kNames) {
        if (static_cast<std::uint8_t>(byte) == opcode) return name;
    }
    return "an unknown opcode";
}

}  // namespace pitstop::pickle
