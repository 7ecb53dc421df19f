# A Debian package of what is installed: cpack -G DEB (scripts/install --deb).

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "kinora's maintainers <maintainers@kinora.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_FILE_NAME kinora)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION video)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# What is loaded when it is first needed, which no tool sees: FFmpeg by the versions of its headers,
# and Cairo.
set(loaded libcairo2)
foreach(library avformat avcodec avutil swscale)
  string(REGEX MATCH "^[0-9]+" major "${FFMPEG_lib${library}_VERSION}")
  list(APPEND loaded lib${library}${major})
endforeach()
list(JOIN loaded ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
include(CPack)
