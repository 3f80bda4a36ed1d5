// The first and the last keys: StreamingLLM (arXiv 2309.17453), without its shift of positions.

#include <algorithm>

#include "backend/cpu/attention/baseline/chooser.h"

namespace sluice::impl::cpu::baseline {
namespace {

class Window : public Chooser {
 public:
  explicit Window(int64_t window) : window_(window) {}
  int64_t group() const override { return 1; }

  void choose(const CachedKeys&, const QueryGroup& group,
              std::vector<KeyRange>& read) const override {
    read.clear();
    const int64_t end = group.first + 1, begin = std::max<int64_t>(0, end - window_);
    if (const int64_t sinks = std::min(begin, kBaselineSinks); sinks > 0)
      add_range(read, {0, sinks});
    add_range(read, {begin, end});
  }

 private:
  int64_t window_;
};

}  // namespace

std::unique_ptr<Chooser> make_window(const BaselineSpec& spec) {
  return std::make_unique<Window>(baseline_window(spec.keep, spec.context));
}

}  // namespace sluice::impl::cpu::baseline
