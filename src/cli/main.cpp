#include "cli/program.h"

int main(int argc, char** argv) { return sluice::impl::cli::run_program(argc, argv); }
