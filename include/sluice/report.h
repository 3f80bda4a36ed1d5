// Results as a page for people.

#pragma once

#include <span>
#include <string>

#include "sluice/export.h"

namespace sluice {

// One self-contained HTML page of results, in order: JSON of evaluate(), analyze() or a file that
// the program wrote with --json. Of several the page compares the first two. Throws Error for none,
// and for a text that is not results which this version knows.
SLUICE_API std::string report_page(std::span<const std::string> results);

}  // namespace sluice
