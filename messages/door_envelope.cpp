#include "messages/door_envelope.h"

#include "base/check.h"
#include "base/utf8.h"

#include <cstdint>
#include <optional>

namespace pitstop::messages {
namespace {

// Source: the msgpack specification. Numbers are big-endian.
constexpr std::string_view kName = "tree";
constexpr std::size_t kShortTextMax = 31;  // in bytes; a longer text has a separate length byte

std::uint8_t byte_at(std::string_view body, std::size_t at) {
    return static_cast<std::uint8_t>(body[at]);
}

// Returns the number in `size` bytes at `at`. REQUIRES: the body has these bytes.
std::uint64_t number_at(std::string_view body, std::size_t at, std::size_t size) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < size; ++i) number = number << 8 | byte_at(body, at + i);
    return number;
}

// The head of a value: its type and size, from its first bytes.
struct Head {
    std::size_t size = 1;      // bytes of the head itself
    std::uint64_t bytes = 0;   // bytes that follow the head
    std::uint64_t values = 0;  // values that follow those bytes
    bool is_map = false;
    bool is_text = false;
    bool is_nil = false;
};

// Returns nothing if the bytes are not msgpack, or end within the head.
std::optional<Head> head_at(std::string_view body, std::size_t at) {
    if (at >= body.size()) return std::nullopt;
    const std::uint8_t type = byte_at(body, at);
    // Returns the length of `size` bytes that follows some types.
    const auto sized = [&](std::size_t size) -> std::optional<std::uint64_t> {
        if (body.size() - at - 1 < size) return std::nullopt;
        return number_at(body, at + 1, size);
    };
    if (type < 0x80 || type >= 0xe0) return Head{};
    if (type < 0x90) return Head{.values = std::uint64_t{2} * (type & 0x0fu), .is_map = true};
    if (type < 0xa0) return Head{.values = type & 0x0fu};
    if (type < 0xc0) return Head{.bytes = type & 0x1fu, .is_text = true};
    if (type == 0xc0) return Head{.is_nil = true};
    if (type == 0xc1) return std::nullopt;  // an unused type
    if (type <= 0xc3) return Head{};
    if (type >= 0xcc && type <= 0xd3) return Head{.bytes = std::uint64_t{1} << (type & 3u)};
    if (type == 0xca || type == 0xcb) return Head{.bytes = type == 0xca ? 4u : 8u};
    if (type >= 0xd4 && type <= 0xd8)
        return Head{.bytes = 1 + (std::uint64_t{1} << (type - 0xd4u))};
    struct Sized {
        std::uint8_t first;
        // Bytes of the length for type `first`; each next type has twice as many.
        std::size_t size;
        std::uint64_t extra;
        std::uint64_t per_item;  // values per item; 0: the length counts bytes
        bool is_text;
        bool is_map;
        std::uint8_t last;
    };
    static constexpr Sized kKinds[] = {
        {0xc4, 1, 0, 0, false, false, 0xc6},  // bytes
        {0xc7, 1, 1, 0, false, false, 0xc9},  // extensions
        {0xd9, 1, 0, 0, true, false, 0xdb},   // texts
        {0xdc, 2, 0, 1, false, false, 0xdd},  // arrays
        {0xde, 2, 0, 2, false, true, 0xdf},   // maps
    };
    for (const Sized& kind : kKinds) {
        if (type < kind.first || type > kind.last) continue;
        const std::size_t size = kind.size << (type - kind.first);
        const std::optional<std::uint64_t> length = sized(size);
        if (!length) return std::nullopt;
        Head head{.size = 1 + size, .is_map = kind.is_map, .is_text = kind.is_text};
        (kind.per_item == 0 ? head.bytes : head.values) =
            *length * (kind.per_item == 0 ? 1 : kind.per_item) + kind.extra;
        return head;
    }
    return std::nullopt;
}

// Returns where the value at `at` ends, with all values inside it; nothing if it is not msgpack, or
// is incomplete.
std::optional<std::size_t> end_of(std::string_view body, std::size_t at) {
    // Every value has at least one byte, so the loop ends with the body. The sum cannot overflow: a
    // body of kBodyBytesMax has room for 2^26 heads, each of at most 2^33 values.
    for (std::uint64_t left = 1; left > 0; --left) {
        const std::optional<Head> head = head_at(body, at);
        if (!head || head->size + head->bytes > body.size() - at) return std::nullopt;
        at += head->size + static_cast<std::size_t>(head->bytes);
        left += head->values;
    }
    return at;
}

// Sets the number of entries in a map's head. The head keeps its size, because each format has a
// length of fixed size.
void set_entries(std::string& body, std::size_t head_size, std::uint64_t entries) {
    if (head_size == 1) {
        body[0] = static_cast<char>(0x80u | entries);
        return;
    }
    for (std::size_t i = head_size; --i > 0; entries >>= 8)
        body[i] = static_cast<char>(entries & 0xffu);
}

}  // namespace

void add_tree(Frames& frames, std::string_view tree) {
    std::string& body = frames.body;
    const std::optional<Head> head = head_at(body, 0);
    CHECK(head && head->is_map && kName.size() + 3 + tree.size() <= kTreeFieldBytesMax);
    const std::uint64_t entries = head->values / 2 + 1;
    constexpr std::uint64_t kShortMapMax = 15;
    if (head->size == 1 && entries > kShortMapMax) {
        body.replace(0, 1, std::string{'\xde', '\0', static_cast<char>(entries)});
    } else {
        set_entries(body, head->size, entries);
    }
    body += static_cast<char>(0xa0u | kName.size());
    body += kName;
    if (tree.size() > kShortTextMax) body += '\xd9';
    body += static_cast<char>(tree.size() > kShortTextMax ? tree.size() : 0xa0u | tree.size());
    body += tree;
}

Result<std::string> take_tree(Frames& frames) {
    std::string& body = frames.body;
    const std::optional<Head> map = head_at(body, 0);
    if (!map || !map->is_map) return std::string();
    std::size_t at = map->size;
    for (std::uint64_t i = 0; i < map->values / 2; ++i) {
        const std::optional<std::size_t> value = end_of(body, at);
        const std::optional<std::size_t> end = value ? end_of(body, *value) : std::nullopt;
        if (!end) return std::string();
        const Head key = *head_at(body, at);
        if (!key.is_text ||
            std::string_view(body).substr(at + key.size, *value - at - key.size) != kName) {
            at = *end;
            continue;
        }
        const Head head = *head_at(body, *value);
        std::string tree = body.substr(*value + head.size, static_cast<std::size_t>(head.bytes));
        body.erase(at, *end - at);
        set_entries(body, map->size, map->values / 2 - 1);
        if (head.is_nil) return std::string();
        if (!head.is_text) {
            return make_error(
                ErrorCode::kInvalidArgument, "{}: tree: expected a string", frames.type
            );
        }
        if (!is_utf8(tree))
            return make_error(ErrorCode::kInvalidArgument, "{}: tree is not UTF-8", frames.type);
        return tree;
    }
    return std::string();
}

}  // namespace pitstop::messages
