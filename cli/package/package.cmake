# Packages: cmake --preset package && cmake --build --preset package && cpack --config build-package/CPackConfig.cmake
#
# A tarball of the whole tree, which may be moved, and three of Debian: dtplan with the programs, catalogues, pages of the
# manual and completions; libdtplan0 with the library; libdtplan-dev with what programs are built with. Dependencies on libraries are those
# that dpkg-shlibdeps reads in what was linked. Preset package builds without CUDA: NVIDIA's libraries are in no
# distribution, and who has them builds dtplan-exec on the machine that has the GPUs.
set(CPACK_PACKAGE_NAME dtplan)
set(CPACK_PACKAGE_VENDOR dtplan)
set(CPACK_PACKAGE_CONTACT "dtplan maintainers <maintainers@dtplan.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "predicts what training a transformer on GPUs needs and takes")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR})
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL Unspecified library development)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME dtplan)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SUGGESTS gnuplot-nox)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libdtplan0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS "dtplan (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA
  ${CMAKE_CURRENT_LIST_DIR}/triggers ${CMAKE_CURRENT_BINARY_DIR}/package/shlibs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libdtplan-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libdtplan0 (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_UNSPECIFIED_DESCRIPTION "dtplan answers before GPUs are rented: memory on each, bytes on the wire,
time of a step, tokens per second and dollars, for data, tensor, pipeline and
expert parallel training of decoder-only transformers. It simulates the step,
needs no GPU, and prints its own error on published runs.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "libdtplan answers what the commands of dtplan answer, for programs, by the
catalogues of that package.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Header, pkg-config file and an example of libdtplan, which answers what the
commands of dtplan answer, for programs.")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/package/shlibs "libdtplan 0 libdtplan0 (>= ${PROJECT_VERSION})\n")

# What Debian asks of each package's folder of documents.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  file(READ ${CMAKE_CURRENT_LIST_DIR}/copyright copyright)
  string(TIMESTAMP today "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH where it is set
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/package/changelog
    "dtplan (${PROJECT_VERSION}) unstable; urgency=medium\n\n  * See CHANGES.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${today}\n")
  find_program(GZIP gzip REQUIRED)
  set(packed ${CMAKE_CURRENT_BINARY_DIR}/package)
  execute_process(COMMAND ${GZIP} -9nf ${packed}/changelog COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/libdtplan0.overrides DESTINATION share/lintian/overrides RENAME libdtplan0
    COMPONENT library)
  foreach(part Unspecified=dtplan library=libdtplan0 development=libdtplan-dev)
    string(REPLACE "=" ";" part ${part})
    list(GET part 0 component)
    list(GET part 1 name)
    install(FILES ${CMAKE_CURRENT_LIST_DIR}/copyright ${packed}/changelog.gz DESTINATION share/doc/${name}
      COMPONENT ${component})
  endforeach()
  # Pages of the manual and the list of changes are packed, the licence stands in copyright.
  set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/pack.cmake)
endif()
include(CPack)
