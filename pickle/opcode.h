// The opcodes of a pickle, with pickletools' names.
#pragma once

#include <cstdint>
#include <string_view>

namespace pitstop::pickle {

// The opcodes that the reader accepts.
enum Opcode : std::uint8_t {
    kMark = '(',
    kStop = '.',
    kBinInt = 'J',
    kBinInt1 = 'K',
    kBinInt2 = 'M',
    kGlobal = 'c',
    kNone = 'N',
    kBinPersId = 'Q',
    kReduce = 'R',
    kBinUnicode = 'X',
    kAppend = 'a',
    kAppends = 'e',
    kBinGet = 'h',
    kLongBinGet = 'j',
    kBinPut = 'q',
    kLongBinPut = 'r',
    kSetItem = 's',
    kTuple = 't',
    kSetItems = 'u',
    kBuild = 'b',
    kEmptyTuple = ')',
    kEmptyList = ']',
    kEmptyDict = '}',
    kBinBytes = 'B',
    kShortBinBytes = 'C',
    kProto = 0x80,
    kNewObj = 0x81,
    kTuple1 = 0x85,
    kTuple2 = 0x86,
    kTuple3 = 0x87,
    kNewTrue = 0x88,
    kNewFalse = 0x89,
    kLong1 = 0x8a,
    kShortBinUnicode = 0x8c,
    kStackGlobal = 0x93,
    kMemoize = 0x94,
    kFrame = 0x95,
};

// Returns pickletools' name of a refused opcode, for the error.
std::string_view name_of(std::uint8_t opcode);

}  // namespace pitstop::pickle
