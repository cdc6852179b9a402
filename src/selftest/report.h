// Formats results as a table for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "selftest/run.h"

namespace switchyard::selftest {

std::string table_header();
std::string table_row(const Result& result);  // two lines for a failure: the second says what failed

// The line after the table: how many implementations agree.
std::string verdict(const std::vector<Result>& results);

// The content of the --json file: {"version", "machine", "results"}; "failure" only for a failed result.
nlohmann::ordered_json results_json(const std::vector<Result>& results);

}  // namespace switchyard::selftest
