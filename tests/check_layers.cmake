# Which folder may include what: cmake -DROOT=<source tree> -P tests/check_layers.cmake
#
#   model/    libc, GSL, libcsv, jansson, inih              reports/  model, sim; libc, GSL, jansson
#   sim/      model; libc, GSL                              cli/      model, sim, reports; libc, jansson
#   kernels/  CUDA, libc                                    exec/     model, kernels; libc, jansson, CUDA, NCCL,
#                                                                 cuBLASLt, cuDNN
#
# The planner must start on a laptop without CUDA, and the simulator must not see what the executor measures: they meet
# in tables only. An allow-list, so that a new dependency is a decision made here and not an accident.
cmake_minimum_required(VERSION 3.22)

set(libc "(alloca|assert|complex|ctype|dirent|err|errno|error|fcntl|fenv|float|fnmatch|ftw|getopt|glob|inttypes|iso646|\
langinfo|libgen|limits|locale|malloc|math|poll|pthread|regex|sched|search|setjmp|signal|spawn|stdalign|stdarg|stdatomic|\
stdbool|stddef|stdint|stdio|stdio_ext|stdlib|stdnoreturn|string|strings|sysexits|termios|tgmath|threads|time|uchar|\
unistd|arpa/inet|netdb|netinet/[a-z]+|wchar|wctype|wordexp|sys/[a-z]+)\\.h")
set(gsl "gsl/[a-z0-9_]+\\.h")
set(cuda "(cuda|cuda_[a-z0-9_]+|cooperative_groups|mma|curand_kernel|vector_types)\\.h|cub/[a-z_]+\\.cuh|math_constants\\.h")
set(libraries "nccl\\.h|nccl_device\\.h|cublas[A-Za-z_0-9]*\\.h|cudnn[a-z_0-9]*\\.h|cblas\\.h|numa\\.h|immintrin\\.h")

set(layers model sim kernels exec reports cli)
set(model_may_include model)
set(model_may_use "${libc}|${gsl}|csv\\.h|jansson\\.h|ini\\.h")
set(sim_may_include sim model)
set(sim_may_use "${libc}|${gsl}")
set(kernels_may_include kernels)
set(kernels_may_use "${libc}|${cuda}")
set(exec_may_include exec model kernels)
set(exec_may_use "${libc}|${cuda}|${libraries}|jansson\\.h")
set(reports_may_include reports model sim)
set(reports_may_use "${libc}|${gsl}|jansson\\.h")
set(cli_may_include cli reports model sim)
set(cli_may_use "${libc}|jansson\\.h")

set(violations 0)
macro(violation text)
  math(EXPR violations "${violations} + 1")
  message(NOTICE "${text}")
endmacro()

# A header in quotes: sets `layer` to the folder it lies in, searching as the compiler does with every folder on its path.
function(find_layer file header)
  get_filename_component(folder ${file} DIRECTORY)
  set(candidates ${ROOT}/${folder}/${header} ${ROOT}/${header})
  foreach(other ${layers})
    list(APPEND candidates ${ROOT}/${other}/${header})
  endforeach()
  foreach(candidate ${candidates})
    get_filename_component(absolute ${candidate} ABSOLUTE)
    if(EXISTS ${absolute})
      file(RELATIVE_PATH relative ${ROOT} ${absolute})
      string(REGEX REPLACE "/.*" "" found ${relative})
      set(layer ${found} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(layer "" PARENT_SCOPE)
endfunction()

macro(check_include own file line)
  if("${line}" MATCHES "include[ \t]*<([^>]+)>")
    set(header "${CMAKE_MATCH_1}")
    if(NOT header MATCHES "^(${${own}_may_use})$")
      violation("${file}: <${header}> is not among what ${own}/ may use")
    endif()
  elseif("${line}" MATCHES "include[ \t]*\"([^\"]+)\"")
    set(header "${CMAKE_MATCH_1}")
    find_layer(${file} ${header})
    if(NOT layer)
      violation("${file}: \"${header}\" is no header of the project; write libraries in <>")
    elseif(NOT layer IN_LIST ${own}_may_include)
      violation("${file}: \"${header}\" lies in ${layer}/, which ${own}/ may not include")
    endif()
  else()
    violation("${file}: an include that is neither <...> nor \"...\" cannot be checked")
  endif()
endmacro()

if(NOT ROOT)
  message(FATAL_ERROR "usage: cmake -DROOT=<source tree> -P check_layers.cmake")
endif()
set(checked 0)
foreach(own ${layers})
  file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/${own}/*.c ${ROOT}/${own}/*.h ${ROOT}/${own}/*.cu ${ROOT}/${own}/*.cuh
    ${ROOT}/${own}/*.def)
  foreach(source ${sources})
    math(EXPR checked "${checked} + 1")
    file(STRINGS ${ROOT}/${source} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
      check_include(${own} ${source} "${line}")
    endforeach()
  endforeach()
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "no source files below ${ROOT}: nothing was checked")
elseif(violations GREATER 0)
  message(FATAL_ERROR "${violations} includes break the layering; the rules stand at the top of ${CMAKE_CURRENT_LIST_FILE}")
endif()
message(STATUS "${checked} files keep to the layers")
