#define SUREFOOT_ISA 1
#define SUREFOOT_NAMESPACE surefoot_avx2
#include "kernels.hpp"

SUREFOOT_KERNELS(kernels_avx2, "avx2")
