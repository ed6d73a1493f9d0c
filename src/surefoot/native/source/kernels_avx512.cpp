#define SUREFOOT_ISA 2
#define SUREFOOT_NAMESPACE surefoot_avx512
#include "kernels.hpp"

SUREFOOT_KERNELS(kernels_avx512, "avx512")
