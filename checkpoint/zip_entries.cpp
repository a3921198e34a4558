#include "checkpoint/zip_entries.h"

#include "checkpoint/open_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace pitstop::checkpoint {
namespace {

constexpr std::string_view kEndMark = "PK\5\6";
constexpr std::string_view kEnd64Mark = "PK\6\6";
constexpr std::string_view kLocatorMark = "PK\6\7";
constexpr std::string_view kEntryMark = "PK\1\2";
constexpr std::string_view kLocalMark = "PK\3\4";
constexpr std::int64_t kEndBytes = 22;  // without the comment
constexpr std::int64_t kEnd64Bytes = 56;
constexpr std::int64_t kLocatorBytes = 20;
constexpr std::size_t kEntryBytes = 46;  // without name, extra field and comment
constexpr std::int64_t kLocalBytes = 30;
constexpr std::int64_t kCommentBytesMax = 65'535;
constexpr std::uint16_t kIsEncrypted = 1;
constexpr std::uint16_t kZip64Field = 1;
constexpr std::uint32_t kIn64 = 0xffff'ffff;  // the value is in the zip64 field

// Returns the little-endian number at `at`. REQUIRES: at + sizeof(T) <= bytes.size().
template <class T>
T number_at(std::string_view bytes, std::size_t at) {
    T value{};
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

struct Directory {
    std::uint64_t num_entries = 0;
    std::uint64_t bytes = 0;
    std::uint64_t begin = 0;
};

class ZipReader {
  public:
    explicit ZipReader(const OpenFile& args) : args_(args) {}

    Result<std::vector<ZipEntry>> read() {
        ASSIGN_OR_RETURN(const Directory directory, find_directory());
        const std::uint64_t entries_max = args_.limits.tensors_max + kZipOthersMax;
        if (directory.num_entries > entries_max ||
            directory.bytes > entries_max * kZipEntryBytesMax) {
            return make_error(
                ErrorCode::kTooLarge,
                "'{}' has {} files and a zip directory of {} bytes; for this model at most {} and "
                "{} are accepted",
                args_.path,
                directory.num_entries,
                directory.bytes,
                entries_max,
                entries_max * kZipEntryBytesMax
            );
        }
        ASSIGN_OR_RETURN(const std::string bytes, read_part(directory.begin, directory.bytes));
        std::vector<ZipEntry> entries;
        std::string_view left = bytes;
        for (std::uint64_t i = 0; i < directory.num_entries; ++i) {
            if (args_.limits.is_over()) return reading_was_dropped(args_.path);
            ASSIGN_OR_RETURN(ZipEntry entry, take_entry(&left));
            entries.push_back(std::move(entry));
        }
        return entries;
    }

  private:
    [[nodiscard]] Error malformed(std::string_view what) const {
        return make_error(ErrorCode::kMalformed, "'{}': {}", args_.path, what);
    }
    [[nodiscard]] Error unsupported(std::string_view name, std::string_view what) const {
        return make_error(
            ErrorCode::kUnsupported,
            "'{}': its file '{}' is {}; only files that are stored as they are can be read",
            args_.path,
            name,
            what
        );
    }

    Result<std::string> read_part(std::uint64_t begin, std::uint64_t num_bytes) const {
        const auto end = static_cast<std::uint64_t>(args_.file_bytes);
        if (begin > end || num_bytes > end - begin) {
            return make_error(
                ErrorCode::kDataLoss,
                "'{}' ends early: it has {} bytes, and its zip directory names more (truncated?)",
                args_.path,
                args_.file_bytes
            );
        }
        std::string part(static_cast<std::size_t>(num_bytes), '\0');
        const auto bytes = std::as_writable_bytes(std::span(part));
        if (!read_exactly(args_.fd, static_cast<std::int64_t>(begin), bytes))
            return make_error(ErrorCode::kDataLoss, "cannot read '{}'", args_.path);
        return part;
    }

    // The end of the archive says where its directory is.
    [[nodiscard]] Result<Directory> find_directory() const {
        const std::int64_t num_tail =
            std::min(args_.file_bytes, kLocatorBytes + kEndBytes + kCommentBytesMax);
        ASSIGN_OR_RETURN(
            const std::string tail,
            read_part(
                static_cast<std::uint64_t>(args_.file_bytes - num_tail),
                static_cast<std::uint64_t>(num_tail)
            )
        );
        const std::optional<std::size_t> end = end_record_in(tail);
        if (!end) {
            return make_error(
                ErrorCode::kDataLoss, "'{}' has no end of a zip archive (truncated?)", args_.path
            );
        }
        if (*end >= kLocatorBytes) {
            const std::string_view locator =
                std::string_view(tail).substr(*end - kLocatorBytes, kLocatorBytes);
            if (locator.starts_with(kLocatorMark))
                return read_end_64(number_at<std::uint64_t>(locator, 8));
        }
        const std::string_view record = std::string_view(tail).substr(*end);
        if (number_at<std::uint32_t>(record, 4) != 0)
            return malformed("an archive of several disks");
        return Directory{
            number_at<std::uint16_t>(record, 10),
            number_at<std::uint32_t>(record, 12),
            number_at<std::uint32_t>(record, 16)};
    }

    // Returns where the last record is whose comment reaches to the archive's end.
    static std::optional<std::size_t> end_record_in(std::string_view tail) {
        for (std::size_t at = tail.rfind(kEndMark); at != std::string_view::npos;
             at = at == 0 ? std::string_view::npos : tail.rfind(kEndMark, at - 1)) {
            const std::size_t num_left = tail.size() - at;
            if (num_left >= kEndBytes &&
                number_at<std::uint16_t>(tail, at + 20) == num_left - kEndBytes)
                return at;
        }
        return std::nullopt;
    }

    [[nodiscard]] Result<Directory> read_end_64(std::uint64_t begin) const {
        ASSIGN_OR_RETURN(const std::string record, read_part(begin, kEnd64Bytes));
        if (!record.starts_with(kEnd64Mark)) return malformed("no zip64 end where it should be");
        if (number_at<std::uint64_t>(record, 16) != 0)
            return malformed("an archive of several disks");
        return Directory{
            number_at<std::uint64_t>(record, 32),
            number_at<std::uint64_t>(record, 40),
            number_at<std::uint64_t>(record, 48)};
    }

    Result<ZipEntry> take_entry(std::string_view* left) const {
        const std::string_view record = *left;
        if (record.size() < kEntryBytes || !record.starts_with(kEntryMark))
            return malformed("its zip directory has fewer entries than it says");
        const std::size_t num_name = number_at<std::uint16_t>(record, 28);
        const std::size_t num_extra = number_at<std::uint16_t>(record, 30);
        const std::size_t num_comment = number_at<std::uint16_t>(record, 32);
        if (record.size() - kEntryBytes < num_name + num_extra + num_comment)
            return malformed("an entry of its zip directory goes beyond the directory");
        left->remove_prefix(kEntryBytes + num_name + num_extra + num_comment);
        const std::string_view name = record.substr(kEntryBytes, num_name);
        if ((number_at<std::uint16_t>(record, 8) & kIsEncrypted) != 0)
            return unsupported(name, "encrypted");
        if (number_at<std::uint16_t>(record, 10) != 0) return unsupported(name, "compressed");
        const std::string_view extra = record.substr(kEntryBytes + num_name, num_extra);
        // The zip64 field has those of these values, in this order, that do not fit into 32 bits.
        std::uint64_t num_bytes = number_at<std::uint32_t>(record, 24);
        std::uint64_t num_stored = number_at<std::uint32_t>(record, 20);
        std::uint64_t local = number_at<std::uint32_t>(record, 42);
        std::string_view wide = zip64_field_in(extra);
        for (std::uint64_t* value : {&num_bytes, &num_stored, &local}) {
            if (*value != kIn64) continue;
            if (wide.size() < sizeof *value) return malformed("an entry without its zip64 field");
            *value = number_at<std::uint64_t>(wide, 0);
            wide.remove_prefix(sizeof *value);
        }
        if (num_stored != num_bytes) return malformed("a stored file with two sizes");
        return place(std::string(name), local, num_bytes);
    }

    // Returns the content of the zip64 field; empty if there is none.
    static std::string_view zip64_field_in(std::string_view extra) {
        while (extra.size() >= 4) {
            const std::size_t num_bytes = number_at<std::uint16_t>(extra, 2);
            if (num_bytes > extra.size() - 4) return {};
            if (number_at<std::uint16_t>(extra, 0) == kZip64Field)
                return extra.substr(4, num_bytes);
            extra.remove_prefix(4 + num_bytes);
        }
        return {};
    }

    // The bytes of a file come after its local header, whose extra field has a size of its own.
    Result<ZipEntry> place(std::string name, std::uint64_t local, std::uint64_t num_bytes) const {
        ASSIGN_OR_RETURN(const std::string header, read_part(local, kLocalBytes));
        if (!header.starts_with(kLocalMark)) return malformed("no file where its directory says");
        const std::uint64_t begin = local + kLocalBytes + number_at<std::uint16_t>(header, 26) +
                                    number_at<std::uint16_t>(header, 28);
        const auto end = static_cast<std::uint64_t>(args_.file_bytes);
        if (begin > end || num_bytes > end - begin) {
            return make_error(
                ErrorCode::kDataLoss,
                "'{}' ends inside its file '{}' (truncated?)",
                args_.path,
                name
            );
        }
        return ZipEntry{
            std::move(name),
            static_cast<std::int64_t>(begin),
            static_cast<std::int64_t>(num_bytes)};
    }

    const OpenFile& args_;
};

}  // namespace

Result<std::vector<ZipEntry>> read_zip_entries(const OpenFile& args) {
    return ZipReader(args).read();
}

}  // namespace pitstop::checkpoint
