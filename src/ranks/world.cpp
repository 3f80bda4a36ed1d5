#include "ranks/world.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/shared_library.h"
#include "ranks/module_path.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHint =
    "install it (package sluice-mpi, or build with -DSLUICE_MPI=ON), or start one process";

std::optional<int> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  return error == std::errc{} && rest == end && value >= 0 ? std::optional(value) : std::nullopt;
}

// Next to libsluice, found relative to the program, so that an installation can be moved; or where
// the loader looks.
std::vector<std::string> module_files() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<std::string> files;
  if (!error)
    files.push_back(
        (program.parent_path() / kModuleFolder / kModuleFile).lexically_normal().string());
  files.emplace_back(kModuleFile);
  return files;
}

std::unique_ptr<Transport> open_module() {
  const SharedLibrary module("Sluice's module for MPI", module_files(), kHint);
  const char* (*version)() = nullptr;
  Transport* (*open)() = nullptr;
  module.find("sluice_transport_version", version);
  module.find("sluice_transport_open", open);
  if (std::string_view(version()) != SLUICE_VERSION)
    throw Error(std::string("Sluice's module for MPI is of version ") + version() + ", this is " +
                    SLUICE_VERSION,
                "install both from one package");
  return std::unique_ptr<Transport>(open());
}

std::unique_ptr<Communicator> open_world() {
  const Launch launch = launched();
  if (!launch.several()) return std::make_unique<Communicator>();
  auto ranks = std::make_unique<Communicator>(open_module());
  if (launch.size && *launch.size != ranks->size())
    throw Error("one of " + std::to_string(*launch.size) +
                    " processes was started, but MPI knows of " + std::to_string(ranks->size()),
                "start them with the mpirun of the MPI that libsluice_mpi.so is linked with");
  return ranks;
}

}  // namespace

Launch launched(const std::function<const char*(const char*)>& environment) {
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
  };
  for (const auto& [rank, size] : kPairs)
    if (environment(rank) != nullptr)
      return {.rank = number(environment(rank)),
              .size = number(environment(size)),
              .by_launcher = true};
  return {};
}

Launch launched() {
  return launched([](const char* name) { return std::getenv(name); });
}

Communicator& world() {
  static const std::unique_ptr<Communicator> opened = open_world();
  return *opened;
}

}  // namespace sluice::impl
