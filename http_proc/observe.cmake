# Chat, tokenizing, metrics and the status page.
target_sources(pitstop_http_requests
    PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES openai_chat_request.h tool_calls.h
    PRIVATE openai_chat_request.cpp tool_calls.cpp)
target_sources(pitstop_http_proc
    PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
        metrics_text.h request_metrics.h ticker.h
    PRIVATE metrics.cpp metrics_text.cpp openai_chat.cpp request_metrics.cpp status_page.cpp
            status_page.inc ticker.cpp vllm_tokenize.cpp)
