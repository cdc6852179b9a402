#include "gguf/architectures.h"

#include <string>

namespace switchyard {

const GgufArchitecture& architecture_of(const GgufFile& file) {
  const GgufMetadata general(file, "general");
  const std::string name = general.text("architecture");
  std::string names;
  for (const GgufArchitecture* architecture : gguf_architectures()) {
    if (architecture->name == name) return *architecture;
    names += (names.empty() ? "" : ", ") + std::string(architecture->name);
  }
  general.wrong("architecture", names);
}

}  // namespace switchyard
