# What a machine needs that runs trees: the programs, by their targets.
set(PITSTOP_PROGRAMS
    pitstop_cli pitstop_tokenize pitstop_tokenizer_proc_main pitstop_scheduler_proc pitstop_detokenizer_proc
    pitstop_tp_worker_main pitstop_http_proc_main)

# Libraries that are packed beside the programs are found wherever these lie, and find each other: a RUNPATH would
# not be handed on.
function(pitstop_find_libraries_beside)
    foreach(program IN LISTS PITSTOP_PROGRAMS)
        set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH ON)
        target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
    endforeach()
endfunction()
