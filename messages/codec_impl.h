// The codec's implementation. Only codec.cpp includes this file, and door_codecs.cpp and
// tree_codecs.cpp, which instantiate the codec for all messages.
//
// Decoding reads msgpack-cxx's object tree under limits on every size and depth, so that the bytes
// received bound the memory. Then it fills the struct field by field. An error names the path of
// the wrong field ("sampling.top_p: expected a number, got a string").
#pragma once

#include "base/utf8.h"
#include "messages/checks.h"
#include "messages/codec.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/message_list.h"

#include <msgpack.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace pitstop::messages::codec {

using Packer = msgpack::packer<msgpack::sbuffer>;

template <class T>
concept Fielded = requires(T& value) {
    value.fields([](auto&&...) {});
};

template <class T>
bool is_left_out(const T&) {
    return false;
}
inline bool is_left_out(const std::string& value) { return value.empty(); }
template <class T>
bool is_left_out(const std::vector<T>& value) {
    return value.empty();
}
template <class K, class V>
bool is_left_out(const std::map<K, V>& value) {
    return value.empty();
}
template <class T>
bool is_left_out(const std::optional<T>& value) {
    return !value.has_value();
}
template <class T>
bool is_left_out(const RawArray<T>& value) {
    return value.values.empty();
}
template <class T>
bool is_left_out(const RawPart<T>& value) {
    return value.values.empty();
}

// Returns the names that fields() lists, in order. The list is never freed, because a thread may
// decode while the process ends.
template <Fielded T>
std::span<const std::string_view> names_of() {
    static const auto* const names = [] {
        auto* list = new std::vector<std::string_view>;
        T{}.fields([&](std::string_view name, const auto&, std::string_view) {
            list->push_back(name);
        });
        return list;
    }();
    return *names;
}

struct Encoder {
    Packer& packer;
    std::vector<std::string>& raw;
    std::optional<std::size_t> parts_frame{};  // the number of the frame that all RawParts share

    void put(bool value) { packer.pack(value); }
    void put(std::int32_t value) { packer.pack(value); }
    void put(std::int64_t value) { packer.pack(value); }
    void put(std::uint64_t value) { packer.pack(value); }
    // Writes the same type whatever the value is: pack_float would write a whole number as an
    // integer, and -0 as 0.
    void put(float value) { put_big_endian('\xca', std::bit_cast<std::uint32_t>(value)); }
    void put(double value) { put_big_endian('\xcb', std::bit_cast<std::uint64_t>(value)); }
    void put(const std::string& value) {
        packer.pack_str(static_cast<std::uint32_t>(value.size()));
        packer.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
    }
    template <class E>
    requires std::is_enum_v<E>
    void put(E value) {
        if constexpr (NamedEnum<E>) {
            put(std::string(name_of(value)));
        } else {
            put(static_cast<std::underlying_type_t<E>>(value));
        }
    }
    template <class T>
    void put(const std::optional<T>& value) {
        put(*value);  // an absent one was skipped before
    }
    template <class T>
    void put(const std::vector<T>& values) {
        packer.pack_array(static_cast<std::uint32_t>(values.size()));
        for (const T& value : values) put(value);
    }
    template <class K, class V>
    void put(const std::map<K, V>& values) {
        packer.pack_map(static_cast<std::uint32_t>(values.size()));
        for (const auto& [key, value] : values) put(key), put(value);
    }
    template <class T>
    void put(const RawArray<T>& array) {
        put(static_cast<std::int64_t>(raw.size()));
        const auto* bytes = reinterpret_cast<const char*>(array.values.data());
        raw.emplace_back(bytes, array.values.size() * sizeof(T));
    }
    template <class T>
    void put(const RawPart<T>& array) {
        if (!parts_frame) {
            parts_frame = raw.size();
            raw.emplace_back();
        }
        std::string& frame = raw[*parts_frame];
        packer.pack_array(3);
        put(static_cast<std::int64_t>(*parts_frame));
        put(static_cast<std::int64_t>(frame.size()));
        put(static_cast<std::int64_t>(array.values.size()));
        const auto* bytes = reinterpret_cast<const char*>(array.values.data());
        frame.append(bytes, array.values.size() * sizeof(T));
    }
    template <Fielded T>
    void put(const T& value) {
        auto& fields_of = const_cast<T&>(value);  // fields() does not write here
        std::uint32_t num_fields = 0;
        fields_of.fields([&](std::string_view, auto& field, std::string_view) {
            if (!is_left_out(field)) ++num_fields;
        });
        packer.pack_map(num_fields);
        fields_of.fields([&](std::string_view name, auto& field, std::string_view) {
            if (is_left_out(field)) return;
            packer.pack_str(static_cast<std::uint32_t>(name.size()));
            packer.pack_str_body(name.data(), static_cast<std::uint32_t>(name.size()));
            put(field);
        });
    }

  private:
    template <class Bits>
    void put_big_endian(char head, Bits bits) {
        char bytes[1 + sizeof(Bits)] = {head};
        for (std::size_t i = sizeof(Bits); i > 0; --i, bits >>= 8) {
            bytes[i] = static_cast<char>(bits & 0xff);
        }
        packer.pack_bin_body(bytes, sizeof bytes);  // appends the bytes unchanged
    }
};

std::string_view kind_of(const msgpack::object& object);

class Decoder {
  public:
    Decoder(const std::vector<std::string>& raw, UnknownFields unknown_fields)
        : raw_(raw), unknown_fields_(unknown_fields) {
        for (const std::string& frame : raw) part_bytes_left_ += std::ssize(frame);
    }

    [[nodiscard]] const std::optional<Error>& error() const { return error_; }

    void get(const msgpack::object& object, bool& value) {
        if (object.type != msgpack::type::BOOLEAN) return expected("a bool", object);
        value = object.via.boolean;
    }
    void get(const msgpack::object& object, std::int32_t& value) {
        std::int64_t wide = 0;
        get(object, wide);
        if (wide < std::numeric_limits<std::int32_t>::min() ||
            wide > std::numeric_limits<std::int32_t>::max()) {
            return fail("{} does not fit into 32 bits", wide);
        }
        value = static_cast<std::int32_t>(wide);
    }
    void get(const msgpack::object& object, std::int64_t& value) {
        if (object.type == msgpack::type::NEGATIVE_INTEGER) {
            value = object.via.i64;
        } else if (object.type == msgpack::type::POSITIVE_INTEGER) {
            if (object.via.u64 >
                static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
                return fail("{} does not fit into 63 bits", object.via.u64);
            }
            value = static_cast<std::int64_t>(object.via.u64);
        } else {
            expected("an integer", object);
        }
    }
    void get(const msgpack::object& object, std::uint64_t& value) {
        if (object.type != msgpack::type::POSITIVE_INTEGER)
            return expected("an integer of at least 0", object);
        value = object.via.u64;
    }
    void get(const msgpack::object& object, double& value) {
        switch (object.type) {
            case msgpack::type::FLOAT32:
            case msgpack::type::FLOAT64:
                value = object.via.f64;
                return;
            case msgpack::type::POSITIVE_INTEGER:
                value = static_cast<double>(object.via.u64);
                return;
            case msgpack::type::NEGATIVE_INTEGER:
                value = static_cast<double>(object.via.i64);
                return;
            default:
                expected("a number", object);
        }
    }
    void get(const msgpack::object& object, float& value) {
        double wide = 0;
        get(object, wide);
        value = static_cast<float>(wide);
    }
    void get(const msgpack::object& object, std::string& value) {
        if (object.type != msgpack::type::STR) return expected("a string", object);
        const std::string_view text(object.via.str.ptr, object.via.str.size);
        if (!is_utf8(text)) return fail("not valid UTF-8");
        value = text;
    }
    template <class E>
    requires std::is_enum_v<E>
    void get(const msgpack::object& object, E& value) {
        if constexpr (NamedEnum<E>) {
            std::string name;
            get(object, name);
            if (error_) return;
            for (std::size_t i = 0; i < EnumNames<E>::kNames.size(); ++i) {
                if (EnumNames<E>::kNames[i] == name) {
                    value = static_cast<E>(i);
                    return;
                }
            }
            fail(
                "'{}' is not one of {}",
                utf8_prefix(name, 64),
                fmt::join(EnumNames<E>::kNames, ", ")
            );
        } else {
            std::underlying_type_t<E> number{};
            get(object, number);
            value = static_cast<E>(number);
        }
    }
    // An unknown name is an error even from a newer peer, unlike an unknown field.
    void get(const msgpack::object& object, ErrorCode& code) {
        std::string name;
        get(object, name);
        code = error_code_named(name);
    }
    template <class T>
    void get(const msgpack::object& object, std::optional<T>& value) {
        if (object.type == msgpack::type::NIL) return value.reset();
        get(object, value.emplace());
    }
    template <class T>
    void get(const msgpack::object& object, std::vector<T>& values) {
        if (object.type != msgpack::type::ARRAY) return expected("an array", object);
        values.resize(object.via.array.size);
        for (std::uint32_t i = 0; i < object.via.array.size && !error_; ++i) {
            const Step step(*this, i);
            get(object.via.array.ptr[i], values[i]);
        }
    }
    template <class K, class V>
    void get(const msgpack::object& object, std::map<K, V>& values) {
        if (object.type != msgpack::type::MAP) return expected("a map", object);
        for (std::uint32_t i = 0; i < object.via.map.size && !error_; ++i) {
            const Step step(*this, i);
            K key{};
            get(object.via.map.ptr[i].key, key);
            if (error_) return;
            const auto [place, is_new] = values.try_emplace(std::move(key));
            if (!is_new) return fail("appears twice");
            get(object.via.map.ptr[i].val, place->second);
        }
    }
    template <class T>
    void get(const msgpack::object& object, RawArray<T>& array) {
        std::int64_t frame = -1;
        get(object, frame);
        if (error_ || !has_frame(frame)) return;
        const std::string& bytes = raw_[static_cast<std::size_t>(frame)];
        if (bytes.size() % sizeof(T) != 0) {
            return fail(
                "raw frame {} has {} bytes, not a multiple of {}", frame, bytes.size(), sizeof(T)
            );
        }
        array.values.resize(bytes.size() / sizeof(T));
        if (!bytes.empty()) std::memcpy(array.values.data(), bytes.data(), bytes.size());
    }
    template <class T>
    void get(const msgpack::object& object, RawPart<T>& array) {
        std::vector<std::int64_t> place;
        get(object, place);
        if (error_) return;
        if (place.size() != 3)
            return fail("expected [frame, begin, count], got {} numbers", place.size());
        const std::int64_t frame = place[0], begin = place[1], count = place[2];
        if (!has_frame(frame)) return;
        const std::string& bytes = raw_[static_cast<std::size_t>(frame)];
        const auto size = static_cast<std::int64_t>(bytes.size());
        constexpr auto kWidth = std::int64_t{sizeof(T)};
        if (begin < 0 || begin > size || count < 0 || count > (size - begin) / kWidth) {
            return fail(
                "{} elements from byte {} of raw frame {} are named; the frame has {} bytes",
                count,
                begin,
                frame,
                size
            );
        }
        part_bytes_left_ -= count * kWidth;
        if (part_bytes_left_ < 0)
            return fail("the parts up to this one have more bytes than the raw frames");
        array.values.resize(static_cast<std::size_t>(count));
        if (count > 0)
            std::memcpy(
                array.values.data(), bytes.data() + begin, static_cast<std::size_t>(count * kWidth)
            );
    }
    template <Fielded T>
    void get(const msgpack::object& object, T& value) {
        if (object.type != msgpack::type::MAP) return expected("a map", object);
        Entries entries = entries_of(object.via.map, names_of<T>());
        value.fields([&](std::string_view name, auto& field, std::string_view) {
            const msgpack::object* found = error_ ? nullptr : entries.next(name);
            if (found == nullptr) return;
            const Step step(*this, name);
            get(*found, field);
        });
    }

    template <class... Args>
    void fail(fmt::format_string<Args...> format, Args&&... args) {
        if (error_) return;
        std::string message = path();
        if (!message.empty()) message += ": ";
        message += fmt::format(format, std::forward<Args>(args)...);
        error_ = Error{ErrorCode::kInvalidArgument, std::move(message)};
    }

  private:
    bool has_frame(std::int64_t frame) {
        if (frame >= 0 && frame < static_cast<std::int64_t>(raw_.size())) return true;
        fail("raw frame {} is named; the message has {} of them", frame, raw_.size());
        return false;
    }

    // While it exists, a field or element is being read; records the path for errors.
    class Step {
      public:
        Step(Decoder& decoder, std::string_view name)
            : decoder_(decoder), outer_(decoder.step_), name_(name) {
            decoder_.step_ = this;
        }
        Step(Decoder& decoder, std::uint32_t index)
            : decoder_(decoder), outer_(decoder.step_), index_(index) {
            decoder_.step_ = this;
        }
        ~Step() { decoder_.step_ = outer_; }
        Step(const Step&) = delete;
        Step& operator=(const Step&) = delete;

        [[nodiscard]] std::string path() const {
            std::string text = outer_ == nullptr ? "" : outer_->path();
            if (name_.empty()) return text + fmt::format("[{}]", index_);
            if (!text.empty()) text += '.';
            return text.append(name_);
        }

      private:
        Decoder& decoder_;
        const Step* outer_;
        std::string_view name_{};  // empty: the step is to the element at index_
        std::uint32_t index_ = 0;
    };

    [[nodiscard]] std::string path() const { return step_ == nullptr ? "" : step_->path(); }

    static bool has_name(const msgpack::object_kv& kv, std::string_view name) {
        return kv.key.type == msgpack::type::STR &&
               std::string_view(kv.key.via.str.ptr, kv.key.via.str.size) == name;
    }
    // The entries of a map, from which a struct is filled.
    struct Entries {
        const msgpack::object_kv* begin;
        const msgpack::object_kv* end;
        // our own encoder keeps the order of fields(), so one pass is enough
        bool is_in_order;

        // Returns the field's value, or null. Call in the order of fields().
        const msgpack::object* next(std::string_view name) {
            if (is_in_order) {
                return begin != end && has_name(*begin, name) ? &(begin++)->val : nullptr;
            }
            for (const auto* kv = begin; kv != end; ++kv) {
                if (has_name(*kv, name)) return &kv->val;
            }
            return nullptr;
        }
    };
    // Fails if a name is not in `names`, or appears twice.
    Entries entries_of(const msgpack::object_map& map, std::span<const std::string_view> names);
    void check_names(const Entries& entries, std::span<const std::string_view> names);

    void expected(std::string_view what, const msgpack::object& object) {
        fail("expected {}, got {}", what, kind_of(object));
    }

    const std::vector<std::string>& raw_;
    UnknownFields unknown_fields_;
    // bytes of all raw frames, minus those of the parts that were read
    std::int64_t part_bytes_left_ = 0;
    const Step* step_ = nullptr;  // the innermost step
    std::optional<Error> error_{};
};

// Parses a body under the limits. Errors: kMalformed. The result refers to texts in `frames`, which
// must outlive it.
Result<msgpack::object_handle> parse(const Frames& frames);

template <class Message>
concept Validated = requires(const Message& message) {
    invalid(message);
};

}  // namespace pitstop::messages::codec

namespace pitstop::messages {

template <class Message>
Frames encode(const Message& message) {
    Frames frames;
    frames.type = Message::kType;
    msgpack::sbuffer buffer(512);
    codec::Packer packer(buffer);
    codec::Encoder{packer, frames.raw}.put(message);
    frames.body.assign(buffer.data(), buffer.size());
    return frames;
}

template <class Message>
Result<Message> decode(const Frames& frames, UnknownFields unknown_fields) {
    CHECK(frames.type == Message::kType);
    ASSIGN_OR_RETURN(const msgpack::object_handle handle, codec::parse(frames));
    Message message;
    codec::Decoder decoder(frames.raw, unknown_fields);
    decoder.get(handle.get(), message);
    if (decoder.error()) {
        return make_error(
            decoder.error()->code, "{}: {}", Message::kType, decoder.error()->message
        );
    }
    std::optional<std::string> problem;
    if constexpr (ControlCall<Message>) problem = invalid_call(message.call, message.timeout_ms);
    if constexpr (codec::Validated<Message>) {
        if (!problem) problem = invalid(message);
    }
    if (problem) return make_error(ErrorCode::kInvalidArgument, "{}: {}", Message::kType, *problem);
    return message;
}

// Instantiates the codecs of a list: `template struct Codecs<List>;`
template <class List>
struct Codecs;
template <class... Messages>
struct Codecs<MessageList<Messages...>> {
    static constexpr std::tuple kEncode{&encode<Messages>...};
    static constexpr std::tuple kDecode{&decode<Messages>...};
};

}  // namespace pitstop::messages
