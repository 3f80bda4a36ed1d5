# What `cmake --install` installs in addition to the program: library, headers, CMake package, pkg-config file.
# All of them may be moved together.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
install(TARGETS sluice_shared EXPORT sluiceTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_BINARY_DIR}/generated/sluice/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice)
install(EXPORT sluiceTargets NAMESPACE sluice:: DESTINATION ${package_dir})

set(generated ${CMAKE_BINARY_DIR}/generated)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sluiceConfig.cmake.in
  ${generated}/sluiceConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${generated}/sluiceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${generated}/sluiceConfig.cmake ${generated}/sluiceConfigVersion.cmake
        DESTINATION ${package_dir})

cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig
  OUTPUT_VARIABLE pc_to_prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in ${generated}/sluice.pc @ONLY)
install(FILES ${generated}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
