// Runs a case: first the peaks, then the case's jobs one after another.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "bench/cases.h"

namespace switchyard::bench {

// All cases, including `peak`.
std::span<const Case> cases();

// A case's keys and those that every case has: copy_mib, device unless it comes with the case's config, and
// threads unless the case sets its own.
std::vector<Key> all_keys(const Case& chosen);

// Measures the peaks of the device and then the case, each measurement for about `seconds`; a GPU's peaks for
// a tenth of that, an emulated GPU's not at all. `line` gets every line for people as soon as it is known.
// Returns {"version", "machine", "device", "peaks", "results"}. Error(usage) for a wrong key or value, before
// anything is measured.
nlohmann::ordered_json run_case(const Case& chosen, std::span<const std::string> settings, double seconds,
                                const std::function<void(const std::string&)>& line);

}  // namespace switchyard::bench
