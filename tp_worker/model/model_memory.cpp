// Makes a model: allocates its memory, assigns its parts, and fills in their initial contents.
#include "tp_worker/blocks/narrow.h"
#include "tp_worker/model/model.h"
#include "tp_worker/model/step_padding.h"

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
// Reserves the rows of padded steps, and the pages of all requests.
void Model::Rows::ask(const Args& model, Scratch& scratch) {
    constexpr std::int64_t R = kPaddedRowsMax;
    const ModelSizes& sizes = model.sizes;
    const std::int64_t num_entries =
        StepUpdates::num_entries(model.num_slots, sizes.num_positions, sizes.page_size);
    tables = scratch.array<PageId>("rows.tables", num_entries);
    args = {
        .page_size = narrow(sizes.page_size),
        .slot_pages = narrow(StepUpdates::slot_pages(sizes.num_positions, sizes.page_size)),
        .num_slots = narrow(model.num_slots),
        .scratch_page = narrow(sizes.num_pages),
        .tokens = scratch.array<TokenId>("rows.tokens", R).data(),
        .positions = scratch.array<std::int32_t>("rows.positions", R).data(),
        .kv_slots = scratch.array<std::int64_t>("rows.kv_slots", R).data(),
        .kv_lens = scratch.array<std::int32_t>("rows.kv_lens", R).data(),
        .page_starts = scratch.array<std::int32_t>("rows.page_starts", R).data(),
        .tables = tables.data(),
    };
    q_starts = scratch.array<std::int32_t>("rows.q_starts", R + 1);
}

std::int64_t Model::bytes(const Args& args) {
    Scratch scratch({.device = args.device, .sizes = args.sizes, .compute = args.compute});
    Stack stack = args.stack;
    stack.ask(scratch);
    if (args.device.is_cuda()) Rows{}.ask(args, scratch);
    return scratch.bytes();
}

Result<Model> Model::make(const Args& args) {
    CHECK(args.transfers != nullptr && args.communicator != nullptr && args.kv != nullptr);
    const ModelSizes& sizes = args.sizes;
    const std::int64_t num_entries =
        StepUpdates::num_entries(args.num_slots, sizes.num_positions, sizes.page_size);
    if (args.device.is_cuda() && num_entries > StepUpdates::kEntriesMax) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{} requests of {} positions have {} pages of {} tokens; accepted are {}",
            args.num_slots,
            sizes.num_positions,
            num_entries,
            sizes.page_size,
            StepUpdates::kEntriesMax
        );
    }
    Scratch scratch({.device = args.device, .sizes = args.sizes, .compute = args.compute});
    Stack stack = args.stack;
    stack.ask(scratch);
    if (args.device.is_cuda()) Rows{}.ask(args, scratch);
    ASSIGN_OR_RETURN(Arena memory, args.device.reserve("activations", scratch.bytes()));
    RETURN_IF_ERROR(memory.commit());
    return Model(args, std::move(stack), scratch, std::move(memory));
}

Model::Model(const Args& args, Stack stack, Scratch& scratch, Arena memory)
    : stack_(std::move(stack)),
      sizes_(args.sizes),
      ops_(&args.device.ops()),
      stream_(args.device.stream()),
      transfers_(args.transfers),
      communicator_(args.communicator),
      memory_(std::move(memory)),
      has_graphs_(args.has_graphs),
      graphs_(args.graph_bytes_max) {
    scratch.place(memory_.data());
    stack_.trunk().stream = stream_;
    stack_.trunk().rounds_expert_weights = args.rounds_expert_weights;
    stack_.ask(scratch);
    KvPool pool(stack_.kv(), args.sizes, args.compute);
    pool.place(args.kv);
    StatePool states(stack_.states(), args.num_slots + args.sizes.num_checkpoints);
    states.place(args.states);
    stack_.attach(pool, states);
    if (args.device.is_cuda()) rows_.ask(args, scratch);
    scratch.fill();
    if (!args.device.is_cuda()) return;
    updates_.emplace(args.num_slots, sizes_.num_positions, sizes_.page_size);
    fill_padding();
}

// Writes the constant inputs of padded steps: the pages of padding, and one token for each row.
void Model::fill_padding() {
    std::vector<PageId> pages;
    for (std::int64_t i = 0; i < num_scratch_pages(sizes_.page_size); ++i)
        pages.push_back(static_cast<PageId>(narrow(sizes_.num_pages + i)));
    const std::span there = rows_.tables.last(pages.size());
    kernels::copy_and_wait(
        there.data(), pages.data(), static_cast<std::int64_t>(there.size_bytes())
    );
    std::vector<std::int32_t> q_starts(kPaddedRowsMax + 1);
    std::iota(q_starts.begin(), q_starts.end(), 0);
    kernels::copy_and_wait(
        rows_.q_starts.data(),
        q_starts.data(),
        static_cast<std::int64_t>(q_starts.size() * sizeof(std::int32_t))
    );
}

}  // namespace pitstop::tp_worker
