"""The bugs of experts' adapters that adapter_mutations.py plants. No schedule shows them: a schedule runs no model."""

import functools

import planted_updates

COMPUTED = "tp_worker/blocks/expert_adapters.cpp"
SLOTS = "tp_worker/weights/adapter_slots.cpp"
CHECKS = "tp_worker/weights/stage_checks.cpp"
COPIES = "tp_worker/weights/ordered_packs.cpp"
UNPACK = "tp_worker/weights/unpack.cpp"

Mutation = functools.partial(planted_updates.Mutation, unseen="a schedule runs no model")

MUTATIONS = (
    Mutation(
        "two experts share the pairs of one",
        COMPUTED,
        "static_cast<std::int32_t>(expert) * ExpertAdapters::kWeightsPerExpert",
        "static_cast<std::int32_t>(expert / 2 * 2) * ExpertAdapters::kWeightsPerExpert",
    ),
    Mutation(
        "an expert's up has the pair of its gate",
        COMPUTED,
        "weight_of(parts[i].w, static_cast<std::int64_t>(e))",
        "weight_of(parts[0].w, static_cast<std::int64_t>(e))",
    ),
    Mutation(
        "an expert's matrix without a pair hides the pair of the next one",
        COMPUTED,
        "                if (pair == nullptr) continue;\n",
        "                if (pair == nullptr) break;\n",
    ),
    Mutation(
        "an expert's scale is applied twice",
        COMPUTED,
        "                    .scale = pair->scale,\n",
        "                    .scale = pair->scale * pair->scale,\n",
    ),
    Mutation(
        "an expert's rows before an adapter's tokens have the adapter",
        COMPUTED,
        "            pass_tokens_before(tokens.begin);\n",
        "",
    ),
    Mutation(
        "an expert's rows after an adapter's tokens have the adapter",
        COMPUTED,
        "            pass_tokens_before(tokens.begin + tokens.num);\n",
        "            row = end;\n",
    ),
    Mutation(
        "the last token of an adapter is left out",
        COMPUTED,
        "            pass_tokens_before(tokens.begin + tokens.num);\n",
        "            pass_tokens_before(tokens.begin + tokens.num - 1);\n",
    ),
    Mutation(
        "an expert without an adapter's rows ends the search",
        COMPUTED,
        "            if (row == begin) continue;\n",
        "            if (row == begin) return;\n",
    ),
    Mutation(
        "the segments of another product are added again",
        COMPUTED,
        "        segments.clear();\n",
        "",
    ),
    Mutation(
        "two products of one expert share the memory of their sums",
        COMPUTED,
        "                h.data += static_cast<std::int64_t>(i) * rank_max();\n",
        "",
    ),
    Mutation(
        "a rank has the pairs of another rank's experts",
        SLOTS,
        "base.share.ranges.empty() ? share.of_no_holder() : share}",
        "share}",
    ),
    Mutation(
        "a rank has one matrix of a pair of another rank's expert",
        SLOTS,
        "    whole.split = Split{0, base.share.ranges.empty() ? share.of_no_holder() : share};\n",
        "    static_cast<void>(whole);\n    static_cast<void>(share);\n",
    ),
    Mutation(
        "a missing packed pair counts as zeros",
        SLOTS,
        "        if (slot.by_parameter) return false;\n",
        "",
    ),
    Mutation(
        "a missing pair of a router that the adapter names counts as zeros",
        SLOTS,
        "(slot.adaptable->is_of_router && config_.is_of_all_linear())",
        "slot.adaptable->is_of_router",
    ),
    Mutation(
        "a missing matrix of a pair counts as zeros",
        CHECKS,
        "has_any && other && absent[*other]",
        "has_any && other",
    ),
    Mutation(
        "an adapter without a tensor counts as zeros",
        CHECKS,
        "std::ranges::find(absent, false) != absent.end()",
        "!absent.empty()",
    ),
    Mutation(
        "the sides of a packed B are swapped",
        SLOTS,
        ".per_row = r * E, .per_col = E}",
        ".per_row = E, .per_col = out * E}",
    ),
    Mutation(
        "the columns of a packed B are one expert's after another's",
        SLOTS,
        "{.begin = row * r * E + e, .per_row = r * E, .per_col = E}",
        "{.begin = row * r * E + e * r, .per_row = r * E, .per_col = 1}",
    ),
    Mutation(
        "the rows of a packed A are one rank's after another's",
        SLOTS,
        "{.begin = e * r * in, .per_row = in}",
        "{.begin = e * in, .per_row = E * in}",
    ),
    Mutation(
        "up has the rows of gate in a packed B",
        SLOTS,
        "            const std::int64_t row = i % per_expert * base_.list()[index_of(slot)].shape[0];\n",
        "            const std::int64_t row = 0;\n",
    ),
    Mutation(
        "the inner one of two packed parameters is down",
        SLOTS,
        '        if (is_inner) path += ".base_layer";\n',
        '        if (!is_inner) path += ".base_layer";\n',
    ),
    Mutation(
        "square packed matrices are taken from a PEFT that swaps their sides",
        SLOTS,
        "!is_square || config_.has_sides_in_order()",
        "!is_square || !config_.has_sides_in_order()",
    ),
    Mutation(
        "with target_parameters, experts are modules too",
        SLOTS,
        "!path.empty() && !(is_of_expert(i) && config_.has_parameters())",
        "!path.empty()",
    ),
    Mutation(
        "a second matrix of a packed tensor is read from the first one's place",
        COPIES,
        "    bytes_ += matrix.rows * matrix.cols * element_bytes_;\n",
        "    bytes_ = std::max(bytes_, matrix.rows * matrix.cols * element_bytes_);\n",
    ),
    Mutation(
        "all copies of packed tensors stay",
        COPIES,
        "    if (kept_.size() > kKeptMax) kept_.pop_front();\n",
        "",
    ),
    Mutation(
        "the packed tensors of a call share no bound of copies",
        UNPACK,
        "unpacked(layout, incoming.spec, incoming.bytes, kept)",
        "unpacked(layout, incoming.spec, incoming.bytes, kept ? std::make_shared<OrderedPacks>() : kept)",
    ),
    Mutation(
        "the packed tensors of a checkpoint share no bound of copies",
        "tp_worker/weights/checkpoint_tensors.cpp",
        "unpacked(layout, stored.spec, bytes, kept)",
        "unpacked(layout, stored.spec, bytes, kept ? std::make_shared<OrderedPacks>() : kept)",
    ),
)
