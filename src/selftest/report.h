// Results as a table for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "selftest/run.h"

namespace switchyard::selftest {

std::string table_header();
std::string table_row(const Result& result);  // of one that fails two lines: the second says how

// The line after the table: how many agree.
std::string verdict(const std::vector<Result>& results);

// The file of --json: {"version", "machine", "results"}, a "failure" only where there is one.
nlohmann::ordered_json results_json(const std::vector<Result>& results);

}  // namespace switchyard::selftest
