// The shared library is the static one as a whole (install.cmake); CMake wants a file of its own.
