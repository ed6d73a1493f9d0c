#define SUREFOOT_ISA 3
#define SUREFOOT_NAMESPACE surefoot_avx512_bf16
#include "kernels.hpp"

SUREFOOT_KERNELS(kernels_avx512_bf16, "avx512_bf16")
