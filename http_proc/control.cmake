# The control routes: flow, weights, memory, of both dialects.
target_sources(pitstop_http_requests
    PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES base64.h control_fields.h
    PRIVATE base64.cpp control_fields.cpp)
target_sources(pitstop_http_proc
    PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
        control.h control_routes.h sglang_answers.h vllm_pause.h weight_session.h
    PRIVATE control.cpp control_routes.cpp pitstop_shutdown.cpp server_info.cpp sglang_answers.cpp
            sglang_control.cpp sglang_drain.cpp sglang_memory.cpp sglang_weight_transfer.cpp sglang_weights.cpp vllm_pause.cpp
            vllm_rpc.cpp vllm_sleep.cpp vllm_weight_transfer.cpp weight_label.cpp weight_session.cpp weights_checker.cpp)
