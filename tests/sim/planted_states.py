"""The bugs of recurrent states that state_mutations.py plants. The driver names the test that finds each."""

from planted_updates import Mutation

PLACES = "scheduler_proc/state_places.cpp"
CACHE = "scheduler_proc/prefix_cache.cpp"
POOL = "scheduler_proc/kv_pool.cpp"
POOL_STATE = "scheduler_proc/kv_pool_state.cpp"
PLANNER = "scheduler_proc/step_planner.cpp"
MEMORY = "scheduler_proc/replica_memory.cpp"
WORKER = "tp_worker/model/step_states.cpp"
STEP = "tp_worker/model/step_batch.cpp"
REPLAY = "tp_worker/model/draft_replay.cpp"
BLOCK = "tp_worker/blocks/gated_delta.cpp"
INPUTS = "kernels/gated_delta.cpp"
KERNEL = "kernels/cpu/gated_delta.cpp"

NO_WORKER = "the simulator has workers of its own"
WASTE = "every token is right, and computed more often than necessary"

MUTATIONS = (
    Mutation(
        "a place that a step in flight uses is taken",
        PLACES,
        "if (at(id).latest <= last_done_) return id;",
        "return id;",
    ),
    Mutation(
        "a checkpoint that a step in flight reads is evicted",
        PLACES,
        "if (at(id).latest > last_done_) continue;",
        "",
    ),
    Mutation(
        "a trail that a step in flight saves is renewed",
        PLACES,
        "!is_trail(trail) || at(*of(trail)).latest > last_done_",
        "!is_trail(trail)",
        unseen="a decode's state becomes a trail once its step is done",
    ),
    Mutation(
        "decodes take the places of prompts",
        PLACES,
        "num_trails_ >= size() / 2",
        "num_trails_ >= size()",
        unseen=WASTE,
    ),
    Mutation(
        "a state in the middle of a prompt evicts another",
        PLACES,
        "!found && purpose != Purpose::kSpare",
        "!found",
        unseen=WASTE,
    ),
    Mutation(
        "a request continues from a state that its own step saves",
        CACHE,
        "if (places_->of(last) && !is_saved_now)",
        "if (places_->of(last))",
    ),
    Mutation(
        "a request continues behind pages that have no state",
        CACHE,
        ".num_usable = before.num_usable",
        ".num_usable = num_pages",
    ),
    Mutation(
        "a page that is evicted keeps its checkpoint",
        CACHE,
        "if (places_) places_->drop(page);\n        node = Node{};",
        "node = Node{};",
    ),
    Mutation(
        "an older version's pages and state are continued",
        CACHE,
        "!accepted.contains(node.epochs)",
        "(!accepted.contains(node.epochs) && node.epochs.is_empty())",
    ),
    Mutation(
        "nobody waits for the request that saves their branch",
        CACHE,
        "before.is_pending || is_saved_now || places_->is_announced(last)",
        "before.is_pending || is_saved_now",
        unseen=WASTE,
    ),
    Mutation(
        "a branch is announced and never saved",
        POOL,
        "lease.state.branch = {position, last, *announcement};",
        "static_cast<void>(position);",
    ),
    Mutation(
        "the end of a prompt has no checkpoint",
        POOL_STATE,
        "if (is_inside(last)) position = last;",
        "",
        unseen=WASTE,
    ),
    Mutation(
        "a decode's state is kept with the page before its own",
        POOL_STATE,
        "static_cast<std::size_t>(saving.position / size_.page_size) - 1;",
        "static_cast<std::size_t>(saving.position / size_.page_size) - 2;",
    ),
    Mutation(
        "the trail of a request that has ended is never evicted",
        POOL_STATE,
        "if (const auto trail = std::exchange(lease.state.trail, std::nullopt))\n        cache_.places()->end_trail(*trail);",
        "lease.state.trail.reset();",
    ),
    Mutation(
        "a prompt's state is saved at the end of its row",
        PLANNER,
        "row.save_at = save->position;",
        "row.save_at = row.begin + row.num_new;",
    ),
    Mutation(
        "checkpoints outlive the memory that was released",
        MEMORY,
        "effects.releases_kv = is_release && has(job->tags, messages::MemoryTag::kKvCache);",
        "effects.releases_kv = false;",
    ),
    Mutation(
        "a worker continues a state of another length",
        WORKER,
        "row.begin != 0 && row.begin != len",
        "row.begin != 0 && len < 0",
        unseen=NO_WORKER,
    ),
    Mutation(
        "two rows of a step may have one slot",
        WORKER,
        "std::ranges::find(places_, place) != places_.end()",
        "place < 0",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a worker forgets of how many tokens a checkpoint is",
        WORKER,
        "lens_[static_cast<std::size_t>(saved_places_[i])] = row.save_at;",
        "",
        unseen=NO_WORKER,
    ),
    Mutation(
        "keys of a rank are cut from the queries",
        BLOCK,
        "add(keys, num_keys, 1);",
        "add(keys, 0, 1);",
        unseen=NO_WORKER,
    ),
    Mutation(
        "each rank decays as the first",
        BLOCK,
        "pass.weights.floats(a_log_) + first_value_head_",
        "pass.weights.floats(a_log_)",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a checkpoint has the convolution's inputs at the end of the row",
        INPUTS,
        "leave_inputs(args, row, saved_end, before,",
        "leave_inputs(args, row, args.q_starts[row + 1], before,",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a row that restores keeps its slot's old inputs of the convolution",
        INPUTS,
        "args.inputs_at(args.from_places[row]);",
        "args.inputs_at(args.places[row]);",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a checkpoint has the state at the end of the row",
        KERNEL,
        "if (end == saved_end_)",
        "if (end == end_)",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a row that restores continues its slot's old state",
        KERNEL,
        "before_ != state_",
        "before_ == nullptr",
        unseen=NO_WORKER,
    ),
    Mutation(
        "the first tokens of a row are convolved without those before it",
        KERNEL,
        "is_new_       ? zeros",
        "begin_ >= 0   ? zeros",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a state that a wrong draft kept from being saved is kept",
        POOL,
        "if (saving.position <= num_tokens) return false;",
        "return false;",
        unseen="rare: seed 5758 is the first that shows it",
    ),
    Mutation(
        "a state amid drafts is never kept",
        POOL_STATE,
        "saving.step > step || saving.position > end",
        "saving.step > step || end < 0",
        unseen=WASTE,
    ),
    Mutation(
        "a step has more drafts than the workers keep",
        PLANNER,
        "if (pool_.has_state()) num_left = std::min(num_left, messages::kStateDraftsMax);",
        "",
        unseen="its steps have few tokens",
    ),
    Mutation(
        "the state of a wrong draft is kept",
        STEP,
        "if (is_after_draft && counts[i]) ++nums.back();",
        "if (is_after_draft) ++nums.back();",
        unseen=NO_WORKER,
    ),
    Mutation(
        "one right draft too few is replayed",
        REPLAY,
        "if (num_right[i] > 0) add_right(rows_[i], first, num_right[i]);",
        "if (num_right[i] > 1) add_right(rows_[i], first, num_right[i] - 1);",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a replay changes the state by the drafts of another row",
        REPLAY,
        "first += narrow(rows_[i].num);",
        "first += narrow(num_right[i]);",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a step stores the state after its drafts",
        KERNEL,
        "stored_end_ = args.stored_end(row);",
        "stored_end_ = end_;",
        unseen=NO_WORKER,
    ),
    Mutation(
        "a step stores the convolution's inputs of its drafts",
        INPUTS,
        "leave_inputs(args, row, args.stored_end(row), before,",
        "leave_inputs(args, row, args.q_starts[row + 1], before,",
        unseen=NO_WORKER,
    ),
)
