// The measurements file of `tune`: what is accepted is saved, and read again as it is.

#include <cstddef>
#include <cstdint>

#include "fuzz/harness.h"
#include "tune/measurements.h"
#include "unit/test_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = sluice::impl::fuzz;
  using sluice::impl::Measurements;
  static const sluice::impl::test::TempDir folder;
  const nlohmann::json key = {{"model", "a"}, {"context", 64}};
  const auto path = folder.write("measurements.json", {reinterpret_cast<const char*>(data), size});
  fuzz::expect_only_errors([&] {
    const Measurements first(path, key);
    if (!first.resumed()) return;
    first.save();
    const Measurements again(path, key);
    if (!again.resumed() || again.times() != first.times() || again.kl("a") != first.kl("a"))
      throw std::logic_error("measurements change when they are written and read");
  });
  return 0;
}
