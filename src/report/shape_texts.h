// The shapes of results.json as JSON, by command; docs/results.md has the meaning of the keys.
//
// A text is an object of shapes by name. A shape is "text", "flag" (true or false), "number"
// (finite), "share" (a number from 0 to 1), "integer", the name of another shape (with "?" that or
// null), an array of one shape, or an object. A key with "?" may be absent or null; "*" is every
// key not named, which may be null too; keys that no shape names are left alone.

#pragma once

#include <span>
#include <string_view>

namespace sluice::impl {

// The shape of a command has its name, with " 1" where schema 1 had another; "header" is that of
// every file; the others are parts.
std::span<const std::string_view> shape_texts();

}  // namespace sluice::impl
