// Explains in errors which of the reference's models are not implemented here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The reference's values of decoder_block that are not implemented here.
std::vector<std::string> blocks_not_built();

// The feature of the reference's decoder_block `block` that is not implemented here; empty for other names.
std::string_view missing_in_block(std::string_view block);

// The reason why the reference's model `model` is unavailable, to end an error; empty for other names.
std::string reason_not_built(std::string_view model);

// The reason why weights in fp8 are not trained, and what to do instead.
extern const std::string_view kNoFp8Training;

}  // namespace switchyard
