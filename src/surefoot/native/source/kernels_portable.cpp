#define SUREFOOT_ISA 0
#define SUREFOOT_NAMESPACE surefoot_portable
#include "kernels.hpp"

SUREFOOT_KERNELS(kernels_portable, "portable")
