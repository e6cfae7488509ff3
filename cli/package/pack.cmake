# Run by cpack before a package of Debian is made: long texts are packed there, and the licence stands in copyright alone.
find_program(GZIP gzip REQUIRED)
if(CPACK_GENERATOR STREQUAL "DEB")
  file(GLOB_RECURSE texts ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.1 ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*.7
    ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/CHANGES)
  foreach(text ${texts})
    execute_process(COMMAND ${GZIP} -9nf ${text} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB_RECURSE licences ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/LICENSE)
  if(licences)
    file(REMOVE ${licences})
  endif()
endif()
