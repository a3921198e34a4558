#include "messages/codec_impl.h"

#include <algorithm>

namespace pitstop::messages {
namespace codec {

std::string_view kind_of(const msgpack::object& object) {
    switch (object.type) {
        case msgpack::type::NIL:
            return "nil";
        case msgpack::type::BOOLEAN:
            return "a bool";
        case msgpack::type::POSITIVE_INTEGER:
        case msgpack::type::NEGATIVE_INTEGER:
            return "an integer";
        case msgpack::type::FLOAT32:
        case msgpack::type::FLOAT64:
            return "a float";
        case msgpack::type::STR:
            return "a string";
        case msgpack::type::BIN:
            return "bytes";
        case msgpack::type::ARRAY:
            return "an array";
        case msgpack::type::MAP:
            return "a map";
        case msgpack::type::EXT:
            return "an extension";
    }
    return "something else";
}

namespace {
bool stays_in_place(msgpack::type::object_type, std::size_t, void*) { return true; }
}  // namespace

Result<msgpack::object_handle> parse(const Frames& frames) {
    if (frames.body.size() > kBodyBytesMax) {
        return make_error(
            ErrorCode::kTooLarge,
            "{}: a body of {} bytes; at most {} are accepted",
            frames.type,
            frames.body.size(),
            kBodyBytesMax
        );
    }
    // An array or a map may declare no more entries than the body has bytes, so that a few bytes
    // cannot claim gigabytes.
    const std::size_t size = frames.body.size();
    const msgpack::unpack_limit limit(size, size, size, size, 0, kDepthMax);
    try {
        std::size_t offset = 0;
        msgpack::object_handle handle =
            msgpack::unpack(frames.body.data(), size, offset, stays_in_place, nullptr, limit);
        if (offset != size) {
            return make_error(
                ErrorCode::kMalformed,
                "{}: {} bytes follow the end of the body",
                frames.type,
                size - offset
            );
        }
        return handle;
    } catch (const std::exception& error) {  // msgpack-cxx reports malformed input by exceptions
        return make_error(
            ErrorCode::kMalformed, "{}: the body is not msgpack: {}", frames.type, error.what()
        );
    }
}

Decoder::Entries Decoder::entries_of(
    const msgpack::object_map& map, std::span<const std::string_view> names
) {
    Entries entries{map.ptr, map.ptr + map.size, true};
    const auto* kv = entries.begin;
    for (const std::string_view name : names) {
        if (kv != entries.end && has_name(*kv, name)) ++kv;
    }
    entries.is_in_order = kv == entries.end;
    if (!entries.is_in_order) check_names(entries, names);
    return entries;
}

void Decoder::check_names(const Entries& entries, std::span<const std::string_view> names) {
    for (const auto* kv = entries.begin; kv != entries.end; ++kv) {
        if (kv->key.type != msgpack::type::STR) return fail("a field name must be a string");
        const std::string_view name(kv->key.via.str.ptr, kv->key.via.str.size);
        const bool is_known = std::ranges::find(names, name) != names.end();
        if (!is_known && unknown_fields_ == UnknownFields::kRefuse) {
            const std::string_view shown = is_utf8(name) ? utf8_prefix(name, 64) : "(not UTF-8)";
            return fail("unknown field '{}'; known are {}", shown, fmt::join(names, ", "));
        }
        for (const auto* other = entries.begin; is_known && other != kv; ++other) {
            if (has_name(*other, name)) return fail("field '{}' appears twice", name);
        }
    }
}

}  // namespace codec

namespace {

const msgpack::object* find(const msgpack::object& map, std::string_view name) {
    if (map.type != msgpack::type::MAP) return nullptr;
    for (std::uint32_t i = 0; i < map.via.map.size; ++i) {
        const msgpack::object& key = map.via.map.ptr[i].key;
        if (key.type == msgpack::type::STR &&
            std::string_view(key.via.str.ptr, key.via.str.size) == name) {
            return &map.via.map.ptr[i].val;
        }
    }
    return nullptr;
}

std::string string_in(const msgpack::object& map, std::string_view name) {
    const msgpack::object* value = find(map, name);
    if (value == nullptr || value->type != msgpack::type::STR) return {};
    const std::string_view text(value->via.str.ptr, value->via.str.size);
    return is_utf8(text) ? std::string(text) : std::string{};
}

}  // namespace

std::string peek_string(const Frames& frames, std::string_view name) {
    const Result<msgpack::object_handle> handle = codec::parse(frames);
    return handle ? string_in(handle->get(), name) : std::string{};
}

std::string peek_string(const Frames& frames, std::string_view parent, std::string_view name) {
    const Result<msgpack::object_handle> handle = codec::parse(frames);
    const msgpack::object* map = handle ? find(handle->get(), parent) : nullptr;
    return map != nullptr ? string_in(*map, name) : std::string{};
}

std::uint64_t peek_uint(const Frames& frames, std::string_view name) {
    const Result<msgpack::object_handle> handle = codec::parse(frames);
    if (!handle) return 0;
    const msgpack::object* value = find(handle->get(), name);
    return value != nullptr && value->type == msgpack::type::POSITIVE_INTEGER ? value->via.u64 : 0;
}

}  // namespace pitstop::messages
