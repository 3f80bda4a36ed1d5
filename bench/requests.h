// A model that is timed on request, for a program that interleaves it with other engines
// (bench/peers). Requests are read from standard input, a JSON object a line; each is answered by
// one on standard output.

#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice::impl::bench {

// description: {"name", "kind": "requests", "model": a checkpoint, "dtype", "context": positions of
// the cache}. Requests, and their answers:
//   {"op": "prefill", "n"}           {"ms"}      of n tokens into an empty cache
//   {"op": "decode", "depth", "n"}   {"ms"}      of one token of n, after depth others
//   {"op": "greedy", "tokens", "n"}  {"tokens", "margins"}  the likeliest, one after another, and
//   by
//                                    how many deviations of the scores each leads
//   {"op": "read", "bytes"}          {"ms"}      of a plain read of as much memory
//   {"op": "memory"}                 {"peak_bytes", "weight_bytes", "cache_bytes", "file_bytes"}
// A request that cannot be met is answered by {"error"}. The end of the input ends the case.
void run_requests(const nlohmann::json& description);

}  // namespace sluice::impl::bench
