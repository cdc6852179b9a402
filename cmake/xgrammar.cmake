# xgrammar (Apache-2.0), which src/grammar/xgrammar/ uses: its C++ sources as objects of this library, without its
# Python bindings. scripts/install_dependencies.sh fetches them; without them the build has no grammars and says so.
option(SWITCHYARD_XGRAMMAR "grammars of answers, by xgrammar where its sources are there" ON)
set(SWITCHYARD_XGRAMMAR_FOLDER ${CMAKE_SOURCE_DIR}/third_party/xgrammar-0.2.8 CACHE PATH "sources of xgrammar")

function(add_xgrammar target)
  file(GLOB_RECURSE files ${SWITCHYARD_XGRAMMAR_FOLDER}/cpp/*.cc)
  list(FILTER files EXCLUDE REGEX "/tvm_ffi/")
  add_library(xgrammar_objects OBJECT ${files})
  target_include_directories(xgrammar_objects PRIVATE ${SWITCHYARD_XGRAMMAR_FOLDER}/include
    ${SWITCHYARD_XGRAMMAR_FOLDER}/3rdparty/picojson ${SWITCHYARD_XGRAMMAR_FOLDER}/3rdparty/dlpack/include)
  target_compile_definitions(xgrammar_objects PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
  target_compile_options(xgrammar_objects PRIVATE -w)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:xgrammar_objects>)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/grammar/xgrammar/backend.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS
    "-isystem;${SWITCHYARD_XGRAMMAR_FOLDER}/include;-isystem;${SWITCHYARD_XGRAMMAR_FOLDER}/3rdparty/dlpack/include")
endfunction()
