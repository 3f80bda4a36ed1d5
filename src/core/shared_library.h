// A shared library that is loaded when it is first needed, and stays loaded. A program that is
// linked with it would load it before main, and not start without it.

#pragma once

#include <span>
#include <string>

namespace sluice::impl {

class SharedLibrary {
 public:
  // Takes the first of the files that can be loaded. Throws Error with this hint where none can;
  // `name` is for people.
  SharedLibrary(const std::string& name, std::span<const std::string> files, std::string hint);

  // Throws Error where the library does not have it.
  template <typename F>
  void find(const char* symbol, F& function) const {
    function = reinterpret_cast<F>(address_of(symbol));
  }

 private:
  void* address_of(const char* symbol) const;

  std::string file_, hint_;
  void* handle_ = nullptr;
};

}  // namespace sluice::impl
