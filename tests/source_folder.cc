#include "core/testing.h"

namespace switchyard {

const char* const kSourceFolder = SWITCHYARD_SOURCE_FOLDER;

}  // namespace switchyard
