#include "core/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "core/error.h"

namespace sluice::impl {

SharedLibrary::SharedLibrary(const std::string& name, std::span<const std::string> files,
                             std::string hint)
    : hint_(std::move(hint)) {
  std::string reason;  // of the first, which is the one that people can install
  for (const std::string& file : files) {
    handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    file_ = file;
    if (handle_ != nullptr) return;
    if (reason.empty()) reason = ::dlerror();
  }
  throw Error(name + " cannot be loaded: " + reason, hint_);
}

void* SharedLibrary::address_of(const char* symbol) const {
  void* address = ::dlsym(handle_, symbol);
  if (address == nullptr) throw Error(file_ + " has no " + symbol, hint_);
  return address;
}

}  // namespace sluice::impl
