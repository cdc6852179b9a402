// Whether files are safetensors files, many in one process: standard input holds length (8 bytes,
// little-endian) and bytes of one after the other; for each a line says "ok" or what is wrong. Used by
// safetensors_mutants.py.
#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/error.h"

int main() {
  unsigned char length_bytes[8];
  std::vector<std::byte> file;
  while (std::fread(length_bytes, 1, sizeof length_bytes, stdin) == sizeof length_bytes) {
    std::size_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = (length << 8) | length_bytes[i];
    file.resize(length);
    if (std::fread(file.data(), 1, length, stdin) != length) return 1;
    std::string verdict = "ok";
    try {
      switchyard::SafetensorsFile::parse(file, "file");
    } catch (const switchyard::Error& error) {
      verdict = error.what();
    }
    std::puts(verdict.c_str());
  }
  return 0;
}
