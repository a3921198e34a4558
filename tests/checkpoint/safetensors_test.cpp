#include "checkpoint/safetensors.h"

#include "tests/checkpoint/temp_dir.h"
#include "tests/no_descriptors.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>

namespace pitstop::checkpoint {
namespace {

// Makes a file with this header and this many bytes of data: 0, 1, 2, ...
std::string file_of(std::string_view header, std::size_t data_bytes) {
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
    file += header;
    for (std::size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
    return file;
}

constexpr std::string_view kTwoTensors =
    R"({"__metadata__":{"format":"pt"},)"
    R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}})";

Result<std::vector<StoredTensor>> parse(
    std::string_view header, std::int64_t data_bytes, const ReadLimits& limits = {}
) {
    static const std::string path = "some.safetensors";
    return parse_safetensors_header(
        {.json = header, .data_bytes = data_bytes, .path = path, .limits = limits}
    );
}

// Makes a header of this many tensors of two bytes, without its last brace.
std::string open_header_of(std::size_t num_tensors) {
    std::string header = "{";
    for (std::size_t i = 0; i < num_tensors; ++i) {
        header += fmt::format(
            R"({}"model.layers.{}.weight":{{"dtype":"BF16","shape":[1],"data_offsets":[{},{}]}})",
            i == 0 ? "" : ",",
            i,
            2 * i,
            2 * i + 2
        );
    }
    return header;
}

double cpu_seconds() {
    timespec now{};
    EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Returns the error of opening a directory with one file of this content.
Error error_of_file(const std::string& content) {
    test::TempDir dir;
    dir.write("model.safetensors", content);
    Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    if (!checkpoint) return checkpoint.error();
    ADD_FAILURE() << "opened";
    return {};
}

Error error_of_header(std::string_view header, std::size_t data_bytes = 16) {
    return error_of_file(file_of(header, data_bytes));
}

TEST(Safetensors, ReadsWhatIsThere) {
    test::TempDir dir;
    dir.write("model.safetensors", file_of(kTwoTensors, 16));
    Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    ASSERT_EQ(checkpoint->tensors().size(), 2u);
    const StoredTensor* a = checkpoint->find("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->spec.dtype, StoredDtype::kBf16);
    EXPECT_EQ(a->spec.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(a->bytes, 12);
    std::array<std::byte, 4> bytes{};
    ASSERT_TRUE(checkpoint->read(*a, 6, bytes).has_value());
    EXPECT_EQ(bytes[0], std::byte{6});
    EXPECT_EQ(bytes[3], std::byte{9});
    const StoredTensor* b = checkpoint->find("b");
    ASSERT_NE(b, nullptr);
    ASSERT_TRUE(checkpoint->read(*b, 0, bytes).has_value());
    EXPECT_EQ(bytes[0], std::byte{12});
    EXPECT_EQ(checkpoint->find("__metadata__"), nullptr);
}

TEST(Safetensors, TakesAFileWithoutTensorsAndATensorWithoutElements) {
    test::TempDir dir;
    dir.write("model.safetensors", file_of("{}", 0));
    EXPECT_TRUE(Checkpoint::open(dir.path()).has_value());
    dir.write(
        "model.safetensors",
        file_of(R"({"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}})", 0)
    );
    EXPECT_TRUE(Checkpoint::open(dir.path()).has_value());
}

TEST(Safetensors, WithoutDescriptorsTheErrorDoesNotBlameTheFile) {
    test::TempDir dir;
    dir.write("model.safetensors", file_of(kTwoTensors, 16));
    const test::NoDescriptors none;
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_FALSE(checkpoint);
    EXPECT_EQ(checkpoint.error().code, ErrorCode::kResourceExhausted) << checkpoint.error().message;
}

TEST(Safetensors, RefusesATruncatedFileNamingTheTensor) {
    const std::string whole = file_of(kTwoTensors, 16);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const Error error = error_of_file(whole.substr(0, size));
        EXPECT_EQ(error.code, ErrorCode::kDataLoss) << size << " " << error.message;
        EXPECT_NE(error.message.find("model.safetensors"), std::string::npos);
    }
    EXPECT_NE(error_of_header(kTwoTensors, 15).message.find("'b'"), std::string::npos);
    EXPECT_NE(error_of_header(kTwoTensors, 3).message.find("'a'"), std::string::npos);
}

TEST(Safetensors, RefusesAHeaderThatPointsOutsideTheFile) {
    const Error error = error_of_header(
        R"({"a":{"dtype":"U8","shape":[99999999999],"data_offsets":[0,99999999999]}})"
    );
    EXPECT_EQ(error.code, ErrorCode::kDataLoss);
    EXPECT_NE(error.message.find("'a'"), std::string::npos) << error.message;
}

TEST(Safetensors, RefusesAHeaderLengthThatIsNotCredible) {
    std::string file = file_of(kTwoTensors, 16);
    for (std::size_t i = 0; i < 8; ++i) file[i] = '\xff';
    EXPECT_EQ(error_of_file(file).code, ErrorCode::kTooLarge);
}

TEST(Safetensors, RefusesBytesThatDisagreeWithTheShape) {
    const Error error =
        error_of_header(R"({"a":{"dtype":"BF16","shape":[2,4],"data_offsets":[0,12]}})", 12);
    EXPECT_EQ(error.code, ErrorCode::kMalformed);
    EXPECT_NE(error.message.find("[2, 4] needs 16 bytes"), std::string::npos) << error.message;
}

TEST(Safetensors, RefusesOverlapsHolesAndBytesOfNoTensor) {
    const Error overlap =
        error_of_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                        R"("b":{"dtype":"U8","shape":[9],"data_offsets":[7,16]}})");
    EXPECT_NE(overlap.message.find("overlap"), std::string::npos) << overlap.message;
    const Error hole = error_of_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                       R"("b":{"dtype":"U8","shape":[7],"data_offsets":[9,16]}})");
    EXPECT_NE(hole.message.find("1 bytes before tensor 'b'"), std::string::npos) << hole.message;
    const Error rest = error_of_header(kTwoTensors, 17);
    EXPECT_NE(rest.message.find("last 1 bytes"), std::string::npos) << rest.message;
}

TEST(Safetensors, RefusesATensorThatIsThereTwice) {
    const Error error = error_of_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                        R"("a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})");
    EXPECT_EQ(error.code, ErrorCode::kMalformed);
    EXPECT_NE(error.message.find("twice"), std::string::npos) << error.message;
}

TEST(Safetensors, RefusesEntriesThatAreNotOfTheFormat) {
    for (const std::string_view header : {
             "",
             "[]",
             "nul",
             R"({"a":1})",
             R"({"a":{"dtype":"U8","shape":[16]}})",
             R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16],"extra":1}})",
             R"({"a":{"dtype":7,"shape":[16],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":["U8"],"shape":[16],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","dtype":"U8","shape":[16],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":{"n":16},"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0,8,16]}})",
             R"({"a":["dtype","shape","data_offsets"]})",
             R"({"a":{"dtype":"U8","shape":16,"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":[-16],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":[16.0],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[16,0]}})",
             R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0]}})",
             R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[-1,15]}})",
             R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":[[[[16]]]],"data_offsets":[0,16]}})",
             R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,16],"data_offsets":[0,16]}})",
         }) {
        EXPECT_EQ(error_of_header(header).code, ErrorCode::kMalformed) << header;
    }
    const Error dtype =
        error_of_header(R"({"a":{"dtype":"F4","shape":[16],"data_offsets":[0,16]}})");
    EXPECT_EQ(dtype.code, ErrorCode::kUnsupported);
    EXPECT_NE(dtype.message.find("'F4'"), std::string::npos) << dtype.message;
}

TEST(Safetensors, ADamagedHeaderIsAnErrorOrStaysInsideTheFile) {
    std::mt19937 random(1);
    for (int i = 0; i < 20000; ++i) {
        std::string damaged(kTwoTensors);
        for (unsigned k = 0; k <= random() % 3; ++k) {
            damaged[random() % damaged.size()] = static_cast<char>(random());
        }
        const auto tensors = parse(damaged, 16);
        if (!tensors) continue;
        for (const StoredTensor& tensor : *tensors) {
            EXPECT_GE(tensor.file_offset, 0);
            EXPECT_LE(tensor.file_offset + tensor.bytes, 16);
        }
    }
}

// The time per tensor does not depend on their number: 300,000 take 0.2 s here. A search among all
// earlier tensors took more than 7 minutes.
TEST(Safetensors, ReadsAHeaderOfManyTensorsInTimeThatGrowsWithThem) {
    constexpr std::size_t kNum = 300'000;
    const std::string header = open_header_of(kNum) + "}";
    const double begun = cpu_seconds();
    const auto tensors = parse(header, 2 * kNum);
    EXPECT_LT(cpu_seconds() - begun, 60);
    ASSERT_TRUE(tensors) << tensors.error().message;
    ASSERT_EQ(tensors->size(), kNum);
    EXPECT_EQ(tensors->back().file_offset, 2 * (kNum - 1));
}

TEST(Safetensors, ReadsNothingBehindTheLastTensorThatIsAccepted) {
    const std::string header = open_header_of(101) + " and no JSON at all";
    const auto too_many = parse(header, 202, {.tensors_max = 100});
    ASSERT_FALSE(too_many);
    EXPECT_EQ(too_many.error().code, ErrorCode::kTooLarge);
    EXPECT_NE(too_many.error().message.find(" 100"), std::string::npos) << too_many.error().message;
    EXPECT_EQ(parse(header, 202, {.tensors_max = 101}).error().code, ErrorCode::kMalformed);
}

TEST(Safetensors, StopsReadingWhenItIsDropped) {
    const std::atomic<bool> is_dropped{true};
    const ReadLimits limits{.is_dropped = &is_dropped};
    EXPECT_EQ(parse(open_header_of(2), 4, limits).error().code, ErrorCode::kAborted);
    test::TempDir dir;
    dir.write("model.safetensors", file_of(kTwoTensors, 16));
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path(), limits);
    ASSERT_FALSE(checkpoint);
    EXPECT_EQ(checkpoint.error().code, ErrorCode::kAborted);
    EXPECT_NE(checkpoint.error().message.find("model.safetensors"), std::string::npos);
}

TEST(Safetensors, RefusesDepthAtItsBeginning) {
    for (const std::string_view open : {"[", R"({"a":)", R"({"__metadata__":{"b":[)"}) {
        std::string header;
        while (header.size() < 1'000'000) header += open;
        const Error error = parse(header, 0).error();
        EXPECT_EQ(error.code, ErrorCode::kMalformed);
        EXPECT_LT(error.message.size(), 200u) << open;
    }
}

TEST(Safetensors, RefusesANameThatNoTensorHas) {
    const std::string header = fmt::format(
        R"({{"{}":{{"dtype":"U8","shape":[],"data_offsets":[0,1]}}}})", std::string(1025, 'a')
    );
    const Error error = parse(header, 1).error();
    EXPECT_EQ(error.code, ErrorCode::kTooLarge);
    EXPECT_NE(error.message.find("1025 bytes; at most 1024"), std::string::npos) << error.message;
}

TEST(Safetensors, RefusesAHeaderTooLongForSoFewTensors) {
    test::TempDir dir;
    std::string header(20'000'000, ' ');
    header[0] = '{';
    header.back() = '}';
    dir.write("model.safetensors", file_of(header, 0));
    EXPECT_TRUE(Checkpoint::open(dir.path()));
    const Result<Checkpoint> few = Checkpoint::open(dir.path(), {.tensors_max = 10});
    ASSERT_FALSE(few);
    EXPECT_EQ(few.error().code, ErrorCode::kTooLarge);
    EXPECT_NE(few.error().message.find("20000000 bytes"), std::string::npos);
}

TEST(Safetensors, AFileThatShrinksWhileOpenIsAnErrorNotACrash) {
    test::TempDir dir;
    dir.write("model.safetensors", file_of(kTwoTensors, 16));
    Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.has_value());
    dir.truncate("model.safetensors", 165);  // within "b", the last tensor
    std::array<std::byte, 4> bytes{};
    const Result<> read = checkpoint->read(*checkpoint->find("b"), 0, bytes);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code, ErrorCode::kDataLoss);
    EXPECT_NE(read.error().message.find("'b'"), std::string::npos);
    EXPECT_EQ(checkpoint->is_whole(*checkpoint->find("a")).error().code, ErrorCode::kDataLoss);
    const Result<> whole = checkpoint->is_whole(*checkpoint->find("b"));
    ASSERT_FALSE(whole.has_value());
    EXPECT_EQ(whole.error().code, ErrorCode::kDataLoss);
    EXPECT_NE(whole.error().message.find("'b'"), std::string::npos);
}

TEST(Safetensors, MappedBytesAreTheTensors) {
    test::TempDir dir;
    dir.write("model.safetensors", file_of(kTwoTensors, 16));
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.has_value());
    for (const StoredTensor& tensor : checkpoint->tensors()) {
        std::vector<std::byte> read(static_cast<std::size_t>(tensor.bytes));
        ASSERT_TRUE(checkpoint->read(tensor, 0, read).has_value());
        EXPECT_TRUE(std::ranges::equal(checkpoint->mapped(tensor), read)) << tensor.spec.name;
        EXPECT_TRUE(checkpoint->is_whole(tensor));
    }
}

class Shards : public testing::Test {
  protected:
    void SetUp() override {
        dir_.write("one.safetensors", file_of(kA, 8));
        dir_.write("two.safetensors", file_of(kB, 8));
        dir_.write(
            "model.safetensors.index.json",
            R"({"metadata":{"total_size":16},)"
            R"("weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"
        );
    }
    Error error() const {
        Result<Checkpoint> checkpoint = Checkpoint::open(dir_.path());
        return checkpoint ? Error{} : checkpoint.error();
    }
    static constexpr std::string_view kA =
        R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
    static constexpr std::string_view kB =
        R"({"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})";
    test::TempDir dir_{};
};

TEST_F(Shards, AreReadByTheIndex) {
    Result<Checkpoint> checkpoint = Checkpoint::open(dir_.path());
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_NE(checkpoint->find("a"), nullptr);
    EXPECT_NE(checkpoint->find("b"), nullptr);
}

TEST_F(Shards, ThatAreMissingAreNamedAll) {
    dir_.remove("one.safetensors");
    dir_.remove("two.safetensors");
    EXPECT_EQ(error().code, ErrorCode::kNotFound);
    EXPECT_NE(error().message.find("one.safetensors, two.safetensors"), std::string::npos);
}

TEST_F(Shards, MustHoldWhatTheIndexSays) {
    dir_.write("two.safetensors", file_of("{}", 0));
    EXPECT_EQ(error().code, ErrorCode::kMalformed);
    EXPECT_NE(error().message.find("'b'"), std::string::npos);
}

TEST_F(Shards, MustNotHoldATensorTwice) {
    dir_.write("two.safetensors", file_of(kA, 8));
    EXPECT_EQ(error().code, ErrorCode::kMalformed);
    EXPECT_NE(error().message.find("both in"), std::string::npos);
}

TEST_F(Shards, MustBeInTheSameDirectory) {
    for (const std::string_view name : {"../one.safetensors", "/etc/passwd", "..", ""}) {
        dir_.write(
            "model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)
        );
        EXPECT_EQ(error().code, ErrorCode::kMalformed) << name;
    }
}

TEST_F(Shards, AreNoMoreThanTheModelNeeds) {
    EXPECT_TRUE(Checkpoint::open(dir_.path(), {.tensors_max = 2}));
    const Result<Checkpoint> few = Checkpoint::open(dir_.path(), {.tensors_max = 1});
    ASSERT_FALSE(few);
    EXPECT_EQ(few.error().code, ErrorCode::kTooLarge);
    EXPECT_NE(few.error().message.find("index.json"), std::string::npos) << few.error().message;
}

TEST_F(Shards, NeedAnIndexWithoutDepthOrRepetition) {
    for (const std::string& index :
         {std::string(1'000'000, '['),
          "{\"metadata\":" + std::string(1'000'000, '['),
          std::string(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"),
          std::string(R"({"weight_map":{"a":"one.safetensors"},"weight_map":{}})"),
          std::string(R"({"weight_map":{"a":["one.safetensors"]}})"),
          std::string(R"({"weight_map":{"a":{"b":"one.safetensors"}}})"),
          std::string(R"({"weight_map":["one.safetensors"]})")}) {
        dir_.write("model.safetensors.index.json", index);
        EXPECT_EQ(error().code, ErrorCode::kMalformed) << index.substr(0, 100);
        EXPECT_LT(error().message.size(), 300u);
    }
}

TEST_F(Shards, NeedAnIndexThatIsOne) {
    for (const std::string_view index :
         {"", "{}", "[]", R"({"weight_map":{}})", R"({"weight_map":3})"}) {
        dir_.write("model.safetensors.index.json", std::string(index));
        EXPECT_EQ(error().code, ErrorCode::kMalformed) << index;
    }
}

// Changes a directory after it was opened; `file` is the one that the error names.
struct Change {
    std::string_view name;
    std::function<void(const test::TempDir&)> make;
    std::string_view file;
    std::string_view how;
};

TEST_F(Shards, ThatChangeWhileTheyAreReadAreNamed) {
    const std::string one = file_of(kA, 8);
    const auto move_in = [](const test::TempDir& dir, const std::string& bytes, const char* file) {
        dir.write("new", bytes);
        std::filesystem::rename(dir.path() + "/new", dir.path() + "/" + file);
    };
    const Change changes[]{
        {"written in place",
         [&](const test::TempDir& dir) { dir.write("one.safetensors", one); },
         "one.safetensors",
         "written to"},
        {"longer",
         [&](const test::TempDir& dir) { dir.write("one.safetensors", one + "x"); },
         "one.safetensors",
         "bytes and now has"},
        {"replaced",
         [&](const test::TempDir& dir) { move_in(dir, one, "one.safetensors"); },
         "one.safetensors",
         "another file"},
        {"removed",
         [&](const test::TempDir& dir) { dir.remove("two.safetensors"); },
         "two.safetensors",
         "it was removed"},
        {"another config",
         [&](const test::TempDir& dir) { dir.write("config.json", "{}"); },
         "config.json",
         "did not exist before"},
        {"another list",
         [&](const test::TempDir& dir) { move_in(dir, "{}", "model.safetensors.index.json"); },
         "index.json",
         "another file"},
        {"one file in place of many",
         [&](const test::TempDir& dir) { dir.write("model.safetensors", one); },
         "model.safetensors'",
         "did not exist before"},
    };
    for (const Change& change : changes) {
        SCOPED_TRACE(change.name);
        SetUp();
        // Sets old times, so that a later write changes them whatever the clock's resolution.
        const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
        for (const auto& file : std::filesystem::directory_iterator(dir_.path()))
            std::filesystem::last_write_time(file.path(), then);
        const Result<Checkpoint> checkpoint = Checkpoint::open(dir_.path());
        ASSERT_TRUE(checkpoint) << checkpoint.error().message;
        EXPECT_TRUE(checkpoint->is_unchanged());
        EXPECT_TRUE(checkpoint->is_whole(*checkpoint->find("a")));
        change.make(dir_);
        const Result<> unchanged = checkpoint->is_unchanged();
        ASSERT_FALSE(unchanged);
        EXPECT_EQ(unchanged.error().code, ErrorCode::kDataLoss);
        EXPECT_NE(unchanged.error().message.find(change.file), std::string::npos)
            << unchanged.error().message;
        EXPECT_NE(unchanged.error().message.find(change.how), std::string::npos)
            << unchanged.error().message;
        std::filesystem::remove(dir_.path() + "/model.safetensors");
        std::filesystem::remove(dir_.path() + "/config.json");
    }
}

// Each read of a piece reports the change: a reader of a long file stops early.
TEST_F(Shards, ThatAreWrittenToAreNoticedByTheNextPiece) {
    const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
    std::filesystem::last_write_time(dir_.path() + "/one.safetensors", then);
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir_.path());
    ASSERT_TRUE(checkpoint);
    dir_.write("one.safetensors", file_of(kA, 8));
    std::array<std::byte, 4> bytes{};
    const StoredTensor& a = *checkpoint->find("a");
    EXPECT_EQ(checkpoint->read(a, 0, bytes).error().code, ErrorCode::kDataLoss);
    EXPECT_EQ(checkpoint->is_whole(a).error().code, ErrorCode::kDataLoss);
    EXPECT_TRUE(checkpoint->read(*checkpoint->find("b"), 0, bytes)) << "which nobody touched";
}

TEST(Checkpoint, ADirectoryWithoutWeightsSaysWhatWasLookedFor) {
    test::TempDir dir;
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_FALSE(checkpoint.has_value());
    EXPECT_EQ(checkpoint.error().code, ErrorCode::kNotFound);
    EXPECT_NE(checkpoint.error().message.find("model.safetensors.index.json"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::checkpoint
