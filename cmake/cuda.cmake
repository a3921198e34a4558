# Sets PITSTOP_WITH_CUDA. AUTO takes the toolkit where it is found, 12.4 or newer.
set(PITSTOP_WITH_CUDA OFF)
if(NOT PITSTOP_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "PITSTOP_CUDA is '${PITSTOP_CUDA}'; it takes AUTO, ON or OFF")
endif()
