// What `inspect` says of a plan.json.

#pragma once

#include <string>

namespace sluice::impl::cli {

struct InspectPlanOptions {
  std::string plan, json;  // json: where results go; empty: nowhere
  std::string command_line;
};

// Prints what the plan was made for, a table of its layers and a picture of its heads.
void run_inspect_plan(const InspectPlanOptions& options);

}  // namespace sluice::impl::cli
