// Checkpoints with one fault each: every rank refuses the fault by name, and keeps the old version.
#include "tests/checkpoint/safetensors_file.h"
#include "tests/tp_worker/update/updater_fixture.h"

#include <string_view>

namespace pitstop::tp_worker {
namespace {

using test::TempDir;

Json& norm_of(Json& header) { return header["model.norm.weight"]; }

template <class Edit>
void edit_header(const TempDir& dir, Edit edit) {
    test::SafetensorsFile file(dir.path());
    edit(file.header());
    file.write(dir);
}

void rename_a_tensor(const TempDir& dir) {
    edit_header(dir, [](Json& header) {
        header["model.norm.weights"] = norm_of(header);
        header.erase("model.norm.weight");
    });
}
void reshape_a_tensor(const TempDir& dir) {
    edit_header(dir, [](Json& header) { norm_of(header)["shape"] = {2, 64}; });
}
void change_a_dtype(const TempDir& dir) {
    edit_header(dir, [](Json& header) { norm_of(header)["dtype"] = "I16"; });
}
void cut_the_file(const TempDir& dir) { dir.truncate("model.safetensors", 1'000'000); }
void change_the_model(const TempDir& dir) {
    std::string config = dir.read("config.json");
    dir.write("config.json", config.replace(config.find("10000.0"), 7, "20000.0"));
}
void write_a_nan(const TempDir& dir) {
    std::string bytes = dir.read("model.safetensors");
    bytes[bytes.size() - 1] = '\x7f';  // the last element: exponent all ones
    bytes[bytes.size() - 2] = '\xc0';
    dir.write("model.safetensors", bytes);
}

struct BadCheckpoint {
    void (*spoil)(const TempDir& dir);
    std::string_view says;
    int num_problems;
};

constexpr BadCheckpoint kBadCheckpoints[] = {
    {rename_a_tensor, "model.norm.weights", 2},  // both problems, not only the first
    {reshape_a_tensor, "[2, 64]", 1},
    {change_a_dtype, "I16", 1},
    {cut_the_file, "model.safetensors", 1},
    {change_the_model, "rope_theta", 1},
    {write_a_nan, "is not finite", 1},
};

TEST_F(UpdaterTest, P2_EveryBadCheckpointIsRefusedByName) {
    open(2);
    expect_refused(stage("/nowhere"), "/nowhere");
    for (const BadCheckpoint& bad : kBadCheckpoints) {
        SCOPED_TRACE(bad.says);
        const TempDir dir;
        dir.copy_from(model_dir("bard"));
        bad.spoil(dir);
        const std::vector<messages::WorkerStaged> votes = stage(dir.path());
        EXPECT_EQ(votes[0].outcome.num_problems, bad.num_problems);
        expect_refused(votes, std::string(bad.says));
    }
    spec_.manifest = {{.name = "model.norm.weight", .dtype = "BF16", .shape = {64}}};
    expect_refused(stage(model_dir("bard")), "declared as [64]");
    spec_.manifest = {{.name = "model.normal.weight"}};
    expect_refused(stage(model_dir("bard")), "model.normal.weight");
    expect_generates_as("stories");
}

TEST_F(UpdaterTest, TensorsThatAreNotFiniteAreTakenWhereThatIsAllowed) {
    open(2);
    const TempDir dir;
    dir.copy_from(model_dir("bard"));
    write_a_nan(dir);
    spec_.allow_nonfinite = true;
    for (const messages::WorkerStaged& vote : stage(dir.path())) EXPECT_TRUE(vote.outcome.ok);
    drop();
    expect_generates_as("stories");
}

}  // namespace
}  // namespace pitstop::tp_worker
