// What to do about a file of weights that is cut or damaged.

#pragma once

namespace sluice::impl {

inline constexpr const char* kBrokenHint =
    "is the download complete? fetch or convert the file again";

}  // namespace sluice::impl
