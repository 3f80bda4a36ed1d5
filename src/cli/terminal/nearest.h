// "Did you mean": the name nearest to one that is not known.

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice::impl::cli {

// Characters to insert, delete, replace or swap with a neighbour.
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of the names, where it is near enough to be meant; empty otherwise.
std::string nearest_name(std::string_view word, std::span<const std::string> names);

}  // namespace sluice::impl::cli
