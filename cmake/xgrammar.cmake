# xgrammar (Apache-2.0), which src/grammar/xgrammar/ uses: its C++ sources as objects of this library, without its
# Python bindings. scripts/install_dependencies.sh fetches them; without them the build has no grammars and says so.
option(SWITCHYARD_XGRAMMAR "grammars of answers, by xgrammar where its sources are there" ON)
set(SWITCHYARD_XGRAMMAR_FOLDER ${CMAKE_SOURCE_DIR}/third_party/xgrammar-0.2.8 CACHE PATH "sources of xgrammar")

function(add_xgrammar target)
  file(GLOB_RECURSE files ${SWITCHYARD_XGRAMMAR_FOLDER}/cpp/*.cc)
  # Nothing here calls its converters, two fifths of its time: no_converters.cc has what its other files link.
  list(FILTER files EXCLUDE REGEX "/tvm_ffi/|/cpp/(json_schema_converter|lark_converter|structural_tag)\\.cc$|/cpp/converter_ext/")
  add_library(xgrammar_objects OBJECT ${files} ${CMAKE_SOURCE_DIR}/src/grammar/xgrammar/no_converters.cc)
  target_include_directories(xgrammar_objects PRIVATE ${SWITCHYARD_XGRAMMAR_FOLDER}/include ${SWITCHYARD_XGRAMMAR_FOLDER}/cpp
    ${SWITCHYARD_XGRAMMAR_FOLDER}/3rdparty/picojson ${SWITCHYARD_XGRAMMAR_FOLDER}/3rdparty/dlpack/include)
  target_compile_definitions(xgrammar_objects PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
  target_compile_options(xgrammar_objects PRIVATE -w)
  # Headers take most of a small file's time: these are compiled at once.
  set(small_files compiled_grammar config grammar grammar_builder grammar_printer regex_converter suffix_automata testing tokenizer_info
    support/logging support/recursion_guard)
  list(TRANSFORM small_files PREPEND ${SWITCHYARD_XGRAMMAR_FOLDER}/cpp/)
  list(TRANSFORM small_files APPEND .cc)
  set_source_files_properties(${small_files} ${CMAKE_SOURCE_DIR}/src/grammar/xgrammar/no_converters.cc PROPERTIES UNITY_GROUP small)
  set_target_properties(xgrammar_objects PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:xgrammar_objects>)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/src/grammar/xgrammar/backend.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS
    "-isystem;${SWITCHYARD_XGRAMMAR_FOLDER}/include;-isystem;${SWITCHYARD_XGRAMMAR_FOLDER}/3rdparty/dlpack/include")
endfunction()
