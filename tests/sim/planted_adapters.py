"""The bugs of adapters that adapter_mutations.py plants. The driver names the test that finds each."""

from planted_updates import Mutation

ADAPTERS = "scheduler_proc/adapters.cpp"
PLACES = "scheduler_proc/adapter_places.cpp"
RUNNER = "scheduler_proc/runner.cpp"
PLANNER = "scheduler_proc/step_planner.cpp"
OPEN = "scheduler_proc/open_requests.cpp"
CALLS = "scheduler_proc/calls.cpp"
LOAN = "scheduler_proc/loan.cpp"
JOB = "scheduler_proc/update_job.cpp"

MUTATIONS = (
    Mutation(
        "a version that is replaced or unloaded keeps its pin",
        ADAPTERS,
        "    places_.unpin(resident.use.id);\n",
        "",
    ),
    Mutation(
        "a version is forgotten while requests have it",
        ADAPTERS,
        "if (resident.num_requests > 0 || resident.is_serving ||",
        "if (resident.is_serving ||",
    ),
    Mutation(
        "a version that serves no more stays after its last request",
        ADAPTERS,
        "    --resident.num_requests;\n    free_unused(resident, out);\n",
        "    --resident.num_requests;\n    static_cast<void>(out);\n",
    ),
    Mutation(
        "a pinned version is evicted",
        PLACES,
        "           !entry.is_pinned && !in_use_.contains(id)",
        "           !in_use_.contains(id)",
    ),
    Mutation(
        "a version in use is evicted",
        PLACES,
        "!entry.is_pinned && !in_use_.contains(id)",
        "!entry.is_pinned",
    ),
    Mutation(
        "the version of a request that was retracted is evicted",
        OPEN,
        "request.adapter && request.was_admitted",
        "request.adapter && request.is_running()",
    ),
    Mutation(
        "a request that was retracted waits for a version that leaves",
        PLANNER,
        "if (first.was_admitted) return false;",
        "if (first.was_admitted && !first.adapter) return false;",
    ),
    Mutation(
        "a restore is over when its first rank has answered",
        PLACES,
        "    if (!place.silent.empty()) return true;\n",
        "",
    ),
    Mutation(
        "requests that wait keep the replaced version under keep",
        RUNNER,
        "if (request->adapter_id() != replaced) continue;",
        "if (request->adapter_id() != replaced || !request->is_running()) continue;",
    ),
    Mutation(
        "requests go on with the new version under finish",
        RUNNER,
        "if (!replaced || policy == messages::AdapterPolicy::kFinish) return 0;",
        "if (!replaced) return 0;",
    ),
    Mutation(
        "a prompt is scored by two versions under keep",
        RUNNER,
        "policy == messages::AdapterPolicy::kRecompute || request->is_to_score();",
        "policy == messages::AdapterPolicy::kRecompute;",
    ),
    Mutation(
        "a rollback returns to the version that serves",
        ADAPTERS,
        "    if (place->second.previous) return residents_.at(*place->second.previous).use;\n",
        "    if (place->second.previous) return residents_.at(place->second.id).use;\n",
    ),
    Mutation(
        "a rollback that begins gives up the version before",
        CALLS,
        "    if (update_.roll_back_adapter(order, previous, now_, why_not, out)) runner_.watch_steps();\n",
        "    if (update_.roll_back_adapter(order, previous, now_, why_not, out)) runner_.watch_steps();\n"
        "    runner_.adapters().forget_previous(order.adapter, out);\n",
    ),
    Mutation(
        "an unload leaves a version to return to",
        ADAPTERS,
        "    forget_previous(name, out);\n    Resident& resident = residents_.at(place->second.id);\n",
        "    Resident& resident = residents_.at(place->second.id);\n",
    ),
    Mutation(
        "a stage keeps the version before",
        LOAN,
        "    adapters.forget_previous(adapter, out);  // first: the new version may need its memory\n",
        "",
    ),
    Mutation(
        "a rollback pins a version that was not pinned",
        JOB,
        "    stage.spec.adapter_pinned = previous.is_pinned;\n",
        "    stage.spec.adapter_pinned = true;\n",
    ),
    Mutation(
        "a part takes the version's pin away",
        LOAN,
        "        if (beginning && beginning->version.is_pinned) order.spec.adapter_pinned = true;\n",
        "",
    ),
    Mutation(
        "a part begins with nothing",
        LOAN,
        "        if (order.spec.partial) beginning = Beginning{adapters.served(adapter)};\n",
        "",
    ),
    Mutation(
        "a part changes a version that it was not made for",
        ADAPTERS,
        "        if (spec.base_digest != digest) {\n",
        "        if (spec.base_digest.size() != digest.size()) {\n",
    ),
)
