#include "tp_worker/model/model.h"

#include "tp_worker/blocks/narrow.h"
#include "tp_worker/model/step_padding.h"

#include <optional>

namespace pitstop::tp_worker {

std::int64_t transfer_bytes(const StepBatch& batch) {
    const auto bytes = [](auto array) {
        return Transfers::bytes_of(static_cast<std::int64_t>(array.size_bytes()));
    };
    const std::int64_t states = bytes(batch.states.places) + bytes(batch.states.from_places) +
                                bytes(batch.states.saved_places) + bytes(batch.states.saved_ends) +
                                bytes(batch.states.stored_ends) + bytes(batch.drafted_rows);
    const std::int64_t adapters = bytes(batch.adapter_tables);
    // The update of a padded step contains its rows.
    if (batch.num_padded > 0) return bytes(batch.update) + states + adapters;
    return states + adapters + bytes(batch.update) + bytes(batch.tokens) + bytes(batch.positions) +
           bytes(batch.kv_slots) + bytes(batch.q_starts) + bytes(batch.kv_lens) +
           bytes(batch.page_starts) + bytes(batch.pages) + bytes(batch.token_rows) +
           bytes(batch.marks) + bytes(batch.brought_rows) + bytes(batch.brought);
}

Result<StepBatch> Model::place(const StepBatch& batch) {
    StepBatch placed = batch;
    if (updates_) {
        ASSIGN_OR_RETURN(placed.update, updates_->make(batch));
        placed.page_starts = updates_->page_starts();
        placed.pages = {};
    }
    if (transfer_bytes(placed) > transfers_->bytes_left()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a step with {} bytes of tokens and pages; this worker has room for {}",
            transfer_bytes(placed),
            transfers_->bytes_left()
        );
    }
    const auto move = [&](auto& array) { array = {transfers_->in(array), array.size()}; };
    // A graph keeps the arrays' places. Each array before the last has the size of the step's
    // shape; the update, whose size differs between steps, is placed last.
    const auto move_states = [&] {
        move(placed.states.places);
        move(placed.states.from_places);
        move(placed.states.saved_places);
        move(placed.states.saved_ends);
    };
    if (placed.num_padded > 0) {
        place_rows(placed);
        move_states();
    } else {
        // The marks are placed first, before everything that is uploaded.
        placed.marks = {transfers_->out(placed.marks), placed.marks.size()};
        move(placed.tokens);
        move(placed.positions);
        move(placed.kv_slots);
        move(placed.q_starts);
        move(placed.kv_lens);
        move(placed.page_starts);
        move(placed.pages);
        move_states();
        move(placed.states.stored_ends);
        move(placed.drafted_rows);
        move(placed.token_rows);
        move(placed.brought_rows);
        move(placed.brought);
    }
    move(placed.adapter_tables);
    move(placed.update);
    placed.slots = {};
    if (updates_) placed.pages = rows_.tables;
    return placed;
}

// The rows of a padded step are in the places that its update writes.
void Model::place_rows(StepBatch& placed) const {
    CHECK(placed.num_padded <= kPaddedRowsMax);
    const auto R = static_cast<std::size_t>(placed.num_padded);
    const kernels::StepRowsArgs& rows = rows_.args;
    placed.tokens = {rows.tokens, R};
    placed.positions = {rows.positions, R};
    placed.kv_slots = {rows.kv_slots, R};
    placed.q_starts = rows_.q_starts.first(R + 1);
    placed.kv_lens = {rows.kv_lens, R};
    placed.page_starts = {rows.page_starts, R};
}

Result<> Model::forward(const StepBatch& placed, const BoundWeights& weights) {
    CHECK(static_cast<std::int64_t>(placed.tokens.size()) <= sizes_.tokens_max);
    is_summed_ = false;
    return run_blocks(placed, weights);
}

Result<> Model::run_padded(const StepBatch& placed, const BoundWeights& weights) {
    const auto T = static_cast<std::int64_t>(placed.tokens.size());
    const bool has_prompts = !placed.token_rows.empty();
    const auto L = has_prompts ? static_cast<std::int64_t>(placed.token_rows.size()) : T;
    CHECK(T <= sizes_.tokens_max && L <= sizes_.logit_rows_max);
    // A graph keeps this function, which only refers to the arrays' places and numbers of rows.
    const auto enqueue = [this, placed, T, L, has_prompts, &weights]() -> Result<> {
        RETURN_IF_ERROR(run_blocks(placed, weights));
        if (has_prompts) {
            run_head_of(placed.token_rows.data(), L, /*is_summed=*/false, weights);
        } else {
            const Trunk& trunk = stack_.trunk();
            stack_.head().run(trunk, weights, rows(trunk.x, 0, T), rows(trunk.delta, 0, T));
        }
        return Ok{};
    };
    const StepGraphs::Shape shape{
        .weights = weights.place(),
        .inputs = has_prompts ? static_cast<const void*>(placed.tokens.data())
                              : static_cast<const void*>(placed.update.data()),
        .num_tokens = T,
        .num_rows = static_cast<std::int64_t>(placed.kv_lens.size()),
        .num_logit_rows = L,
        .has_adapters = placed.has_adapters()};
    RETURN_IF_ERROR(has_graphs_ ? graphs_.run(shape, stream_, enqueue) : enqueue());
    is_summed_ = !has_prompts;
    return Ok{};
}

Result<> Model::run_blocks(const StepBatch& there, const BoundWeights& weights) {
    if (!there.update.empty()) {
        kernels::StepRowsArgs update = rows_.args;
        update.update = there.update.data();
        update.num_rows = narrow(there.num_padded);
        update.stream = stream_;
        kernels::step_rows_cuda(update);
    }
    return stack_.run(there, weights, [this](View2<float> x) -> Result<> {
        CHECK(x.stride == x.cols);
        const auto num = static_cast<std::size_t>(x.rows * x.cols);
        RETURN_IF_ERROR(communicator_->all_reduce_sum({x.data, num}));
        return communicator_->between();
    });
}

void Model::logits(
    const std::int32_t* token_rows, std::int64_t num_rows, const BoundWeights& weights
) {
    CHECK(num_rows <= sizes_.logit_rows_max);
    run_head_of(token_rows, num_rows, is_summed_, weights);
}

void Model::replay(const StepBatch& replay, const BoundWeights& weights) {
    StepBatch placed = replay;
    const auto move = [&](auto& array) { array = {transfers_->in(array), array.size()}; };
    move(placed.positions);
    move(placed.q_starts);
    move(placed.states.places);
    move(placed.states.from_places);
    move(placed.states.saved_places);
    move(placed.states.saved_ends);
    move(placed.drafted_rows);
    transfers_->send();
    stack_.replay(placed, weights);
    transfers_->wait();
}

// Gathers the rows that need logits first.
void Model::run_head_of(
    const std::int32_t* token_rows,
    std::int64_t num_rows,
    bool is_summed,
    const BoundWeights& weights
) {
    const Trunk& trunk = stack_.trunk();
    const Head& head = stack_.head();
    const View2<float> x = rows(head.x(), 0, num_rows);
    ops_->gather_rows({.x = trunk.x, .row_index = token_rows, .y = x, .stream = stream_});
    if (is_summed) return head.run(trunk, weights, x, {});
    const View2<float> delta = rows(head.delta(), 0, num_rows);
    ops_->gather_rows({.x = trunk.delta, .row_index = token_rows, .y = delta, .stream = stream_});
    return head.run(trunk, weights, x, delta);
}

}  // namespace pitstop::tp_worker
