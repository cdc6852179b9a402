// The names of the room texts/ in this one: a server speaks of texts everywhere.
#pragma once

#include "texts/inbox.h"
#include "texts/text.h"

namespace switchyard::serve {
using namespace texts;  // NOLINT(google-build-using-namespace)
}
