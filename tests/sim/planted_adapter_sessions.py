"""The bugs of adapters' sessions that adapter_mutations.py plants. The driver names the test that finds each."""

from planted_updates import Mutation

SESSIONS = "tokenizer_proc/update_sessions.cpp"
ENDED = "tokenizer_proc/ended_sessions.cpp"
DRIVER = "tokenizer_proc/update_driver.cpp"
UPDATE = "tokenizer_proc/tree_update.cpp"
COLLECTED = "tokenizer_proc/collected_update.cpp"
ADMIN = "tokenizer_proc/admin.cpp"
REPLICA = "scheduler_proc/replica_update.cpp"
COMMIT = "scheduler_proc/replica_commit.cpp"
LOAN = "scheduler_proc/loan.cpp"

MUTATIONS = (
    Mutation(
        "a call for an adapter joins the session of another adapter",
        SESSIONS,
        "if (part.adapter.empty() || part.adapter == session.adapter) return std::nullopt;",
        "if (part.adapter.empty() || !session.adapter.empty()) return std::nullopt;",
    ),
    Mutation(
        "a late call for an adapter ends what is collected of the model",
        SESSIONS,
        "        (!adapter.empty() && !is_of(adapter));\n",
        "        false;\n",
    ),
    Mutation(
        "the loss of an adapter's session is told to no call for it",
        ENDED,
        "adapter.empty() ? losses_.begin() : losses_.find(adapter);",
        "adapter.empty() ? losses_.begin() : losses_.end();",
    ),
    Mutation(
        "the begin of an adapter's session forgets the loss of the model's",
        DRIVER,
        "                ended_.forget_told_loss(update.spec().adapter);\n",
        '                ended_.forget_told_loss("");\n',
        unseen="in none of 2000 the model's trainer is told of a loss, and calls again after an adapter's begin",
    ),
    Mutation(
        "the loss of an adapter's session takes the place of the model's",
        ENDED,
        "    losses_.insert_or_assign(session.adapter, Loss{.session = session});\n",
        "    losses_.clear();\n    losses_.insert_or_assign(session.adapter, Loss{.session = session});\n",
        unseen="in none of 2000 both sessions are lost before the model's trainer calls again",
    ),
    Mutation(
        "an adapter's session makes a version with the model's next number",
        DRIVER,
        "    if (!begin.spec.adapter.empty())\n        new_epoch",
        "    if (!begin.spec.adapter.empty() && begin.goal != messages::UpdatePhase::kOpen)\n        new_epoch",
    ),
    Mutation(
        "the commit of an adapter's session decides on a version of the model",
        DRIVER,
        "            if (!update.is_of_adapter()) decide();\n",
        "            if (!update.is_of_adapter() || update.is_session()) decide();\n",
    ),
    Mutation(
        "an adapter's session does not time out",
        UPDATE,
        "    deadline_ = now + (is_staged() ? Duration(kStagedHoldMax) : idle_timeout_);\n",
        "    deadline_ = now + (is_staged() || is_of_adapter() ? Duration(kStagedHoldMax) : idle_timeout_);\n",
    ),
    Mutation(
        "the answer to a commit of an adapter's session names the model's version",
        UPDATE,
        "(is_of_adapter() && phase() == messages::UpdatePhase::kCommitted);",
        "(is_of_adapter() && !is_session() && phase() == messages::UpdatePhase::kCommitted);",
    ),
    Mutation(
        "a begin for an adapter drops what is collected in a tree without weights",
        COLLECTED,
        "return !closing_ && spec.adapter.empty() && coordinator().is_collecting() &&",
        "return !closing_ && coordinator().is_collecting() &&",
    ),
    Mutation(
        "an adapter is unloaded while a session is open",
        ADMIN,
        "        if (updates().is_busy()) {\n            messages::ReplyTo<Message> reply;\n",
        "        if (updates().is_busy() && !updates().is_open()) {\n            messages::ReplyTo<Message> reply;\n",
    ),
    Mutation(
        "a part in a session begins with nothing",
        LOAN,
        "        if (order.spec.partial) beginning = Beginning{adapters.served(adapter)};\n",
        "        if (order.spec.partial && order.spec.source.kind != messages::SourceKind::kBuckets)\n"
        "            beginning = Beginning{adapters.served(adapter)};\n",
    ),
    Mutation(
        "the begin of a session keeps the version before",
        LOAN,
        "    adapters.forget_previous(adapter, out);  // first: the new version may need its memory\n",
        "    if (order.spec.source.kind != messages::SourceKind::kBuckets) adapters.forget_previous(adapter, out);\n",
    ),
    Mutation(
        "the digest in the commit of an adapter's session is not compared",
        REPLICA,
        "    if (!order.digest.empty()) job.spec.digest = order.digest;\n",
        "    if (!order.digest.empty() && !job.is_of_adapter()) job.spec.digest = order.digest;\n",
    ),
    Mutation(
        "the label in the commit of an adapter's session is ignored",
        REPLICA,
        "    if (!order.label.empty()) job.label = order.label;\n",
        "    if (!order.label.empty() && !job.is_of_adapter()) job.label = order.label;\n",
    ),
    Mutation(
        "the answers to the bucket before count in an adapter's session",
        REPLICA,
        "|| job_->bucket != answer.bucket)",
        "|| (job_->bucket != answer.bucket && !job_->is_of_adapter()))",
    ),
    Mutation(
        "the ranks are not told of a drop of an adapter's session",
        COMMIT,
        "    if (!is_stage_sent) {\n",
        "    if (!is_stage_sent || job.is_of_adapter()) {\n",
    ),
    Mutation(
        "the commit of an adapter is answered by its first rank",
        COMMIT,
        "    if (record_outcome(std::move(rank)) == messages::UpdateRound::Progress::kDone) {\n        job.record_commit",
        "    if (record_outcome(std::move(rank)) == messages::UpdateRound::Progress::kDone || job.is_of_adapter()) {\n"
        "        job.record_commit",
    ),
    Mutation(
        "a call that names another session joins an adapter's",
        SESSIONS,
        "session != update->number())) {",
        "(session != update->number() && !update->is_of_adapter()))) {",
    ),
)
