// What every test program has.
#pragma once

namespace switchyard {

// The root of the source tree, with tests/golden and configs.
extern const char* const kSourceFolder;

}  // namespace switchyard
