# The checker of the layers is itself checked: on a tree where every bad_* breaks one rule and nothing else breaks any,
# it must fail and name exactly the bad ones; on a tree without sources it must fail too.
cmake_minimum_required(VERSION 3.22)
set(here ${CMAKE_CURRENT_LIST_DIR})
set(fixture ${here}/layers_fixture)

execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${fixture} -DTABLE=${here}/../folders.cmake -P ${here}/check_layers.cmake
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "violations passed unseen:\n${output}")
endif()
file(GLOB_RECURSE sources RELATIVE ${fixture} ${fixture}/*)
foreach(source ${sources})
  string(FIND "${output}" "${source}: " place)
  if(source MATCHES "/bad_" AND place EQUAL -1)
    message(FATAL_ERROR "${source} breaks a rule and was not reported:\n${output}")
  elseif(NOT source MATCHES "/bad_" AND NOT place EQUAL -1)
    message(FATAL_ERROR "${source} breaks no rule and was reported:\n${output}")
  endif()
endforeach()

execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${fixture}/nothing -DTABLE=${here}/../folders.cmake -P ${here}/check_layers.cmake
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
if(status EQUAL 0)
  message(FATAL_ERROR "an empty tree passed")
endif()
