# `cpack -G DEB` (make deb): one Debian package of all that is installed. Its dependencies are those of the program and
# the library, as dpkg-shlibdeps reads them. The module for MPI, which needs more, is a package of its own, sluice-mpi.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_CONTACT "The Sluice authors <sluice@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0)  # loaded when it is first needed
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
if(SLUICE_HAS_MPI)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_ALL Unspecified mpi)
  set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME sluice)
  set(CPACK_DEBIAN_MPI_PACKAGE_NAME sluice-mpi)
  set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "sluice (= ${PROJECT_VERSION})")
  set(CPACK_DEBIAN_MPI_PACKAGE_RECOMMENDS openmpi-bin)
  set(CPACK_COMPONENT_MPI_DESCRIPTION "Sluice on several processes, through MPI")
endif()
include(CPack)
