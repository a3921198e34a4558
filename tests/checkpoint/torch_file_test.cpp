// PyTorch's own files (tests/golden/make_torch_files.py), and zip archives and pickles that it
// would not write.
#include "checkpoint/torch_file.h"

#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/source_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::checkpoint {
namespace {

using Json = nlohmann::json;
using std::string_literals::operator""s;

constexpr const char* kTorchVersions[] = {"1.13", "2.15"};

std::string saved(const std::string& torch, const std::string& file) {
    const std::string path = source_dir() + "/tests/data/torch_files/" + torch + "/" + file;
    Result<std::string> bytes = MappedFile::read(path, 1 << 24);
    EXPECT_TRUE(bytes) << path;
    return bytes ? *bytes : "";
}

std::string hex(std::span<const std::byte> bytes) {
    std::string out;
    for (const std::byte byte : bytes)
        out += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return out;
}

class TorchFileTest : public testing::Test {
  protected:
    // Opens an adapter's directory with this adapter_model.bin.
    Result<Checkpoint> open(const std::string& content, const ReadLimits& limits = {}) {
        dir_.write("adapter_model.bin", content);
        return Checkpoint::open_adapter(dir_.path(), limits);
    }
    Error error_of(const std::string& content) {
        const Result<Checkpoint> opened = open(content);
        if (!opened) return opened.error();
        ADD_FAILURE() << "opened";
        return {};
    }

    test::TempDir dir_{};
};

TEST_F(TorchFileTest, TensorsAreThoseOfPyTorch) {
    for (const char* torch : kTorchVersions) {
        const Json expected = Json::parse(saved(torch, "expected.json"));
        ASSERT_EQ(expected.size(), 3u);
        for (const auto& [name, wanted] : expected.items()) {
            SCOPED_TRACE(torch + (" " + name));
            const Result<Checkpoint> file = open(saved(torch, name + ".bin"));
            ASSERT_TRUE(file) << file.error().message;
            ASSERT_EQ(file->tensors().size(), wanted.size());
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                const StoredTensor& tensor = file->tensors()[i];
                EXPECT_EQ(tensor.spec.name, wanted[i]["name"]);
                EXPECT_EQ(name_of(tensor.spec.dtype), wanted[i]["dtype"]);
                EXPECT_EQ(Json(tensor.spec.shape), wanted[i]["shape"]) << tensor.spec.name;
                std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
                ASSERT_TRUE(file->read(tensor, 0, bytes));
                EXPECT_EQ(hex(bytes), wanted[i]["hex"]) << tensor.spec.name;
                EXPECT_EQ(hex(file->mapped(tensor)), wanted[i]["hex"]) << tensor.spec.name;
            }
            EXPECT_TRUE(file->is_unchanged());
        }
    }
}

TEST_F(TorchFileTest, WhatIsNotADictOfContiguousTensorsIsRefusedByName) {
    struct Case {
        const char* file;
        ErrorCode code;
        const char* why;
    };
    for (const char* torch : kTorchVersions) {
        for (const Case& wrong :
             {Case{"turned", ErrorCode::kUnsupported, "'turned' is not contiguous"},
              Case{"number", ErrorCode::kUnsupported, "'step' is no tensor"},
              Case{"list", ErrorCode::kMalformed, "no dict of tensors"},
              Case{"old_format", ErrorCode::kUnsupported, "is not a zip archive"},
              Case{"module", ErrorCode::kPermissionDenied, "Linear' is not allowed"}}) {
            SCOPED_TRACE(torch + (" "s + wrong.file));
            const Error error = error_of(saved(torch, "refused_"s + wrong.file + ".bin"));
            EXPECT_EQ(error.code, wrong.code) << error.message;
            EXPECT_NE(error.message.find(wrong.why), std::string::npos) << error.message;
            EXPECT_NE(error.message.find(dir_.path("adapter_model.bin")), std::string::npos);
        }
    }
}

TEST_F(TorchFileTest, SafetensorsComeFirstAsInPeft) {
    dir_.write("adapter_model.safetensors", "\x02\0\0\0\0\0\0\0{}"s);
    const Result<Checkpoint> file = open("no archive");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_TRUE(file->tensors().empty());
}

TEST_F(TorchFileTest, P2_AFileThatChangesIsNoticed) {
    const std::string content = saved("2.15", "kinds.bin");
    const Result<Checkpoint> file = open(content);
    ASSERT_TRUE(file);
    dir_.write("adapter_model.bin", content + " ");
    EXPECT_EQ(file->is_unchanged().error().code, ErrorCode::kDataLoss);
    const Result<Checkpoint> again = open(content);
    ASSERT_TRUE(again);
    dir_.write("adapter_model.safetensors", "it would be read instead");
    EXPECT_EQ(again->is_unchanged().error().code, ErrorCode::kDataLoss);
}

TEST_F(TorchFileTest, LimitsAreKept) {
    const std::string content = saved("2.15", "kinds.bin");
    const Error few = open(content, {.tensors_max = 3}).error();
    EXPECT_EQ(few.code, ErrorCode::kTooLarge) << few.message;
    const std::atomic<bool> is_dropped = true;
    EXPECT_EQ(open(content, {.is_dropped = &is_dropped}).error().code, ErrorCode::kAborted);
}

TEST_F(TorchFileTest, P7_TruncatedAtEveryByteIsAnError) {
    const std::string whole = saved("1.13", "ordered.bin");
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const Result<Checkpoint> file = open(whole.substr(0, size));
        ASSERT_FALSE(file) << size;
        EXPECT_FALSE(file.error().message.empty());
    }
}

TEST_F(TorchFileTest, P7_DamagedBytesNeverDoMoreThanFail) {
    std::mt19937 random(29);
    const std::string whole = saved("2.15", "module.bin");
    int num_refused = 0;
    for (int round = 0; round < 1500; ++round) {
        std::string damaged = whole;
        for (unsigned k = 0; k < 1 + random() % 4; ++k)
            damaged[random() % damaged.size()] = static_cast<char>(random());
        const Result<Checkpoint> file = open(damaged);
        if (!file) {
            ++num_refused;
            continue;
        }
        for (const StoredTensor& tensor : file->tensors()) {
            std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
            EXPECT_TRUE(file->read(tensor, 0, bytes)) << "it promised to be within the file";
        }
    }
    EXPECT_GT(num_refused, 100);
}

// Archives made by hand.

template <class T>
std::string little(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

struct Stored {
    std::string name{};
    std::string bytes{};
    std::uint16_t method = 0;
    std::uint16_t flags = 0;
};

// Returns a zip archive as it was before zip64.
std::string zip_of(const std::vector<Stored>& files) {
    std::string archive;
    std::string directory;
    for (const Stored& file : files) {
        const auto num = static_cast<std::uint32_t>(file.bytes.size());
        const std::string what = little(file.flags) + little(file.method) + little(0) + little(0) +
                                 little(num) + little(num) +
                                 little(static_cast<std::uint16_t>(file.name.size()));
        directory += "PK\1\2"s + little(std::uint16_t{20}) + little(std::uint16_t{20}) + what +
                     little(std::uint16_t{0}) + little(std::uint16_t{0}) +
                     little(std::uint16_t{0}) + little(std::uint16_t{0}) + little(0) +
                     little(static_cast<std::uint32_t>(archive.size())) + file.name;
        archive += "PK\3\4"s + little(std::uint16_t{20}) + what + little(std::uint16_t{3}) +
                   file.name + "pad" + file.bytes;
    }
    const auto num = static_cast<std::uint16_t>(files.size());
    return archive + directory + "PK\5\6"s + little(0) + little(num) + little(num) +
           little(static_cast<std::uint32_t>(directory.size())) +
           little(static_cast<std::uint32_t>(archive.size())) + little(std::uint16_t{7}) +
           "comment";
}

std::string text(std::string_view value) {
    return "X"s + little(static_cast<std::uint32_t>(value.size())) + std::string(value);
}
std::string number(std::int32_t value) { return "J"s + little(value); }

struct Shape {
    std::int32_t offset = 0;
    std::string sizes = number(2) + number(3);
    std::string strides = number(3) + number(1);
    std::string key = "0";
    std::string storage = "FloatStorage";
};

// Pickles {"w": a tensor}.
std::string pickle_of(const Shape& shape) {
    return "\x80\x02}"s + text("w") + "ctorch._utils\n_rebuild_tensor_v2\n(" + "(" +
           text("storage") + "ctorch\n" + shape.storage + "\n" + text(shape.key) + text("cpu") +
           number(6) + "tQ" + number(shape.offset) + "(" + shape.sizes + "t(" + shape.strides +
           "t\x89" + "ccollections\nOrderedDict\n)RtRs.";
}

std::vector<Stored> files_of(const std::string& pickle) {
    return {{"x/data.pkl", pickle}, {"x/data/0", std::string(24, '\1')}, {"x/version", "3\n"}};
}

TEST_F(TorchFileTest, AnArchiveWithoutZip64AndWithAComment) {
    const Result<Checkpoint> file = open(zip_of(files_of(pickle_of({}))));
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_EQ(file->tensors().size(), 1u);
    EXPECT_EQ(hex(file->mapped(file->tensors()[0])).size(), 48u);
    EXPECT_EQ(hex(file->mapped(file->tensors()[0])).find_first_not_of("01"), std::string::npos);
}

TEST_F(TorchFileTest, P7_ATensorIsWithinItsStorage) {
    const std::string big = number(0x7fffffff);
    const std::vector<std::pair<Shape, std::string>> wrong{
        {{.offset = 1}, "beyond its storage"},
        {{.offset = -1}, "beyond its storage"},
        {{.sizes = number(7), .strides = number(1)}, "beyond its storage"},
        {{.sizes = big + big + big + big, .strides = number(0) + number(0) + number(0) + number(0)},
         "beyond its storage"},
        {{.sizes = number(-2) + number(-3)}, "not one of torch.save"},
        {{.strides = number(3)}, "not one of torch.save"},
        {{.sizes = text("2")}, "not one of torch.save"},
        {{.strides = number(0) + number(1)}, "not contiguous"},
        {{.strides = number(1) + number(2)}, "not contiguous"},
        {{.key = "1"}, "file of its storage is missing"},
        {{.key = "../version"}, "file of its storage is missing"},
        {{.storage = "DoubleStorage"}, "beyond its storage"},
        {{.storage = "QUInt8Storage"}, "is not allowed"},
    };
    for (const auto& [shape, why] : wrong) {
        const Error error = error_of(zip_of(files_of(pickle_of(shape))));
        EXPECT_NE(error.message.find(why), std::string::npos) << error.message << ", not " << why;
    }
}

TEST_F(TorchFileTest, P7_AnArchiveThatTorchWouldNotWriteIsRefused) {
    const std::vector<Stored> good = files_of(pickle_of({}));
    const auto with = [&](auto change) {
        std::vector<Stored> files = good;
        change(files);
        return zip_of(files);
    };
    const auto expect = [&](const std::string& archive, ErrorCode code, const std::string& why) {
        const Error error = error_of(archive);
        EXPECT_EQ(error.code, code) << error.message;
        EXPECT_NE(error.message.find(why), std::string::npos) << error.message << ", not " << why;
    };
    expect(with([](auto& files) { files[1].method = 8; }), ErrorCode::kUnsupported, "compressed");
    expect(with([](auto& files) { files[1].flags = 1; }), ErrorCode::kUnsupported, "encrypted");
    expect(with([](auto& files) { files[0].name = "x/other"; }), ErrorCode::kMalformed, "data.pkl");
    expect(
        with([](auto& files) {
            files.push_back({"y/data.pkl", ""});
        }),
        ErrorCode::kMalformed,
        "data.pkl twice"
    );
    expect(
        with([](auto& files) { files.push_back(files[1]); }),
        ErrorCode::kMalformed,
        "'data/0' twice"
    );
    expect(
        with([](auto& files) {
            files.push_back({"x/byteorder", "big"});
        }),
        ErrorCode::kUnsupported,
        "little-endian"
    );
    expect(
        with([](auto& files) { files[0].bytes.pop_back(); }), ErrorCode::kMalformed, "pickle, byte"
    );
    std::string beyond = zip_of(good);
    const std::size_t entry = beyond.find("PK\1\2"s);
    beyond[entry + 45] = 1;  // the local header is 16 MiB behind the end
    expect(beyond, ErrorCode::kDataLoss, "ends early");
    std::string fewer = zip_of(good);
    fewer[fewer.size() - 7 - 22 + 10] = 9;
    expect(fewer, ErrorCode::kMalformed, "fewer entries");
    std::vector<Stored> many = good;
    for (int i = 0; i < 80; ++i) many.push_back({fmt::format("x/data/{}", i + 1), ""});
    EXPECT_EQ(open(zip_of(many), {.tensors_max = 10}).error().code, ErrorCode::kTooLarge);
}

}  // namespace
}  // namespace pitstop::checkpoint
