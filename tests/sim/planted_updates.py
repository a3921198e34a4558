"""The bugs of updates that update_mutations.py plants. The driver names the test that finds each."""

import dataclasses

from planting import Bug

ROUND = "messages/update_round.cpp"
ANSWERS = "tokenizer_proc/update_answers.cpp"
DRIVER = "tokenizer_proc/update_driver.cpp"
UPDATE = "tokenizer_proc/tree_update.cpp"
UPDATE_HEADER = "tokenizer_proc/tree_update.h"
SERVING = "tokenizer_proc/serving_weights.cpp"
ADMIN = "tokenizer_proc/admin.cpp"
COLLECTION = "tokenizer_proc/update_collection.cpp"
COLLECTED = "tokenizer_proc/collected_update.cpp"
LOST_CALLS = "tokenizer_proc/lost_calls.cpp"
SESSIONS = "tokenizer_proc/update_sessions.cpp"
REPLICA = "scheduler_proc/replica_update.cpp"
COMMIT = "scheduler_proc/replica_commit.cpp"
CALLS = "scheduler_proc/calls.cpp"
COLLECT = "scheduler_proc/collect.cpp"
OPEN = "scheduler_proc/open_requests.cpp"
REQUEST = "scheduler_proc/request.cpp"


@dataclasses.dataclass
class Mutation(Bug):
    """`unseen`: why no schedule can show the bug; empty: a schedule must."""

    unseen: str = ""


MUTATIONS = (
    Mutation(
        "a second vote of one rank is taken",
        ROUND,
        "who < std::ssize(has_answered_) &&\n           !has_answered_[static_cast<std::size_t>(who)]",
        "who < std::ssize(has_answered_)",
        unseen="answers are flags, and a rank's second answer to an order is its first",
    ),
    Mutation(
        "a round is complete with one answer missing",
        ROUND,
        "if (!silent().empty()) return",
        "if (silent().size() > 1) return",
    ),
    Mutation(
        "a no counts as a yes",
        ROUND,
        "if (answer == Answer::kFailed && phase_ != UpdatePhase::kDropping) {",
        "if (answer == Answer::kFailed && phase_ == UpdatePhase::kOpening) {",
    ),
    Mutation(
        "the answers to the order before count for the next one",
        ROUND,
        "    has_answered_.assign(has_answered_.size(), false);\n",
        "",
    ),
    Mutation(
        "a late answer of an update that is over counts",
        DRIVER,
        "if (!update_ || part.update != update_->id() || !update_->answers()",
        "if (!update_ || !update_->answers()",
    ),
    Mutation(
        "replicas that staged different weights commit",
        ANSWERS,
        "if (answer.digest != first.digest) {",
        "if (!answer.ok && answer.digest != first.digest) {",
    ),
    Mutation(
        "a drop does not say that the others are torn",
        UPDATE,
        "messages::UpdateDrop{id(), failure_.message, is_torn}",
        "messages::UpdateDrop{id(), failure_.message, is_torn && is_rollback()}",
    ),
    Mutation(
        "the door tells a torn engine as serving",
        ANSWERS,
        "return answer.state == messages::UpdateState::kTorn;",
        "return answer.state == messages::UpdateState::kCollecting;",
    ),
    Mutation(
        "the ranks are not told of a drop",
        COMMIT,
        "    out.workers.emplace_back(messages::WorkerDrop{.update = job.id});\n",
        "",
    ),
    Mutation(
        "a replica that was half overwritten is told as serving",
        COMMIT,
        "if (job.kind == UpdateJob::Kind::kDirect && is_stage_sent && may_have_written(job.ranks))",
        "if (job.kind == UpdateJob::Kind::kRollback && is_stage_sent && may_have_written(job.ranks))",
    ),
    Mutation(
        "a commit is answered by the first rank",
        COMMIT,
        "record_outcome(std::move(rank)) == messages::UpdateRound::Progress::kDone) {\n        job.record_commit",
        "record_outcome(std::move(rank)) != messages::UpdateRound::Progress::kFailed) {\n        job.record_commit",
    ),
    Mutation(
        "votes of another update count",
        REPLICA,
        "if (!awaits(vote.update, messages::UpdateOrder::kStage, vote.outcome.rank)) return false;",
        "if (!job_ || !awaits(job_->id, messages::UpdateOrder::kStage, vote.outcome.rank)) return false;",
    ),
    Mutation(
        "a commit with keep leaves a scoring the KV of the old version",
        CALLS,
        "            counts.num_recomputed = runner_.retract_scorings();\n",
        "",
    ),
    Mutation(
        "a scoring whose last token alone is not planned goes on over the old version's KV",
        REQUEST,
        "progress.planned() < progress.prompt_len();",
        "progress.planned() + 1 < progress.prompt_len();",
    ),
    Mutation(
        "an older prefix goes into a scoring that tolerates it",
        REQUEST,
        "    if (is_to_score()) return {current, current};\n",
        "",
    ),
    Mutation(
        "what was scored under the old version stays",
        OPEN,
        "            request.scores = {.start = request.scores.start};\n",
        "",
    ),
    Mutation(
        "a chunk that is in flight at the commit counts for the prefill that begins anew",
        OPEN,
        "        ++request.run;\n        if (request.progress.outputs()",
        "        if (request.progress.outputs()",
    ),
    Mutation(
        "a span tells the KV of its pass alone",
        COLLECT,
        ".kv_min_epoch = row.kv.min",
        ".kv_min_epoch = step.version.epoch",
    ),
    Mutation(
        "a request that scores alone goes on where nothing was finite",
        COLLECT,
        "    if (part.bad != nullptr && part.bad->position < part.end) {\n",
        "    if (part.bad != nullptr && part.bad->position < part.end && row.samples) {\n",
    ),
    Mutation(
        "what was not finite is said of the version after the pass's",
        COLLECT,
        "            is_output ? token - prompt_len : token,\n            raw(step.step),\n            raw(step.version.epoch)",
        "            is_output ? token - prompt_len : token,\n            raw(step.step),\n            raw(step.version.epoch) + 1",
    ),
    Mutation(
        "pages of a pass that was not finite stay in the prefix cache",
        COLLECT,
        "    if (bad != nullptr) forget_pages(row, bad->position);\n",
        "",
    ),
    Mutation(
        "pages of a pass that was not finite stay where its request is gone",
        COLLECT,
        "    if (bad != nullptr) forget_pages(row, bad->position);\n",
        "    if (bad != nullptr && requests_.find(row.key) != nullptr) forget_pages(row, bad->position);\n",
    ),
    Mutation(
        "logits that were not finite are said of the token that they follow",
        COLLECT,
        "bad.position + (bad.kind == Kind::kState ? 0 : 1);",
        "bad.position;",
    ),
    Mutation(
        "what is not finite ends the row after it",
        "scheduler_proc/in_flight_step.cpp",
        "    const std::int64_t row = row_++;",
        "    const std::int64_t row = row_++ - 1;",
    ),
    Mutation(
        "a scoring's last token has no logits where it is a chunk of its own",
        "scheduler_proc/step_planner.cpp",
        "prompt_len() - (is_sampled_after ? 1 : 0);",
        "prompt_len() - (is_sampled_after ? 1 : 1);",
    ),
    Mutation(
        "a request on another's pages names a token of its own",
        COLLECT,
        "const Where where = is_lent ? Where::kThereOrBefore",
        "const Where where = is_lent ? Where::kThere",
    ),
    Mutation(
        "an expired pause publishes what was collected",
        COLLECTED,
        "updates.drop_collection(now, std::move(why), UpdateCoordinator::Telling::kDue, out);",
        "updates.handle(now, {.what = messages::CommitWeights::kType}, messages::CommitWeights{}, out);",
    ),
    Mutation(
        "after a loss a part of a model may take effect",
        COLLECTED,
        "lost_calls_.is_any() ? Brings::kAllTensors : Brings::kParts",
        "Brings::kParts",
    ),
    Mutation(
        "a loss is forgotten",
        LOST_CALLS,
        '    loss_ = std::move(loss);\n    remember();\n    spdlog::warn("{}", error().message);',
        "",
    ),
    Mutation(
        "a pause forgets a loss for which nobody was refused",
        LOST_CALLS,
        "if (!standings_.is_any_held() && (loss_->is_told || loss_->is_part_refused)) loss_.reset();",
        "if (!standings_.is_any_held()) loss_.reset();",
    ),
    Mutation(
        "the label of lost calls is forgotten with the loss",
        LOST_CALLS,
        "if (found == by_label_.end()) return;",
        "return;",
        unseen="a trainer of the simulator names no label again after a loss",
    ),
    Mutation(
        "a part that is refused is not missed",
        UPDATE_HEADER,
        "(is_collection() || (calls_.is_unnamed() && !calls_.is_unnamed_refused()));",
        "(calls_.is_unnamed() && !calls_.is_unnamed_refused());",
        unseen="the door records the loss all the same, and the next continue drops what is collected",
    ),
    Mutation(
        "a part that is refused before the others is not missed",
        COLLECTED,
        "if (is_other || lost_calls_.is_any() || !standings_.is_any_held()) return;",
        "if (is_other || lost_calls_.is_any() || standings_.is_any_held()) return;",
        unseen="to a schedule a version that lacks its first part is a version of those that came",
    ),
    Mutation(
        "a resume publishes whatever is released or paused",
        COLLECTED,
        "return !standings_.is_any_paused() && standings_.is_any_released() &&\n"
        "           standings_.are_just_released(call.tags) && !coordinator().must_be_complete();",
        "return !call.tags.empty() || !coordinator().must_be_complete();",
    ),
    Mutation(
        "a session that is lost with calls that named none is forgotten",
        DRIVER,
        "        !update.calls().are_all_named())\n",
        "        update.calls().are_all_named())\n",
    ),
    Mutation(
        "a begin forgets a loss that nobody was told of",
        "tokenizer_proc/ended_sessions.cpp",
        "if (place != losses_.end() && place->second.told) losses_.erase(place);",
        "if (place != losses_.end()) losses_.erase(place);",
    ),
    Mutation(
        "a session that took over takes calls that name none",
        UPDATE,
        "= calls_.is_unnamed() || is_collection()};",
        "= is_collection()};",
    ),
    Mutation(
        "a session of the bus takes calls that name none",
        "tokenizer_proc/session_calls.h",
        "is_unnamed_ = call.unnamed;",
        "is_unnamed_ = true;",
    ),
    Mutation(
        "a bucket that names another session joins the one that is open",
        SESSIONS,
        "if (auto error = not_at(call.session, For::kFill))",
        "if (auto error = not_at(0, For::kFill))",
    ),
    Mutation(
        "what drop_stage drops may be followed by a part of a model",
        LOST_CALLS,
        "    const bool was_asked_for = lost.why.empty();\n",
        "    const bool was_asked_for = lost.why.empty();\n    if (was_asked_for) return;\n",
    ),
    Mutation(
        "after a loss a call stands alone where generation goes on",
        LOST_CALLS,
        "if (!loss_ || now >= loss_->refused_at + kQuiet) return Ok{};",
        "if (!loss_ || now >= loss_->refused_at) return Ok{};",
    ),
    Mutation(
        "a continue that a replica would refuse passes by what is collected",
        ADMIN,
        "        if (kIsContinue && !goes_on && !is_closing)\n            RETURN_IF_ERROR(collected_.check_none_is_collected(now));\n",
        "",
    ),
    Mutation(
        "calls for two labels are collected into one version",
        COLLECTION,
        "if (update.calls().is_of_another_version(call.update.label))",
        'if (call.update.label == "a")',
    ),
    Mutation(
        "calls for two labels fill one session",
        SESSIONS,
        "const bool is_checked = update.may_be_mixed() || bucket.names != SessionCalls::Names::kSession;",
        "const bool is_checked = update.is_collection();",
    ),
    Mutation(
        "a part of a version that was published stands alone under its label",
        SERVING,
        "label != collected_->label)",
        'label != "a")',
    ),
    Mutation(
        "a begin takes over what has a call under way",
        DRIVER,
        "if (update_ && call.take_over && update_->is_idle())",
        "if (update_ && call.take_over && phase() < messages::UpdatePhase::kCommitting)",
    ),
)
