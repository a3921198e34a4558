"""The bugs of routes that route_mutations.py plants. The driver names the test that finds each."""

from planted_updates import Mutation

REQUEST = "scheduler_proc/request.cpp"
PLANNER = "scheduler_proc/step_planner.cpp"
COLLECT = "scheduler_proc/collect.cpp"
OPEN = "scheduler_proc/open_requests.cpp"
ROUTES = "messages/routes.cpp"
READER = "scheduler_proc/in_flight_step.cpp"

MUTATIONS = (
    Mutation(
        "a request that brings routes takes KV from the cache",
        REQUEST,
        "    if (has_brought()) return 0;\n",
        "",
    ),
    Mutation(
        "a prompt that brings routes is shared as it is planned",
        PLANNER,
        "    if (request.has_brought()) return;\n",
        "",
    ),
    Mutation(
        "what a request that brings routes has computed is shared",
        COLLECT,
        "request.is_running() && !request.has_brought()",
        "request.is_running()",
    ),
    Mutation(
        "each chunk of a prompt follows the first rows that its request brings",
        REQUEST,
        "std::span(brought).subspan(\n        static_cast<std::size_t>(begin * row_bytes), ",
        "std::span(brought).subspan(\n        0, ",
    ),
    Mutation(
        "a chunk that begins with routes that are brought has them for all its tokens",
        PLANNER,
        "std::min(end, request.num_brought) - begin",
        "end - begin",
    ),
    Mutation(
        "the last row that a request brings is not followed",
        REQUEST,
        "std::min(end, num_brought) - begin",
        "std::min(end, num_brought - 1) - begin",
    ),
    Mutation(
        "a prefill that begins anew keeps the rows of the one before",
        OPEN,
        "            request.forget_routes();\n",
        "",
    ),
    Mutation(
        "rows that are wanted are taken from the cache, which has none",
        REQUEST,
        "    if (wants_routes()) len = std::min(len, routed);\n",
        "",
    ),
    Mutation(
        "the last token has a row, though nothing follows it",
        REQUEST,
        "progress.prompt_len() + progress.output_len_max() - 1;",
        "progress.prompt_len() + progress.output_len_max();",
    ),
    Mutation(
        "rows of two versions have the span of the first",
        ROUTES,
        "if (!spans.empty() && spans.back().epoch == next.epoch) {",
        "if (!spans.empty()) {",
    ),
    Mutation(
        "the first rows say that they begin at the first token",
        REQUEST,
        "    routes = {.start = routed, .shape = routes.shape};\n",
        "    routes = {.start = 0, .shape = routes.shape};\n",
    ),
    Mutation(
        "each right draft has the row of the first",
        COLLECT,
        "(row.drafts.size() + 1 - i) * route_bytes",
        "row.drafts.size() * route_bytes",
    ),
    Mutation(
        "rows of drafts that are wrong are sent",
        COLLECT,
        "routes.first(routes.size() - routes_of_drafts(step, row))",
        "routes",
    ),
    Mutation(
        "a row of a step takes the routes of the rows after it, too",
        READER,
        "static_cast<std::size_t>(row.num_routed * route_bytes_)",
        "static_cast<std::size_t>((row.end - row.begin) * route_bytes_)",
    ),
)
