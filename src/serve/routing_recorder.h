// Routing records of the texts that a server makes (routing/routing_file.h).
#pragma once

#include "generate/generator.h"
#include "metrics/append_file.h"
#include "texts/observer.h"

namespace switchyard::serve {

// Returns what makes a record of each text that ends, into `file` unless that is null, and into the text's
// last piece where its request wants that. The generator records routing; both must outlive the result.
texts::OnFinished routing_recorder(AppendFile* file, const Generator& generator);

}  // namespace switchyard::serve
