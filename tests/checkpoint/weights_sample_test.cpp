// Which changes of a checkpoint alter a sample of its bytes.
#include "checkpoint/weights_sample.h"

#include "tests/checkpoint/safetensors_file.h"
#include "tests/checkpoint/temp_dir.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::checkpoint {
namespace {

struct Tensor {
    std::string name{};
    std::vector<std::int64_t> shape{};
    std::string bytes{};
};

std::vector<Tensor> tensors_of_test() {
    std::vector<Tensor> tensors;
    for (const char* const name : {"a", "b", "c"}) {
        std::string bytes(4096, '\0');
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<char>(static_cast<int>(i) / 7 + *name);
        tensors.push_back({name, {32, 64}, std::move(bytes)});
    }
    tensors.push_back({"norm", {3}, "123456"});  // smaller than a sample
    return tensors;
}

std::string sample_of(const std::vector<Tensor>& tensors, const std::string& dtype = "BF16") {
    test::SafetensorsFile file;
    for (const Tensor& tensor : tensors) file.add(tensor.name, dtype, tensor.shape, tensor.bytes);
    const test::TempDir dir;
    file.write(dir);
    const Result<std::string> sample = sample_weights(dir.path());
    EXPECT_TRUE(sample) << (sample ? "" : sample.error().message);
    return sample ? *sample : "";
}

TEST(WeightsSample, DoesNotDependOnWhereInItsFilesATensorLies) {
    std::vector<Tensor> tensors = tensors_of_test();
    const std::string sample = sample_of(tensors);
    EXPECT_EQ(sample.size(), 32U);
    std::swap(tensors.front(), tensors.back());
    EXPECT_EQ(sample_of(tensors), sample);
}

TEST(WeightsSample, TellsWeightsApartThatWereTrainedFurther) {
    const std::string sample = sample_of(tensors_of_test());
    const std::vector<std::function<void(std::vector<Tensor>&)>> changes{
        [](auto& tensors) { tensors[1].bytes[0] ^= 1; },
        [](auto& tensors) { tensors[1].bytes[2048] ^= 1; },
        [](auto& tensors) { tensors[3].bytes[5] ^= 1; },
        [](auto& tensors) { std::swap(tensors[0].bytes, tensors[2].bytes); },
        [](auto& tensors) {
            tensors[2].shape = {64, 32};
        },
        [](auto& tensors) { tensors[2].name = "d"; },
        [](auto& tensors) { tensors.pop_back(); },
    };
    for (std::size_t i = 0; i < changes.size(); ++i) {
        std::vector<Tensor> tensors = tensors_of_test();
        changes[i](tensors);
        EXPECT_NE(sample_of(tensors), sample) << i;
    }
    EXPECT_NE(sample_of(tensors_of_test(), "F16"), sample);
}

TEST(WeightsSample, LooksAtAsManyTensorsAsItMayWhereThereAreMore) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < 3 * kTensorsSampledMax; ++i)
        tensors.push_back({fmt::format("{:05}", i), {1}, "ab"});
    const std::string sample = sample_of(tensors);
    for (Tensor& tensor : tensors) tensor.bytes = "cd";
    EXPECT_NE(sample_of(tensors), sample);
}

TEST(WeightsSample, ADirectoryWithoutWeightsIsAnError) {
    const test::TempDir dir;
    const Result<std::string> sample = sample_weights(dir.path());
    ASSERT_FALSE(sample);
    EXPECT_EQ(sample.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace pitstop::checkpoint
