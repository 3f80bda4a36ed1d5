// What the library shows of itself: all other symbols are hidden.

#pragma once

#define SLUICE_API __attribute__((visibility("default")))
#define SLUICE_LOCAL __attribute__((visibility("hidden")))
