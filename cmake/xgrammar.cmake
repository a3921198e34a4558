# xgrammar, which compiles grammars, from the sources that launch/lib/setup.sh has fetched: a static library. Sets
# PITSTOP_WITH_XGRAMMAR. Without the sources grammar/ is built all the same, and refuses every grammar.
set(PITSTOP_XGRAMMAR "${PROJECT_SOURCE_DIR}/build/xgrammar" CACHE PATH "the sources of xgrammar (launch/xgrammar.txt)")
set(PITSTOP_WITH_XGRAMMAR OFF)
if(EXISTS ${PITSTOP_XGRAMMAR}/pin)
    set(PITSTOP_WITH_XGRAMMAR ON)
    set(sources
        compiled_grammar config converter_ext/cohere converter_ext/deepseek converter_ext/glm converter_ext/kimi_k3
        converter_ext/minimax converter_ext/minimax_m3 converter_ext/qwen earley_parser fsm fsm_builder grammar
        grammar_builder grammar_compiler grammar_functor grammar_matcher grammar_parser grammar_printer
        json_schema_converter lark_converter regex_converter structural_tag suffix_automata support/logging
        support/recursion_guard testing tokenizer_info)
    list(TRANSFORM sources REPLACE "(.+)" "${PITSTOP_XGRAMMAR}/cpp/\\1.cc")
    add_library(xgrammar STATIC ${sources})
    set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD OFF PITSTOP_PRECOMPILED OFF)
    target_compile_definitions(xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
    target_compile_options(xgrammar PRIVATE -w -g0)
    target_include_directories(xgrammar SYSTEM PUBLIC
        ${PITSTOP_XGRAMMAR}/include ${PITSTOP_XGRAMMAR}/3rdparty/picojson ${PITSTOP_XGRAMMAR}/3rdparty/dlpack/include)
else()
    message(STATUS "grammars: no xgrammar in ${PITSTOP_XGRAMMAR}; they will be refused (launch/quickstart fetches it)")
endif()
