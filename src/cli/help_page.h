// The pages of --help, wrapped to the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace switchyard {

// Prints a page within the terminal's width (COLUMNS), at most 100 columns.
void print_help_page(std::string_view page);

// Fills lines up to `width` columns. The text behind two spaces within a line keeps its column. Lines below
// "Examples" stay as they are.
std::string wrapped_help(std::string_view page, std::size_t width);

}  // namespace switchyard
