# What `cmake --install` puts under a prefix, and the package that `cpack -G DEB` makes of it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(switchyard_shared SHARED cmake/shared.cc)
target_link_libraries(switchyard_shared PRIVATE -Wl,--whole-archive $<TARGET_FILE:switchyard_lib> -Wl,--no-whole-archive
  $<TARGET_PROPERTY:switchyard_lib,INTERFACE_LINK_LIBRARIES>)
add_dependencies(switchyard_shared switchyard_lib)
target_link_options(switchyard_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map)
set_target_properties(switchyard_shared PROPERTIES OUTPUT_NAME switchyard EXPORT_NAME switchyard
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exports.map)
target_include_directories(switchyard_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(switchyard_shared INTERFACE cxx_std_20)

# After `make train` the program is built and the library not yet.
install(CODE "if(NOT EXISTS \"$<TARGET_FILE:switchyard>\" OR NOT EXISTS \"$<TARGET_FILE:switchyard_shared>\")
  execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --target switchyard switchyard_shared COMMAND_ERROR_IS_FATAL ANY)
endif()")
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/switchyard)
install(TARGETS switchyard RUNTIME)
install(TARGETS switchyard_shared EXPORT switchyardShared LIBRARY)
install(TARGETS switchyard_lib EXPORT switchyardStatic ARCHIVE)
install(EXPORT switchyardShared NAMESPACE switchyard:: DESTINATION ${package_folder})
install(EXPORT switchyardStatic NAMESPACE switchyard:: DESTINATION ${package_folder})
install(DIRECTORY include/switchyard TYPE INCLUDE)
if(TARGET xgrammar_objects)  # its licence asks for these beside a program that has it
  install(FILES ${SWITCHYARD_XGRAMMAR_FOLDER}/LICENSE ${SWITCHYARD_XGRAMMAR_FOLDER}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR}/xgrammar)
endif()
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/switchyard)
configure_package_config_file(cmake/switchyardConfig.cmake.in ${CMAKE_BINARY_DIR}/switchyardConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/switchyardConfig.cmake ${CMAKE_BINARY_DIR}/switchyardConfigVersion.cmake DESTINATION ${package_folder})

set(CPACK_PACKAGE_NAME switchyard)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Switchyard <switchyard@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains, runs and serves Mixture-of-Experts transformers")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
include(CPack)
